"""The shape of a vertex: its parallelism and the subpartitions that each subtask reads.

An explicit parallelism is taken as it is; a vertex behind a forward exchange has that of its
producer. Any other is decided when all inputs are finished: `parallelism.default` if it is set, or
from the bytes that they produced (Flink's adaptive batch scheduler; FLIP-187), and never more than
there are subpartitions to read. Once decided it is an event and never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from holdover.v1 import events_pb2, job_pb2
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.vertices import Edge, ExecutionJobVertex

SEQUENCE_VALUE_BYTES = 8


@dataclass(frozen=True, slots=True)
class AdaptiveParallelism:
    """What decides the parallelism of a vertex whose job does not say it."""

    parallelism_min: int
    parallelism_max: int
    bytes_per_task: int
    #: `parallelism.default`: the same for all; 0 decides from the bytes.
    parallelism_default: int = 0

    @property
    def splits_wanted(self) -> int:
        """Splits that a source needs so that all its subtasks find work."""
        return self.parallelism_default or self.parallelism_max

    def for_bytes(self, total_bytes: int) -> int:
        """The parallelism for so many input bytes."""
        wanted = -(-total_bytes // self.bytes_per_task)
        return max(self.parallelism_min, min(self.parallelism_max, wanted))


def split_bytes(split: job_pb2.Split) -> int:
    """Size of a split, bytes."""
    length = split.end - split.start
    return length if split.path else length * SEQUENCE_VALUE_BYTES


def initialize_source(
    owner: ExecutionJobVertex, splits: Sequence[job_pb2.Split], adaptive: AdaptiveParallelism
) -> events_pb2.ExecutionJobVertexInitialized:
    """The shape of a vertex that starts with a source, now that its splits are known."""
    parallelism = owner.vertex.parallelism or adaptive.parallelism_default
    if parallelism == 0:
        wanted = adaptive.for_bytes(sum(split_bytes(split) for split in splits))
        parallelism = max(1, min(wanted, len(splits)))
    return events_pb2.ExecutionJobVertexInitialized(
        vertex_id=owner.vertex_id,
        parallelism=parallelism,
        splits=splits if owner.splits_recorded else (),
        input_ranges=[_no_ranges(edge) for edge in owner.in_edges],
    )


def ready_to_initialize(graph: ExecutionGraph, owner: ExecutionJobVertex) -> bool:
    """Whether the shape of a vertex without a source can be decided now."""
    sources = [graph.vertices[edge.source] for edge in owner.in_edges]
    if not all(source.initialized for source in sources):
        return False
    explicit = owner.vertex.parallelism > 0 or any(edge.forward for edge in owner.in_edges)
    return explicit or all(source.all_finished for source in sources)


def initialize_vertex(
    graph: ExecutionGraph, owner: ExecutionJobVertex, adaptive: AdaptiveParallelism
) -> events_pb2.ExecutionJobVertexInitialized:
    """The shape of a vertex whose inputs allow the decision (`ready_to_initialize`).

    All hash inputs get the same bounds, so that equal keys of all of them meet in one subtask.
    """
    spread = [edge for edge in owner.in_edges if not edge.forward and not edge.broadcast]
    forward = next((edge for edge in owner.in_edges if edge.forward), None)
    widths = {edge.index: _width(graph, edge) for edge in spread}
    if owner.vertex.parallelism > 0:
        parallelism = owner.vertex.parallelism
    elif forward is not None:
        parallelism = graph.vertices[forward.source].parallelism
    else:
        total = sum(sum(_subpartition_bytes(graph, edge)) for edge in spread)
        wanted = adaptive.parallelism_default or adaptive.for_bytes(total)
        parallelism = min(wanted, *widths.values()) if widths else wanted
    weights: dict[int, list[int]] = {}
    for edge in spread:
        width = widths[edge.index]
        sums = weights.setdefault(width, [0] * width)
        for index, count in enumerate(_subpartition_bytes(graph, edge)):
            sums[index] += count
    ranges = []
    for edge in owner.in_edges:
        if edge.index not in widths:
            ranges.append(events_pb2.InputRanges())
        else:
            bounds = balanced_bounds(weights[widths[edge.index]], parallelism)
            ranges.append(events_pb2.InputRanges(bounds=bounds))
    return events_pb2.ExecutionJobVertexInitialized(
        vertex_id=owner.vertex_id, parallelism=parallelism, input_ranges=ranges
    )


def balanced_bounds(weights: Sequence[int], ranges: int) -> list[int]:
    """Cut `weights` into contiguous ranges of about equal sums, none of them empty as far as there
    are weights enough.

    Returns `ranges + 1` ascending bounds. With as many weights as ranges each range holds one, with
    fewer the last ranges are empty (a forward exchange may give a vertex more subtasks than another
    input has subpartitions). Weights that are all zero are not known yet and count as equal.
    """
    if len(weights) <= ranges:
        return [min(bound, len(weights)) for bound in range(ranges + 1)]
    sums = list(accumulate(weights if any(weights) else [1] * len(weights)))
    total = sums[-1]
    bounds = [0]
    position = 0
    for index in range(1, ranges):
        target = total * index / ranges
        first, last = bounds[-1] + 1, len(weights) - (ranges - index)
        position = max(position, first)
        while position < last and sums[position - 1] < target:
            position += 1
        bounds.append(position)
    return [*bounds, len(weights)]


def _no_ranges(edge: Edge) -> events_pb2.InputRanges:
    """A source's further inputs are broadcast or forward: they have no ranges."""
    if not edge.broadcast and not edge.forward:
        raise ValueError(f"vertex {edge.target} has a source and a {edge.kind} input")
    return events_pb2.InputRanges()


def _width(graph: ExecutionGraph, edge: Edge) -> int:
    output = graph.vertices[edge.source].vertex.outputs[edge.source_output]
    return output.subpartitions


def _subpartition_bytes(graph: ExecutionGraph, edge: Edge) -> list[int]:
    """Bytes of each subpartition over all finished producers; zeros where they are not known
    yet.
    """
    return graph.vertices[edge.source].subpartition_bytes[edge.source_output]
