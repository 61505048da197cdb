"""Who a task is, for user code that wants to know: names of log lines, seeds, ledgers.

from holdover.task_context import current

def tag(batch):
    print(f"subtask {current().subtask} has {batch.num_rows} rows")
    return batch
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The attempt that runs in this process.

    Attributes:
        job_id: the job.
        vertex_id: the vertex of the job.
        subtask: 0 <= subtask < parallelism.
        attempt: counts the attempts of the subtask over the whole life of the job, from 0.
        parallelism: number of subtasks of the vertex.
        leader_epoch: the epoch of the JobManager that deployed the attempt.
    """

    job_id: str
    vertex_id: str
    subtask: int
    attempt: int
    parallelism: int
    leader_epoch: int


_current: TaskContext | None = None


def current() -> TaskContext:
    """The running attempt; RuntimeError where no task runs, for example in the client."""
    if _current is None:
        raise RuntimeError("no task runs in this process: call current() inside of a function")
    return _current


def set_current(context: TaskContext | None) -> None:
    """Called by the task process before and after each attempt."""
    global _current
    _current = context
