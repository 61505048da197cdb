"""The jobs of which a worker has anything, through the loss of leaders and their own ends.

TaskManagers and shuffle services keep finished work alike: each job follows the leader by its own
state machine (`holdover.coordination.job_leader`), and here is what becomes of its decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from holdover.coordination.job_leader import (
    FailTasks,
    JobLeaderAction,
    JobLeaderConnection,
    JobLeaderState,
    ReleaseAll,
)
from holdover.runtime import Clock
from holdover.runtime.log import Log
from holdover.runtime.supervisor import Supervisor
from shuffle.partition_store import PartitionStore

_log = Log(__name__)


class JobOwner(Protocol):
    """What a worker does about one of its jobs."""

    def recovery_enabled(self, job_id: str) -> bool:
        """Whether what is finished is worth keeping for another leader."""

    def fail_tasks(self, job_id: str) -> None:
        """Stop what runs of it: its leader is lost."""

    def let_go(self, job_id: str) -> None:
        """From this moment nothing of it is served, offered or taken."""

    async def delete(self, job_id: str) -> None:
        """Delete all that is left of it. Raises `OSError`."""


class HeldJobs:
    """See the module."""

    def __init__(
        self,
        owner: JobOwner,
        finished: PartitionStore,
        clock: Clock,
        supervisor: Supervisor,
        timeout_s: float,
    ) -> None:
        """What is finished is kept for another leader for `timeout_s`."""
        self._owner = owner
        self._finished = finished
        self._clock = clock
        self._supervisor = supervisor
        self._timeout_s = timeout_s
        self._jobs: dict[str, JobLeaderConnection] = {}
        self._releases: dict[str, asyncio.Event] = {}
        self._deadlines_changed = asyncio.Event()

    @property
    def ids(self) -> list[str]:
        """All, those that are just being released left out."""
        return list(self._jobs)

    @property
    def being_released(self) -> list[str]:
        """Jobs of which something is being deleted, and nothing is held any more."""
        return list(self._releases)

    def state(self, job_id: str) -> JobLeaderState | None:
        """Where a job stands; None for one that is not here (any more)."""
        job = self._jobs.get(job_id)
        return None if job is None else job.state

    def is_released(self, job_id: str) -> bool:
        """Whether a job is just being released."""
        return job_id in self._releases

    def outranks(self, job_id: str, epoch: int) -> bool:
        """Whether what was found of a job is of a later leader than this one, which cannot judge it
        (P36): it is kept for its own time. Only a restart forgets which leaders are over."""
        return self._finished.newest_epoch(job_id) > epoch

    # ------------------------------------------------------------------ what happens

    def begin(self, job_id: str, epoch: int) -> None:
        """The leader of an epoch has something done for a job."""
        if job_id not in self._jobs:
            self._jobs[job_id] = JobLeaderConnection(job_id, epoch)

    def keep(self, job_id: str) -> None:
        """Something of a job is here and no leader is: as if it were just lost."""
        now_s = self._clock.monotonic_s()
        self._jobs[job_id] = JobLeaderConnection.found(job_id, now_s, self._timeout_s)
        self._deadlines_changed.set()
        _log.info("keeping what is finished", job_id=job_id, at_most_s=self._timeout_s)

    def registered(self, epoch: int) -> None:
        """A leader has taken the registration."""
        for job in self._jobs.values():
            if not self.outranks(job.job_id, epoch):
                job.registered(epoch)
        self._deadlines_changed.set()

    def jobmanager_lost(self) -> None:
        """Each job decides for itself."""
        now_s = self._clock.monotonic_s()
        for job in list(self._jobs.values()):
            self._act(
                job.lost(
                    now_s,
                    recovery_enabled=self._owner.recovery_enabled(job.job_id),
                    holds_finished=self._finished.holds(job.job_id),
                    timeout_s=self._timeout_s,
                )
            )

    def release(self, job_id: str, reason: str) -> None:
        """A job is over here; repeating it changes nothing."""
        job = self._jobs.get(job_id)
        if job is not None:
            self._act(job.released(reason))

    def release_unheld(self, job_id: str, reason: str) -> None:
        """The same for a job of which nothing is finished here, and its owner has something."""
        if job_id not in self._releases:
            self._start_release(job_id, reason)

    async def until_released(self, job_id: str) -> None:
        """Wait while a job is being released."""
        while (released := self._releases.get(job_id)) is not None:
            await released.wait()

    async def watch_deadlines(self, settled: Callable[[], Awaitable[None]]) -> None:
        """Release retained jobs whose registration timeout has passed (P27); a loop for a
        `Supervisor`. `settled` waits for a registration that is in flight: it may have been taken
        already."""
        while True:
            self._deadlines_changed.clear()
            deadlines = [
                job.deadline_s for job in self._jobs.values() if job.deadline_s is not None
            ]
            timeout_s = min(deadlines) - self._clock.monotonic_s() if deadlines else None
            try:
                async with asyncio.timeout(timeout_s):
                    await self._deadlines_changed.wait()
                continue
            except TimeoutError:
                await settled()
            now_s = self._clock.monotonic_s()
            for job in list(self._jobs.values()):
                self._act(job.expired(now_s))

    # ------------------------------------------------------------------ what is done

    def _act(self, actions: Sequence[JobLeaderAction]) -> None:
        for action in actions:
            if isinstance(action, FailTasks):
                self._owner.fail_tasks(action.job_id)
            elif isinstance(action, ReleaseAll):
                self._start_release(action.job_id, action.reason)
            else:
                held_s = action.deadline_s - self._clock.monotonic_s()
                _log.info("keeping what is finished", job_id=action.job_id, at_most_s=held_s)
                self._deadlines_changed.set()

    def _start_release(self, job_id: str, reason: str) -> None:
        self._jobs.pop(job_id, None)
        self._releases[job_id] = asyncio.Event()
        self._owner.let_go(job_id)
        self._supervisor.start(f"release of {job_id}", self._finish_release(job_id, reason))

    async def _finish_release(self, job_id: str, reason: str) -> None:
        try:
            await self._owner.delete(job_id)
        except OSError as error:
            # Nothing of it is offered any more; the next start sweeps what is left.
            _log.error("cannot delete all of a job", job_id=job_id, error=error)
        self._releases.pop(job_id).set()
        _log.info("released job", job_id=job_id, reason=reason)
