"""TaskManagers that are started again while the job runs, and come back with what they had
finished.

A worker's loss is known at once, and what is needed of its work is reset at once, for nobody can
tell whether it will come back. When it does, each of its finished subtasks that is not finished
anew is taken up again: so much less runs twice (behaviour: TM restart).

Where a job says that lost workers are started again, its finished work waits for that first, for as
long as the job says. Only what ran there runs again at once.
"""

from __future__ import annotations

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.failover import ResetPlan
from jobmanager.scheduler.states import ACTIVE_EXECUTION_STATES, ExecutionState, JobState
from jobmanager.scheduler.vertices import ExecutionVertex, SubtaskId

#: Of subtasks that are reset for these, the output may still be on the disk of their worker.
_MAY_COME_BACK = (
    events_pb2.RESET_REASON_WORKER_LOST,
    events_pb2.RESET_REASON_UPSTREAM_CLOSURE,
)


#: What such a timer's name begins with; the worker's id follows.
RESTART_WAIT_TIMER = "worker-restart/"


class RestartedWorkers:
    """Finished work that went away with its worker, by subtask."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._graph = core.graph
        self._lost: dict[SubtaskId, tuple[AttemptKey, str]] = {}

    def await_restart(self, worker_id: str) -> bool:
        """A worker is lost. Whether its finished work waits for it to be started again."""
        wait_s = self._core.options.restart_wait_s
        if wait_s <= 0 or self._core.graph.commit is not None:
            return False
        self._core.expected_back[worker_id] = None
        self._core.act(act.SetTimer(RESTART_WAIT_TIMER + worker_id, wait_s))
        return True

    def returned(self, worker_id: str) -> bool:
        """A worker registers. Whether it was lost and awaited."""
        if worker_id not in self._core.expected_back:
            return False
        del self._core.expected_back[worker_id]
        self._core.act(act.CancelTimer(RESTART_WAIT_TIMER + worker_id))
        return True

    @property
    def waiting(self) -> str:
        """Which workers the job waits for, when there is nothing else to do; empty otherwise."""
        core = self._core
        works = self._graph.state in (JobState.RUNNING, JobState.RECONCILING)
        if not core.expected_back or core.ready or core.slots.occupied:
            return ""
        if not works or self._graph.commit is not None:
            return ""
        workers = ", ".join(core.expected_back)
        return f"waiting for {workers} to be started again with the finished work on its disk"

    def restarted(self, worker_id: str) -> None:
        """A new process has taken a worker's place: what ran there is over. What had finished is
        judged in a moment, by what the new one offers (P22)."""
        self._core.slots.lose_worker(worker_id)
        for vertex in self._graph.at_worker(worker_id):
            if vertex.finished is None:
                self.remember_unheard(vertex)
                self._core.abandon(vertex)
        self._core.reschedule()

    def moved(self, worker_id: str) -> None:
        """A worker serves at another address from now on: who reads from it would go on asking at
        the old one, and is started anew."""
        seen: set[int] = set()
        for vertex in self._graph.at_worker(worker_id):
            if vertex.finished is None:
                continue
            for edge in self._graph.vertices[vertex.vertex_id].out_edges:
                if edge.forward:
                    self._restart(edge.target, [vertex.subtask])
                elif edge.index not in seen:
                    seen.add(edge.index)
                    self._restart(
                        edge.target, range(len(self._graph.vertices[edge.target].subtasks))
                    )

    def _restart(self, vertex_id: str, subtasks: range | list[int]) -> None:
        for consumer in [self._graph.vertices[vertex_id].subtasks[i] for i in subtasks]:
            if consumer.state in ACTIVE_EXECUTION_STATES:
                self._core.cancel(consumer)

    def remember(self, plan: ResetPlan) -> None:
        """Finished subtasks are about to be reset."""
        for subtask, reason in plan.resets.items():
            vertex = self._graph.vertex_at(*subtask)
            self._lost.pop(subtask, None)
            if reason in _MAY_COME_BACK and not vertex.available:
                self._lost[subtask] = (vertex.key(self._graph.job_id), vertex.stored_at)

    def remember_unheard(self, vertex: ExecutionVertex) -> None:
        """An attempt runs at a worker that is gone, and will be abandoned: it may have finished
        without anybody's having heard of it."""
        if vertex.state is not ExecutionState.CANCELING:
            self._lost[vertex.id] = (vertex.key(self._graph.job_id), vertex.worker_id)

    def take_up(
        self,
        vertex: ExecutionVertex,
        key: AttemptKey,
        execution: common_pb2.FinishedExecution,
        worker_id: str,
    ) -> bool:
        """Whether an offered attempt is one that was lost and still counts: then its subtask is
        finished again, and an attempt in its stead is cancelled."""
        core = self._core
        if self._lost.get(vertex.id) != (key, worker_id):
            return False
        if vertex.state in (ExecutionState.FINISHED, ExecutionState.CANCELING):
            return False
        owner = self._graph.vertices[vertex.vertex_id]
        if not owner.splits_recorded:
            return False  # other subtasks may read what it has read
        if len(execution.partitions) != len(owner.vertex.outputs):
            return False
        if not core.input_digests.match(vertex, execution):
            return False  # it has read what does not count any more
        if owner.source is not None:
            if vertex.pinned_splits is None and vertex.state in ACTIVE_EXECUTION_STATES:
                return False  # another attempt is reading for it
            if not core.settle_splits(vertex, execution):
                return False
        if vertex.slot is not None:
            core.act(act.Cancel(vertex.slot.worker_id, vertex.key(self._graph.job_id)))
        del self._lost[vertex.id]
        core.finish(vertex, execution, worker_id, adopted=True)
        return True
