"""Which subtasks must run again: the closure of a loss, and the restart strategy of failures.

The set to reset is closed before anything is scheduled (P12, P16): upstream, until every input of
everything that will run is there; downstream, where an indeterminate producer runs again and its
old rows were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdover.v1 import events_pb2
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.states import ACTIVE_EXECUTION_STATES, ExecutionState
from jobmanager.scheduler.vertices import (
    Edge,
    ExecutionJobVertex,
    ExecutionVertex,
    SubtaskId,
)

#: Such subtasks run again though no subtask may read them any more.
_NEEDED_OR_NOT = (
    events_pb2.RESET_REASON_STAGED_FILES_LOST,
    events_pb2.RESET_REASON_SPLITS_UNKNOWN,
)

LostSubtask = tuple[ExecutionVertex, events_pb2.ResetReason.ValueType]
"""A finished subtask whose output is gone, and why."""


@dataclass(slots=True)
class ResetPlan:
    """What one loss costs."""

    #: Finished subtasks that go back to CREATED, with the reason, in the order in which they were
    #: found.
    resets: dict[SubtaskId, events_pb2.ResetReason.ValueType] = field(default_factory=dict)
    #: Active subtasks that have read (or may be reading) rows that will not come again, or that
    #: read from a worker which is gone.
    restarts: dict[SubtaskId, None] = field(default_factory=dict)
    #: Finished subtasks whose output what runs again needs, and may still get without a rerun.
    awaited: dict[SubtaskId, None] = field(default_factory=dict)


def plan_resets(
    graph: ExecutionGraph,
    lost: Iterable[LostSubtask],
    may_come_back: Callable[[ExecutionVertex], bool] = lambda _: False,
) -> ResetPlan:
    """Close a set of lost finished subtasks, each with its ResetReason.

    `may_come_back` tells of a finished subtask that is not available whether its worker may still
    return with its output: then it is not lost. Lost subtasks that nobody needs any more are left
    alone (P17), unless something that reruns needs them.
    """
    plan = ResetPlan()
    pending: list[ExecutionVertex] = []
    seen_edges: set[tuple[int, bool]] = set()

    def add(vertex: ExecutionVertex, reason: events_pb2.ResetReason.ValueType) -> None:
        if vertex.state is ExecutionState.FINISHED and vertex.id not in plan.resets:
            plan.resets[vertex.id] = reason
            pending.append(vertex)

    for vertex, reason in lost:
        if graph.needed(vertex) or reason in _NEEDED_OR_NOT:
            add(vertex, reason)
    while pending:
        vertex = pending.pop()
        owner = graph.vertices[vertex.vertex_id]
        if owner.splits_unknown:
            # What its other subtasks have read cannot be told from what is left to read.
            for sibling in owner.subtasks:
                add(sibling, events_pb2.RESET_REASON_SPLITS_UNKNOWN)
        for edge in owner.in_edges:
            for producer in _across(graph, edge, vertex, upstream=True, seen=seen_edges):
                if producer.available:
                    continue
                if producer.state is ExecutionState.FINISHED and may_come_back(producer):
                    plan.awaited[producer.id] = None
                else:
                    add(producer, events_pb2.RESET_REASON_UPSTREAM_CLOSURE)
        # Readers would go on asking a dead worker until their own patience ends.
        unreadable = plan.resets[vertex.id] == events_pb2.RESET_REASON_WORKER_LOST
        for edge in _edges_to_follow(owner, unreadable):
            for consumer in _across(graph, edge, vertex, upstream=False, seen=seen_edges):
                if consumer.state in ACTIVE_EXECUTION_STATES:
                    plan.restarts[consumer.id] = None
                if edge.rows_differ:
                    add(consumer, events_pb2.RESET_REASON_INDETERMINATE_PRODUCER)
    return plan


def _edges_to_follow(owner: ExecutionJobVertex, unreadable: bool) -> Iterable[Edge]:
    """The exchanges whose readers a rerun of a producer concerns."""
    return (edge for edge in owner.out_edges if unreadable or edge.rows_differ)


def _across(
    graph: ExecutionGraph,
    edge: Edge,
    vertex: ExecutionVertex,
    *,
    upstream: bool,
    seen: set[tuple[int, bool]],
) -> Iterable[ExecutionVertex]:
    """The subtasks at the other end of an edge; an all-to-all edge is walked once for a whole
    plan.
    """
    others = graph.vertices[edge.source if upstream else edge.target].subtasks
    if edge.forward:
        return others[vertex.subtask : vertex.subtask + 1]
    if (edge.index, upstream) in seen:
        return ()
    seen.add((edge.index, upstream))
    return others


@dataclass(slots=True)
class RestartStrategy:
    """How often failed subtasks run again, and after which delay (`restart-strategy.type`).

    The count is over the whole job and over its leader's life. `backoff_multiplier` 1 is the fixed
    delay.
    """

    attempts_max: int
    delay_s: float
    backoff_multiplier: float = 1.0
    delay_s_max: float = float("inf")
    jitter_factor: float = 0.0
    restarts: int = 0
    _last_delay_s: float = field(default=0.0, init=False)

    def next_delay_s(self) -> float | None:
        """Count a failure: the delay before its subtask runs again; None when the job must fail."""
        if self.restarts >= self.attempts_max:
            return None
        # Step by step: a power of the multiplier would overflow where restarts have no limit.
        delay = self._last_delay_s * self.backoff_multiplier if self.restarts else self.delay_s
        self._last_delay_s = min(delay, self.delay_s_max)
        self.restarts += 1
        return self._last_delay_s
