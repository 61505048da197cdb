"""A job's recovery reports: one for each leader that recovered it, kept from leader to leader
(P50).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from holdover.errors import StorageError
from holdover.runtime.log import Log
from holdover.v1 import jobmanager_pb2
from jobmanager.job_store import JobStore
from jobmanager.recovery import RECOVERY_REPORTS_MAX, RecoveryObserver
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import JobState

#: The reports are stored anew as a whole: after each time their writer rests this long for each
#: worker in them, so that thousands that come late cost a few writes and not thousands.
REST_S = 0.0001

_log = Log(__name__)

Retry = Callable[[str, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Repeats what storage refuses at present; the first argument says what it is."""


class RecoveryReports:
    """The reports of one job. Nothing depends on them: they never hold a recovery up."""

    def __init__(self, store: JobStore, job_id: str, retry: Retry) -> None:
        self._store = store
        self._job_id = job_id
        self._retry = retry
        self._earlier: list[jobmanager_pb2.RecoveryReport] = []
        self._observer: RecoveryObserver | None = None
        self._grown = asyncio.Event()

    async def begin(self, observer: RecoveryObserver) -> None:
        """This leader recovers the job; the reports of those before are read."""
        self._observer = observer
        try:
            self._earlier = await self._store.read_recovery_reports(self._job_id)
        except (OSError, StorageError) as error:
            _log.warning("recovery reports cannot be read", job=self._job_id, reason=str(error))

    def handled(self, signal: sig.Signal, before: JobState, after: JobState) -> None:
        """The scheduler has handled a signal."""
        observer = self._observer
        if observer is None:
            return
        grown = started = isinstance(signal, sig.RecoveryStarted)
        if isinstance(signal, sig.WorkerRegistered):
            grown = observer.worker_registered(signal.worker_id) and observer.report.complete
        if (started or before is JobState.RECONCILING) and after is not JobState.RECONCILING:
            observer.wait_ended()
            observer.complete()
            grown = True
        if grown:
            self._grown.set()

    def deployed(self) -> None:
        """An attempt is being deployed."""
        if self._observer is not None and self._observer.deployed():
            self._grown.set()

    @property
    def count(self) -> int:
        """How many there are."""
        current = 0 if self._observer is None else 1
        return min(len(self._earlier) + current, RECOVERY_REPORTS_MAX)

    def all(self, scheduler: Scheduler) -> list[jobmanager_pb2.RecoveryReport]:
        """The last 100, oldest first; the last one as of now."""
        reports = list(self._earlier)
        if self._observer is not None:
            reports.append(self._observer.current(scheduler))
        return reports[-RECOVERY_REPORTS_MAX:]

    async def keep(self, scheduler: Callable[[], Scheduler]) -> None:
        """Store the reports whenever this leader's has grown, beside everything else, for ever."""
        while True:
            await self._grown.wait()
            self._grown.clear()
            reports = self.all(scheduler())
            await self._retry(
                "storing the recovery reports",
                functools.partial(self._store.write_recovery_reports, self._job_id, reports),
            )
            await asyncio.sleep(REST_S * sum(len(report.workers) for report in reports))
