"""Offers of finished work that can be judged only when other workers have offered theirs, or when
a vertex has its shape again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.states import ExecutionState
from jobmanager.scheduler.vertices import ExecutionVertex, SubtaskId

_WHOLE_VERTEX = -1
_SHAPE = -2


@dataclass(frozen=True, slots=True)
class DeferredOffer:
    """Finished work without an event: an attempt, what it left behind, and where."""

    key: AttemptKey
    worker_id: str
    execution: common_pb2.FinishedExecution


class DeferredOffers:
    """Offers of unlogged work whose producers' own (unlogged) work has not been offered yet.

    Each waits behind one producer that has not finished, so that a worker's registration costs what
    it brings and what its work makes ready, however many offers wait.
    """

    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph
        self._place = {vertex_id: place for place, vertex_id in enumerate(graph.vertices)}
        #: By attempt and by who offers it: two shuffle services may have copies of it.
        self._offers: dict[AttemptKey, dict[str, DeferredOffer]] = {}
        self._at_worker: dict[str, dict[AttemptKey, None]] = {}
        #: By the subtask whose end decides about an offer: the one it waits behind, or its own.
        self._behind: dict[SubtaskId, list[AttemptKey]] = {}
        self._ready: list[AttemptKey] = []

    def __len__(self) -> int:
        return len(self._offers)

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._offers

    def __iter__(self) -> Iterator[AttemptKey]:
        return iter(self._offers)

    def defer(self, offer: DeferredOffer, vertex: ExecutionVertex) -> bool:
        """Keep an offer until all producers of its subtask have finished; False if they have."""
        producer = self._unfinished_producer(vertex)
        if producer is None:
            return False
        self._keep(offer, producer, vertex.id)
        return True

    def defer_until_shaped(self, offer: DeferredOffer) -> None:
        """Keep an offer for as long as its vertex has no shape."""
        self._keep(offer, (offer.key.vertex_id, _SHAPE))

    def shaped(self, vertex_id: str) -> None:
        """A vertex has taken its shape: what was offered of it may be judged."""
        self._ready += self._behind.pop((vertex_id, _SHAPE), ())

    def _keep(self, offer: DeferredOffer, *behind: SubtaskId) -> None:
        self._offers.setdefault(offer.key, {})[offer.worker_id] = offer
        self._at_worker.setdefault(offer.worker_id, {})[offer.key] = None
        for subtask in behind:
            self._behind.setdefault(subtask, []).append(offer.key)

    def finished(self, vertex: ExecutionVertex) -> None:
        """A subtask has finished, here or by adoption: what waits for it may be judged."""
        if not self._offers:
            return
        self._ready += self._behind.pop(vertex.id, ())
        if self._graph.vertices[vertex.vertex_id].all_finished:
            self._ready += self._behind.pop((vertex.vertex_id, _WHOLE_VERTEX), ())

    def take_ready(self) -> list[DeferredOffer]:
        """Take the offers that may be judged now, out of those that wait; producers stand first."""
        ready, self._ready = dict.fromkeys(self._ready), []
        offers = [offer for key in ready for offer in self._take(key)]
        return sorted(offers, key=lambda offer: self._place[offer.key.vertex_id])

    def take_all(self) -> list[DeferredOffer]:
        """Take every offer, the oldest first."""
        offers = [offer for holders in self._offers.values() for offer in holders.values()]
        for index in (self._offers, self._at_worker, self._behind):
            index.clear()
        self._ready.clear()
        return offers

    def forget_worker(self, worker_id: str) -> None:
        """A worker is gone, or says anew what it holds."""
        for key in self._at_worker.pop(worker_id, ()):
            del self._offers[key][worker_id]
            if not self._offers[key]:
                del self._offers[key]

    def _take(self, key: AttemptKey) -> Iterable[DeferredOffer]:
        """What it waited behind may go on naming it: of offers that are gone there is nothing."""
        offers = self._offers.pop(key, {})
        for worker_id in offers:
            del self._at_worker[worker_id][key]
        return offers.values()

    def _unfinished_producer(self, vertex: ExecutionVertex) -> SubtaskId | None:
        """A subtask, or a whole vertex, that must have finished before the offer counts: it must
        have read what the log says its producers left behind.
        """
        for edge in self._graph.vertices[vertex.vertex_id].in_edges:
            source = self._graph.vertices[edge.source]
            if source.all_finished:
                continue
            if not edge.forward:
                return (edge.source, _WHOLE_VERTEX)
            producers = source.subtasks[vertex.subtask : vertex.subtask + 1]
            if not producers or producers[0].state is not ExecutionState.FINISHED:
                return (edge.source, vertex.subtask)
        return None
