"""Room at a TaskManager that holds more than it is to hold: partitions that no unfinished subtask
needs are deleted, the oldest first. Such are there when they are not deleted as soon as they are
needed no more (`jobmanager.partition.release-during-job-execution`).
"""

from __future__ import annotations

from holdover.ids import AttemptKey
from jobmanager.scheduler import actions as act
from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.signals import RoomWanted
from jobmanager.scheduler.states import ExecutionState, JobState
from jobmanager.scheduler.vertices import ExecutionVertex


def make_room(core: SchedulerCore, signal: RoomWanted) -> None:
    """Have optional partitions deleted until as many bytes are free as are wanted.

    Not during a recovery: what is missing then, and with it what is needed, is not known yet.
    """
    if core.graph.state is not JobState.RUNNING:
        return
    freed_bytes, released = 0, []
    for key in signal.oldest:
        vertex = core.graph.find(key)
        if freed_bytes >= signal.bytes_over:
            break
        if vertex is None or not _is_optional(core, vertex, key, signal.worker_id):
            continue
        if vertex.available:
            core.graph.set_available(vertex, False)
            released.append(key)
        # Otherwise it is about to be deleted already.
        freed_bytes += bytes_of(vertex)
    if released:
        core.act(act.ReleasePartitions(signal.worker_id, tuple(released)))


def bytes_of(vertex: ExecutionVertex) -> int:
    """Bytes of the partitions of a finished subtask."""
    return sum(p.data_bytes for p in vertex.finished.partitions) if vertex.finished else 0


def _is_optional(
    core: SchedulerCore, vertex: ExecutionVertex, key: AttemptKey, worker_id: str
) -> bool:
    return (
        vertex.state is ExecutionState.FINISHED
        and vertex.key(core.graph.job_id) == key
        and vertex.stored_at == worker_id
        and not core.wanted(vertex)
    )
