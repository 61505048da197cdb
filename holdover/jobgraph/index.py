"""Look-ups over a JobGraph: who produces and consumes what, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdover.v1.job_pb2 import Distribution, JobEdge, JobGraph, JobVertex


@dataclass(frozen=True, slots=True)
class JobGraphIndex:
    """Look-ups over one graph whose edges name vertices and outputs that exist.

    Attributes:
        vertices: by vertex id, in the graph's order.
        inputs: the edges into each vertex, in the graph's order.
        outputs: the edges out of each vertex, in the graph's order.
    """

    vertices: Mapping[str, JobVertex]
    inputs: Mapping[str, tuple[JobEdge, ...]]
    outputs: Mapping[str, tuple[JobEdge, ...]]

    @classmethod
    def of(cls, graph: JobGraph) -> JobGraphIndex:
        """The look-ups of `graph`; raises KeyError when an edge leads to nowhere."""
        vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
        inputs: dict[str, list[JobEdge]] = {vertex_id: [] for vertex_id in vertices}
        outputs: dict[str, list[JobEdge]] = {vertex_id: [] for vertex_id in vertices}
        for edge in graph.edges:
            outputs[edge.source_vertex_id].append(edge)
            inputs[edge.target_vertex_id].append(edge)
        return cls(
            vertices,
            {vertex_id: tuple(edges) for vertex_id, edges in inputs.items()},
            {vertex_id: tuple(edges) for vertex_id, edges in outputs.items()},
        )

    def producers(self, vertex_id: str) -> tuple[str, ...]:
        """Ids of the vertices that the vertex reads, each once, in the order of its edges."""
        return tuple(dict.fromkeys(edge.source_vertex_id for edge in self.inputs[vertex_id]))

    def consumers(self, vertex_id: str, output: int | None = None) -> tuple[str, ...]:
        """Ids of the vertices that read the vertex (or only its data set `output`), each once."""
        return tuple(
            dict.fromkeys(
                edge.target_vertex_id
                for edge in self.outputs[vertex_id]
                if output is None or edge.source_output == output
            )
        )

    def distribution(self, edge: JobEdge) -> Distribution:
        """How rows are spread over this edge's consumers."""
        return self.vertices[edge.source_vertex_id].outputs[edge.source_output].distribution

    def input_count(self, vertex_id: str) -> int:
        """Number of inputs of the vertex; edges with the same input (a union) count once."""
        return max((edge.target_input + 1 for edge in self.inputs[vertex_id]), default=0)

    def topological_order(self) -> tuple[str, ...]:
        """Vertex ids with every producer before its consumers.

        Of several possible orders, the one in which a vertex comes as soon as its last producer
        is there, ties in the graph's order. Vertices on or behind a cycle are left out.
        """
        missing = {vertex_id: len(self.producers(vertex_id)) for vertex_id in self.vertices}
        order = [vertex_id for vertex_id, count in missing.items() if count == 0]
        for vertex_id in order:
            for consumer in self.consumers(vertex_id):
                missing[consumer] -= 1
                if missing[consumer] == 0:
                    order.append(consumer)
        return tuple(order)


def find_cycle(index: JobGraphIndex) -> Sequence[str]:
    """Ids of the vertices on one cycle, each feeding the next; empty when there is none."""
    ordered = frozenset(index.topological_order())
    left = [vertex_id for vertex_id in index.vertices if vertex_id not in ordered]
    if not left:
        return ()
    order = {vertex_id: number for number, vertex_id in enumerate(left)}
    # Every vertex that is left has a producer that is left: going upstream must meet itself.
    path: list[str] = []
    position: dict[str, int] = {}
    here = left[0]
    while here not in position:
        position[here] = len(path)
        path.append(here)
        here = next(id_ for id_ in index.producers(here) if id_ not in ordered)
    cycle = path[position[here] :][::-1]
    first = min(range(len(cycle)), key=lambda i: order[cycle[i]])
    return cycle[first:] + cycle[:first]
