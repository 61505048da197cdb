"""What a new leader makes of a job's log: the job as it was, or the reason why it starts anew.

A log that was never written and one that is gone are two things (P09): once events are durable, a
mark beside the log says so. A job whose log cannot be used starts from its beginning, and its
report says why. But not when its output has begun to be published: what a second run gives must not
be laid over it, so such a job is kept, and does not run, until somebody has decided.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field

from holdover.runtime import Disk
from holdover.runtime.log import Log
from holdover.v1 import events_pb2, job_pb2
from jobmanager.event_store import (
    LogUnreadable,
    UnknownEventType,
    UnsupportedLogVersion,
    set_aside,
)
from jobmanager.job_store import JobStore
from jobmanager.recovery import RecoveryObserver, replay_job
from jobmanager.scheduler.execution_graph import ExecutionGraph, ReplayError
from jobmanager.scheduler.states import InvalidTransition
from jobmanager.sink_commit import foreign_file, sinks_of

RECOVERY_DATA_MISSING = "recovery data missing"

_log = Log(__name__)


class RecoveryDataUnreadable(Exception):
    """The job's log cannot be used, and it must not start anew: it is kept as it is and does not
    run.
    """


@dataclass(slots=True)
class RecoveredJob:
    """Where a new leader goes on."""

    graph: ExecutionGraph
    #: Changes of the job's state, oldest first.
    history: list[events_pb2.JobStateChanged] = field(default_factory=list)
    #: Of the last record that was replayed; 0 when the job starts from its beginning.
    last_sequence: int = 0


async def recover_job(
    disk: Disk, store: JobStore, job: job_pb2.JobGraph, observer: RecoveryObserver
) -> RecoveredJob:
    """Replay a job's log, or begin the job anew where that is possible; tells `observer` which.

    Raises:
        RecoveryDataUnreadable: a newer version wrote the log; or it is damaged or gone, and output
        of the job is published already.
    """
    directory = store.events_directory(job.job_id)
    try:
        others_go_on = functools.partial(asyncio.sleep, 0)
        replayed = await replay_job(disk, directory, job, others_go_on)
    except (LogUnreadable, ReplayError, InvalidTransition) as error:
        if isinstance(error, UnknownEventType | UnsupportedLogVersion):
            raise RecoveryDataUnreadable(str(error)) from error
        await _refuse_published(disk, job, f"the event log is damaged: {error}")
        _log.error("event log is damaged, the job starts anew", job=job.job_id, why=str(error))
        await set_aside(disk, directory)
        observer.restarted(f"the event log is damaged and was set aside: {error}")
        return RecoveredJob(ExecutionGraph(job))
    observer.replayed(replayed.findings)
    if replayed.findings.is_empty:
        await _begin_anew(disk, store, job, observer)
    return RecoveredJob(replayed.graph, replayed.history, replayed.findings.last_sequence)


async def begin_unrecorded(
    _disk: Disk, store: JobStore, job: job_pb2.JobGraph, observer: RecoveryObserver
) -> RecoveredJob:
    """Begin a job anew that has no log, because its recovery is switched off. That a client has
    cancelled it is the one thing that is not forgotten (P47).
    """
    observer.restarted("execution.batch.job-recovery.enabled is false for this job")
    begun = RecoveredJob(ExecutionGraph(job))
    if await store.is_cancelled(job.job_id):
        requested = events_pb2.JobCancelRequested()
        begun.graph.apply(events_pb2.JobEvent(cancel_requested=requested))
    return begun


async def _begin_anew(
    disk: Disk, store: JobStore, job: job_pb2.JobGraph, observer: RecoveryObserver
) -> None:
    """No event was found: there were none, or they are gone."""
    if not await store.has_recorded_events(job.job_id):
        observer.restarted("no event of the job had become durable")
        return
    directory = store.events_directory(job.job_id)
    reason = f"{RECOVERY_DATA_MISSING}: the job had events in {directory}, and none is there"
    await _refuse_published(disk, job, reason)
    _log.error("event log is missing, the job starts anew", job=job.job_id, directory=directory)
    observer.restarted(reason)


async def _refuse_published(disk: Disk, job: job_pb2.JobGraph, reason: str) -> None:
    """When the job was submitted its output directories were empty."""
    published = await foreign_file(disk, [directory for directory, _ in sinks_of(job)])
    if published is not None:
        raise RecoveryDataUnreadable(
            f"{reason}; output of the job is published already ({published}): remove it and retry"
            " the job, which then runs from its beginning, or cancel it"
        )
