"""A shuffle service keeps nothing that does not count, and leaves as soon as it may (behaviour 4).

While nothing disturbs anybody, what a service holds or takes of a running job is of attempts that
count, but for a moment; and one that is drained, of which no job needs anything and which nobody
writes to or reads from any more, ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdover.ids import AttemptKey
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.states import ACTIVE_EXECUTION_STATES, ExecutionState, JobState
from simulator.invariants.stored import archived
from simulator.invariants.view import (
    Broken,
    ClusterView,
    Invariant,
    LeaderView,
    ServiceFacts,
    SubmittedJob,
    WorkerView,
)


@dataclass(slots=True)
class _Leaving:
    """A drained service of which nothing is needed."""

    #: Attempts that ran when that was seen first, and may read there.
    readers: dict[AttemptKey, None]
    #: When the last of them was seen.
    since_s: float


class NothingLingers(Invariant):
    """See the module."""

    name = "nothing lingers at a shuffle service"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        #: Since when a service has had an attempt that does not count.
        self._unwanted: dict[tuple[str, AttemptKey], float] = {}
        self._leaving: dict[str, _Leaving] = {}

    def check(self) -> None:
        """Compare what services have with what counts."""
        leader = max(self.view.leaders(), key=_epoch, default=None)
        services = [
            (worker, worker.service)
            for worker in self.view.workers()
            if worker.service is not None and _obeys(worker, leader)
        ]
        calm_s = self.view.calm_since_s
        if leader is None or not services or calm_s is None:
            self._unwanted, self._leaving = {}, {}
            return
        now_s = self.view.now_s
        unwanted = {
            (worker.name, key): self._unwanted.get((worker.name, key), now_s)
            for worker, service in services
            for key in _unwanted(leader, worker, service)
        }
        for (name, key), since_s in unwanted.items():
            if now_s - max(since_s, calm_s) > self.view.patience_s:
                self.broken(f"{name} still has {key}, which does not count")
        self._unwanted = unwanted
        self._judge_leaving(leader, [w for w, service in services if service.draining], calm_s)

    def _judge_leaving(self, leader: LeaderView, drained: list[WorkerView], calm_s: float) -> None:
        now_s = self.view.now_s
        leaving: dict[str, _Leaving] = {}
        graphs = [job.scheduler.graph for job in leader.jobs]
        known = {graph.job_id for graph in graphs}
        waits = any(job.acknowledged and job.job_id not in known for job in self._going_on())
        for worker in drained:
            if waits or any(_needs(graph, worker.worker_id) for graph in graphs):
                continue
            state = self._leaving.get(worker.name) or _Leaving(_running(graphs), now_s)
            running = _running(graphs)
            state.readers = {key: None for key in state.readers if key in running}
            if state.readers:
                state.since_s = now_s
            leaving[worker.name] = state
            if now_s - max(state.since_s, calm_s) > self.view.patience_s:
                self.broken(f"{worker.name} is drained, nothing needs it, and it does not leave")
        self._leaving = leaving

    def _going_on(self) -> Iterator[SubmittedJob]:
        for job_id, job in self.view.jobs.items():
            if archived(self.view, job_id) is None:
                yield job


def _epoch(leader: LeaderView) -> int:
    return leader.epoch


def _obeys(worker: WorkerView, leader: LeaderView | None) -> bool:
    """Whether a service can know what its leader wants."""
    if leader is None or leader.paused or worker.paused:
        return False
    return worker.registered_epoch == leader.epoch


def _unwanted(
    leader: LeaderView, worker: WorkerView, service: ServiceFacts
) -> Iterator[AttemptKey]:
    held = [AttemptKey.from_proto(e.attempt) for e in worker.finished.inventory()]
    for key in (*held, *service.incoming):
        job = leader.job(key.job_id)
        if job is None or job.scheduler.graph.state is not JobState.RUNNING:
            continue
        if not _counts(job.scheduler.graph, key, worker.worker_id, service):
            yield key


def _counts(graph: ExecutionGraph, key: AttemptKey, worker_id: str, service: ServiceFacts) -> bool:
    vertex = graph.find(key)
    if vertex is None or vertex.key(graph.job_id) != key:
        return False
    if vertex.state in ACTIVE_EXECUTION_STATES:
        return True
    if vertex.state is not ExecutionState.FINISHED or graph.vertices[key.vertex_id].released:
        return False
    # Who is to leave keeps what has been copied elsewhere: readers were told of it.
    return vertex.stored_at == worker_id or service.draining


def _needs(graph: ExecutionGraph, worker_id: str) -> bool:
    if graph.state in (JobState.CREATED, JobState.RECONCILING):
        return True
    return any(v.available and graph.needed(v) for v in graph.at_worker(worker_id))


def _running(graphs: list[ExecutionGraph]) -> dict[AttemptKey, None]:
    return {vertex.key(graph.job_id): None for graph in graphs for vertex in graph.active()}
