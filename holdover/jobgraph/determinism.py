"""What a second run of a vertex produces, from what its operators promise and what it reads.

A vertex is determinate (same rows, same order), unordered (same rows over all of its subtasks, any
order) or indeterminate (perhaps other rows). When a subtask of an indeterminate vertex runs again,
whoever read its old output must run again as well, or the job would mix two outcomes.
"""

from __future__ import annotations

from holdover.v1 import job_pb2
from holdover.v1.job_pb2 import JobGraph, JobVertex

#: Exchanges that place a row by its position, not by its value.
_POSITIONAL = (job_pb2.DISTRIBUTION_KIND_REBALANCE, job_pb2.DISTRIBUTION_KIND_FORWARD)


def determinism_of(graph: JobGraph) -> dict[str, int]:
    """Determinism of each vertex of a valid graph, by vertex id in the graph's order."""
    kinds = {v.vertex_id: [o.distribution.kind for o in v.outputs] for v in graph.vertices}
    read: dict[str, list[tuple[str, int]]] = {}
    for edge in graph.edges:
        producer = edge.source_vertex_id
        kind = kinds[producer][edge.source_output]
        read.setdefault(edge.target_vertex_id, []).append((producer, kind))
    levels: dict[str, int] = {}
    for vertex in graph.vertices:  # every producer stands before its consumers
        inputs = read.get(vertex.vertex_id, ())
        level = max((exchanged(levels[producer], kind) for producer, kind in inputs), default=0)
        start = max(level, int(job_pb2.DETERMINISM_DETERMINATE))
        levels[vertex.vertex_id] = _through_chain(vertex, start)
    return levels


def exchanged(produced: int, kind: int) -> int:
    """Determinism of what consumers read: unordered rows that are dealt out by position differ."""
    if produced == job_pb2.DETERMINISM_UNORDERED and kind in _POSITIONAL:
        return job_pb2.DETERMINISM_INDETERMINATE
    return produced


def _through_chain(vertex: JobVertex, level: int) -> int:
    for operator in vertex.operators:
        if operator.HasField("key_sample") and level == job_pb2.DETERMINISM_UNORDERED:
            level = job_pb2.DETERMINISM_INDETERMINATE  # it takes rows by their position
        level = max(level, operator.determinism)
        if operator.source.splits_unrecorded:
            level = job_pb2.DETERMINISM_INDETERMINATE  # the next list may name other files
    return level
