"""Living services as the invariants see them.

The one place that looks into a service's private state, and only looks: services keep no doors
open for their own inspection.
"""


from __future__ import annotations

from holdover.runtime import Disk
from jobmanager.event_store import JobEventWriter
from jobmanager.job_manager import JobManager
from jobmanager.job_master import JobMaster
from jobmanager.resource_manager import ResourceManager
from simulator.invariants.view import LeaderView, OrderQueue, RunningJob, WorkerView, WrittenLog
from taskmanager.process import TaskManager


def leader_view(name: str, jobmanager: JobManager, *, paused: bool) -> LeaderView | None:
    """A JobManager; None while it does not lead. `name` tells its process and life apart."""
    services = jobmanager.services
    if services is None:
        return None
    return LeaderView(
        name,
        services.epoch,
        paused,
        tuple(running_job(master) for master in services.dispatcher.masters()),
        tuple(
            OrderQueue(worker.worker_id, len(worker._orders), worker.slots)
            for worker in services.resources.workers()
        ),
        _slots_held(services.resources),
    )


def running_job(master: JobMaster) -> RunningJob:
    """A job under its leader."""
    events = master._events
    return RunningJob(
        master.job_id,
        master.scheduler,
        written_log(events) if isinstance(events, JobEventWriter) else None,
        len(master._inbox),
        len(master._releases),
        len(master._timers),
    )


def written_log(writer: JobEventWriter) -> WrittenLog:
    """A log, and what of it is in its writer's memory."""
    idle = writer._durable_sequence + len(writer._buffer) == writer._sequence
    return WrittenLog(
        writer._directory,
        tuple(writer._buffer) if idle and not writer._needs_snapshot else None,
        writer._buffer_bytes + writer._in_flight_bytes,
        writer._settings.buffer_bytes_max,
    )


def worker_view(
    name: str, taskmanager: TaskManager, disk: Disk, *, paused: bool
) -> WorkerView | None:
    """A TaskManager; None until it has opened its directory. `disk` is its host's storage."""
    directory, executor = taskmanager._directory, taskmanager._executor
    if directory is None or executor is None:
        return None
    current = executor.connection.current
    jobs = dict.fromkeys((*executor._jobs, *executor._releases, *executor._graphs._cached))
    return WorkerView(
        name,
        taskmanager.resource_id,
        disk,
        taskmanager._finished,
        paused,
        executor.epoch_seen,
        current.epoch if current is not None else None,
        tuple(executor._slots.occupants()),
        executor._slots.slots,
        tuple(jobs),
        len(executor._reports),
        len(executor._deletions._names),
        directory.shuffle,
        directory.scratch,
        directory.graphs,
    )


def _slots_held(resources: ResourceManager) -> dict[str, int]:
    held: dict[str, int] = {}
    for worker in resources.workers():
        for job_id in worker.holders.values():
            held[job_id] = held.get(job_id, 0) + 1
    return held
