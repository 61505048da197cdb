"""Every queue within its bound: what waits does not grow with how long something is away."""

from __future__ import annotations

from collections.abc import Iterator

from jobmanager.job_master import INBOX_SIGNALS_MAX
from jobmanager.scheduler.scheduler import Scheduler
from simulator.invariants.view import Invariant, LeaderView, RunningJob, WorkerView
from taskmanager.task_executor import REPORTS_MAX

#: Signals that a job's own timers, orders and registrations add to those that are held back.
_OWN_SIGNALS_MAX = 1_000
#: Timers beside one for each subtask, and for each lost worker that is awaited: wait, adoption,
#: slots, cancellation, end.
_OTHER_TIMERS_MAX = 8
_OTHER_REPORTS_MAX = 4
_MESSAGES_PER_PROCESS_MAX = 100
#: What processes that have just died had sent.
_MESSAGES_OF_THE_DEAD_MAX = 1_000


class QueuesAreBounded(Invariant):
    """See the module."""

    name = "every queue is within its bound"

    def check(self) -> None:
        """Compare every queue with its bound."""
        for what, length, bound in self._queues():
            if length > bound:
                self.broken(f"{what}: {length}, more than {bound}")

    def _queues(self) -> Iterator[tuple[str, int, int]]:
        for leader in self.view.leaders():
            for job in leader.jobs:
                yield from _job_queues(leader, job)
            yield from _order_queues(leader)
        for worker in self.view.workers():
            yield from _worker_queues(worker)
        bound = _MESSAGES_OF_THE_DEAD_MAX + _MESSAGES_PER_PROCESS_MAX * self.view.processes
        yield "messages on the network", self.view.messages_in_flight, bound


def _job_queues(leader: LeaderView, job: RunningJob) -> Iterator[tuple[str, int, int]]:
    where = f"job {job.job_id} under {leader.name}"
    subtasks = _subtasks(job.scheduler)
    yield f"inbox of {where}", job.inbox_signals, INBOX_SIGNALS_MAX + _OWN_SIGNALS_MAX
    yield f"releases of {where}", job.releases, _OWN_SIGNALS_MAX + 4 * subtasks
    awaited = len(job.scheduler.core.expected_back)
    yield f"timers of {where}", job.timers, subtasks + awaited + _OTHER_TIMERS_MAX
    if job.log is not None:
        # One event may stand above the bound: it is what fills the buffer.
        bound = 2 * job.log.buffered_bytes_max
        yield f"event buffer of {where}", job.log.buffered_bytes, bound


def _order_queues(leader: LeaderView) -> Iterator[tuple[str, int, int]]:
    subtasks = sum(_subtasks(job.scheduler) for job in leader.jobs)
    for queue in leader.queues:
        # A deployment and a cancellation for each slot, a deletion for each partition.
        bound = _OWN_SIGNALS_MAX + 2 * queue.slots + 4 * subtasks
        yield f"orders of {leader.name} to {queue.worker_id}", queue.orders, bound


def _worker_queues(worker: WorkerView) -> Iterator[tuple[str, int, int]]:
    # A slot is not given away before its attempt's end was heard. What an older leader has not
    # heard may still wait for the newest one, and a repeated registration may free slots anew.
    tight = _OTHER_REPORTS_MAX + 2 * worker.slots * (1 + worker.epoch_seen)
    bound = min(tight, REPORTS_MAX + 2 * worker.slots)
    yield f"reports of {worker.name}", worker.reports, bound
    held = len(worker.finished.inventory())
    yield f"deletions of {worker.name}", worker.deletions, _OWN_SIGNALS_MAX + 4 * held
    yield f"occupied slots of {worker.name}", len(worker.occupants), worker.slots


def _subtasks(scheduler: Scheduler) -> int:
    return sum(owner.parallelism for owner in scheduler.graph.vertices.values())
