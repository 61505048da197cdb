"""What a new leader awaits from the workers of its predecessors (FLIP-383, "recover from job
events").

Partitions to *reserve* (producer finished, some consumer not) are awaited until their worker
registers. The wait ends when nothing is awaited any more, or by its timer. Beside it runs a short
adoption window: a previous worker that has not registered yet may hold finished work that the log
has lost, so until all previous workers are back, or the window's timer fires, no subtask is
deployed that such an offer could finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat

from holdover.v1 import events_pb2
from jobmanager.scheduler.deferred_offers import DeferredOffers
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.states import ExecutionState
from jobmanager.scheduler.vertices import ExecutionJobVertex, ExecutionVertex, SubtaskId

WAIT_TIMER = "recovery-wait"
ADOPTION_TIMER = "recovery-adoption"


@dataclass(slots=True)
class VertexCounts:
    """What became of one vertex's subtasks in this recovery."""

    finished_at_replay: int = 0
    adopted: int = 0
    resets: dict[events_pb2.ResetReason.ValueType, int] = field(default_factory=dict)


@dataclass(slots=True)
class WorkerOffer:
    """What one worker offered first to this leader."""

    offered: int
    accepted: int
    late: bool


class Reconciliation:
    """The bookkeeping of one recovery of one job."""

    def __init__(self, graph: ExecutionGraph, previous_workers: Iterable[str]) -> None:
        self._graph = graph
        #: Resource ids that the leaders before knew, in the order of the record and the log.
        self.previous_workers = dict.fromkeys((*previous_workers, *graph.workers()))
        #: Those of them that have not registered yet.
        self.outstanding = dict(self.previous_workers)
        #: Finished subtasks whose partitions are to be reserved and have not been offered yet.
        self.awaited: dict[SubtaskId, None] = {}
        for owner in graph.vertices.values():
            self.awaited.update(_needed(graph, owner))
        #: Awaited partitions that are known to be gone; reset together when the wait ends.
        self.missing: dict[SubtaskId, None] = {}
        #: Offers of unlogged work whose producers' own (unlogged) work has not been offered yet.
        self.deferred = DeferredOffers(graph)
        #: What each worker offered when it registered first.
        self.offers: dict[str, WorkerOffer] = {}
        self.waiting = True
        self.adopting = bool(self.previous_workers)
        self.ended_early = False
        #: Bytes of the partitions that were offered and taken.
        self.bytes_kept = 0
        self.counts = {vertex_id: VertexCounts() for vertex_id in graph.vertices}
        for vertex_id, owner in graph.vertices.items():
            self.counts[vertex_id].finished_at_replay = owner.finished_count

    @property
    def open(self) -> bool:
        """Whether a worker's first offer still comes in time."""
        return self.waiting or self.adopting

    def is_late(self, worker_id: str) -> bool:
        """Whether this worker's offers of earlier epochs are rejected.

        Only a worker whose *first* offer to this leader comes after the wait is late; what it says
        later about the same work does not change that, and repeating an accepted offer changes
        nothing.
        """
        offer = self.offers.get(worker_id)
        return offer.late if offer is not None else not self.open

    def offered(self, worker_id: str, offered: int, accepted: int) -> None:
        """Note a worker's first offer; when all previous workers have come the adoption window
        closes.
        """
        if worker_id not in self.offers:
            self.offers[worker_id] = WorkerOffer(offered, accepted, late=not self.open)
        self.outstanding.pop(worker_id, None)
        if not self.outstanding:
            self.adopting = False

    def may_come_back(self, vertex: ExecutionVertex) -> bool:
        """Whether the worker of a finished subtask may still register with its partitions."""
        if not self.waiting:
            return False
        return vertex.id in self.awaited or vertex.stored_at in self.outstanding

    def not_awaited(self, vertex: ExecutionVertex) -> None:
        """Its subtask runs again, whatever its worker brings back."""
        self.awaited.pop(vertex.id, None)
        self.missing.pop(vertex.id, None)

    def all_finished(self, owner: ExecutionJobVertex) -> None:
        """A vertex has finished, by adoption for example: what only it would have read is not
        awaited any more."""
        if not self.awaited:
            return
        for edge in owner.in_edges:
            for vertex in self._graph.vertices[edge.source].subtasks:
                if vertex.id in self.awaited and not self._graph.needed(vertex):
                    del self.awaited[vertex.id]

    def found(self, vertex: ExecutionVertex) -> None:
        """An awaited partition was offered."""
        self.not_awaited(vertex)

    def count_reset(
        self, vertex: ExecutionVertex, reason: events_pb2.ResetReason.ValueType
    ) -> None:
        """Work that an earlier leader saw finished must run again."""
        resets = self.counts[vertex.vertex_id].resets
        resets[reason] = resets.get(reason, 0) + 1

    def gone(self, vertex: ExecutionVertex) -> None:
        """An awaited partition is known not to come: its worker is back without it, or lost."""
        if self.awaited.pop(vertex.id, 0) is None:
            self.missing[vertex.id] = None


def _needed(graph: ExecutionGraph, owner: ExecutionJobVertex) -> dict[SubtaskId, None]:
    """The finished subtasks of a vertex that some unfinished consumer reads; quick where all of a
    large vertex are."""
    alike = not any(edge.forward for edge in owner.out_edges)
    if alike and owner.all_finished:
        names = zip(repeat(owner.vertex_id), range(owner.parallelism))
        return dict.fromkeys(names) if graph.needed(owner.subtasks[0]) else {}
    return {
        v.id: None for v in owner.subtasks if v.state is ExecutionState.FINISHED and graph.needed(v)
    }
