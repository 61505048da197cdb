"""From operators to vertices: chaining, exchanges, numbers of subtasks, range expansion."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from holdover import config
from holdover.api.functions import pickled
from holdover.api.identity import UNCHANGED
from holdover.api.plan import Exchanging, Node, Part, Plan, Port
from holdover.errors import JobGraphError
from holdover.jobgraph import validate
from holdover.v1 import job_pb2

_KINDS: Mapping[str, job_pb2.DistributionKind.ValueType] = {
    "hash": job_pb2.DISTRIBUTION_KIND_HASH,
    "rebalance": job_pb2.DISTRIBUTION_KIND_REBALANCE,
    "broadcast": job_pb2.DISTRIBUTION_KIND_BROADCAST,
    "forward": job_pb2.DISTRIBUTION_KIND_FORWARD,
    "range": job_pb2.DISTRIBUTION_KIND_RANGE,
}
#: Rows that each subtask contributes to the sample of a range exchange: a floor, and per range.
_SAMPLE_ROWS_MIN = 1_000
_SAMPLE_ROWS_PER_RANGE = 20
_VERTEX_NAME_CHARACTERS_MAX = 200


@dataclass(eq=False, slots=True)
class _Vertex:
    """A vertex in the making.

    Attributes:
        number: order of making.
        parallelism: number of subtasks; 0 for adaptive.
        lead: what decides the number of subtasks: itself, or the vertex that forwards to it.
        inputs: number of its inputs so far.
        edges: (producer, producer's output, input), in the order of making.
        outputs: its data sets by what makes them equal.
    """

    number: int
    parallelism: int
    lead: _Vertex | None = None
    operators: list[job_pb2.Operator] = field(default_factory=list)
    inputs: int = 0
    edges: list[tuple[_Vertex, int, int]] = field(default_factory=list)
    outputs: dict[tuple[str, tuple[str, ...], int, int], int] = field(default_factory=dict)

    def output(self, exchanging: Exchanging, subpartitions: int, boundaries_input: int = 0) -> int:
        """Index of the data set that is spread this way; equal exchanges share one."""
        key = (exchanging.kind, exchanging.keys, subpartitions, boundaries_input)
        return self.outputs.setdefault(key, len(self.outputs))


def assemble(plan: Plan, options: Mapping[str, str], graph: job_pb2.JobGraph) -> None:
    """Adds the vertices and edges of `plan` to `graph`, which holds all else already.

    Raises JobGraphError naming the operator that cannot be placed.
    """
    attached = frozenset(file.name.removesuffix(".py") for file in graph.files)
    vertices = _Assembly(plan, options, attached).vertices()
    ordered = list(_in_order(vertices))
    names = {vertex: f"v{position}" for position, vertex in enumerate(ordered)}
    for vertex in ordered:
        graph.vertices.append(_vertex_message(vertex, names[vertex]))
        for producer, output, input_ in vertex.edges:
            graph.edges.add(
                source_vertex_id=names[producer],
                source_output=output,
                target_vertex_id=names[vertex],
                target_input=input_,
            )
    validate(graph)


class _Assembly:
    """Places one operator after the other."""

    def __init__(
        self, plan: Plan, options: Mapping[str, str], attached_modules: frozenset[str]
    ) -> None:
        self._plan = plan
        self._attached_modules = attached_modules
        self._default = _option(config.PARALLELISM_DEFAULT, options)
        self._parallelism_max = _option(config.AUTO_PARALLELISM_MAX_PARALLELISM, options)
        self._vertices: list[_Vertex] = []
        #: Where the last operator of each node's chain stands.
        self._places: dict[Node, _Vertex] = {}
        #: Vertices that spread a port by range, by the port and the number of ranges.
        self._ranges: dict[tuple[Port, int], list[_Vertex]] = {}
        self._readers: dict[Node, int] = {}
        for node in plan.nodes:
            for part in node.parts():
                self._readers[part.node] = self._readers.get(part.node, 0) + 1

    def vertices(self) -> list[_Vertex]:
        """All vertices, in the order of making."""
        for node in self._plan.nodes:
            self._place(node)
        return self._vertices

    def _place(self, node: Node) -> None:
        operator = self._operator(node)
        chained = self._chained_port(node)
        if chained is None:
            vertex = self._new_vertex(self._parallelism(node))
        else:
            vertex = self._places[node.ports[chained][0].node]
        self._places[node] = vertex
        vertex.operators.append(operator)
        for position, port in enumerate(node.ports):
            input_ = -1
            if position != chained:
                input_ = vertex.inputs
                vertex.inputs += 1
                self._connect(node, port, vertex, input_)
            if operator.HasField("sql"):
                operator.sql.inputs[position].vertex_input = input_

    def _operator(self, node: Node) -> job_pb2.Operator:
        operator = job_pb2.Operator()
        operator.CopyFrom(node.operator)
        if node.function is not None:
            operator.function.pickled = pickled(node.function, node.name, self._attached_modules)
        return operator

    def _new_vertex(self, parallelism: int) -> _Vertex:
        vertex = _Vertex(len(self._vertices), parallelism)
        self._vertices.append(vertex)
        return vertex

    def _chained_port(self, node: Node) -> int | None:
        """The port whose producer the operator joins: the first plain one, if it may."""
        for position, port in enumerate(node.ports):
            if len(port) != 1 or port[0].exchanging is not None:
                continue
            producer = port[0].node
            vertex = self._places[producer]
            alone = self._readers[producer] == 1
            # Whoever reads splits cannot be one of those over whom rows are spread.
            fits = not (vertex.operators[0].HasField("source") and self._spreads(node, position))
            if alone and fits and node.parallelism in (None, vertex.parallelism):
                return position
            return None
        return None

    def _spreads(self, node: Node, chained: int) -> bool:
        """Whether rows of another input than `chained` are spread over the operator's subtasks."""
        others = [port for position, port in enumerate(node.ports) if position != chained]
        return any(
            part.exchanging is not None and part.exchanging.kind in ("hash", "rebalance", "range")
            for port in others
            for part in port
        )

    def _parallelism(self, node: Node) -> int:
        if node.parallelism is not None:
            return node.parallelism
        parts = list(node.parts())
        for part in parts:
            if self._forwards(node, part):
                return self._places[part.node].parallelism
        if parts and all(part.exchanging == Exchanging("broadcast") for part in parts):
            return 1
        return max(self._default, 0)

    def _forwards(self, node: Node, part: Part) -> bool:
        """Whether the part comes subtask by subtask, by the user's word or for want of another."""
        if part.exchanging is not None:
            return part.exchanging.kind == "forward"
        if len(node.ports) > 1:
            return True
        agree = node.parallelism in (None, self._places[part.node].parallelism)
        return agree and len(node.ports[0]) == 1

    def _connect(self, node: Node, port: Port, vertex: _Vertex, input_: int) -> None:
        ranged = [part for part in port if part.exchanging and part.exchanging.kind == "range"]
        if ranged:
            self._connect_ranges(node, ranged, vertex, input_)
        for part in port:
            if part in ranged:
                continue
            producer = self._places[part.node]
            if self._forwards(node, part):
                self._tie(node, part, producer, vertex)
                self._join(producer, Exchanging("forward"), vertex, input_)
            else:
                self._join(producer, part.exchanging or Exchanging("rebalance"), vertex, input_)

    def _join(
        self, producer: _Vertex, exchanging: Exchanging, vertex: _Vertex, input_: int
    ) -> None:
        subpartitions = 1
        if exchanging.kind in ("hash", "rebalance"):
            subpartitions = vertex.parallelism or self._parallelism_max
        vertex.edges.append((producer, producer.output(exchanging, subpartitions), input_))

    def _tie(self, node: Node, part: Part, producer: _Vertex, vertex: _Vertex) -> None:
        """Forward needs the same number of subtasks on both sides, now and when it is adaptive."""
        lead = producer.lead or producer
        agree = producer.parallelism == vertex.parallelism
        decided = vertex if vertex.operators[0].HasField("source") else vertex.lead
        if vertex.parallelism == 0 and decided not in (None, lead):
            agree = False
        if not agree:
            raise JobGraphError(
                node.name,
                f"cannot read {part.node.name!r} subtask by subtask:"
                f" {_told(producer.parallelism)} subtasks there, {_told(vertex.parallelism)} here;"
                " exchange it with hash(), broadcast() or rebalance(), or give both the same"
                " parallelism",
            )
        vertex.lead = lead

    def _connect_ranges(self, node: Node, port: list[Part], vertex: _Vertex, input_: int) -> None:
        exchangings = {part.exchanging for part in port}
        exchanging = port[0].exchanging
        if len(exchangings) != 1 or exchanging is None:
            raise JobGraphError(node.name, "reads a union of ranges over different keys")
        ranges = vertex.parallelism or self._parallelism_max
        shared = (tuple(port), ranges)
        if shared not in self._ranges:
            self._ranges[shared] = self._spread_by_range(port, exchanging, ranges)
        for spreading in self._ranges[shared]:
            # Input 1 of a spreading vertex carries the boundaries.
            vertex.edges.append((spreading, spreading.output(exchanging, ranges, 1), input_))

    def _spread_by_range(
        self, port: list[Part], exchanging: Exchanging, ranges: int
    ) -> list[_Vertex]:
        """Vertices that read the parts again, once samples have told where the ranges begin."""
        keys = exchanging.keys
        told = ", ".join(keys)
        rows_max = max(_SAMPLE_ROWS_MIN, _SAMPLE_ROWS_PER_RANGE * ranges)
        samples = [
            self._follow(
                self._places[part.node],
                job_pb2.Operator(
                    name=f"sample({told})",
                    determinism=job_pb2.DETERMINISM_DETERMINATE,
                    key_sample=job_pb2.KeySample(keys=keys, rows_max=rows_max),
                ),
            )
            for part in port
        ]
        boundaries = self._new_vertex(1)
        boundaries.inputs = 1
        boundaries.operators.append(
            job_pb2.Operator(
                name=f"boundaries({told})",
                determinism=job_pb2.DETERMINISM_DETERMINATE,
                range_boundaries=job_pb2.RangeBoundaries(keys=keys, ranges=ranges),
            )
        )
        for sample in samples:
            self._join(sample, Exchanging("broadcast"), boundaries, 0)
        spreading = [
            self._follow(
                self._places[part.node],
                job_pb2.Operator(
                    name=f"range({told})",
                    determinism=job_pb2.DETERMINISM_DETERMINATE,
                    function=job_pb2.PythonFunction(reference=UNCHANGED),
                ),
            )
            for part in port
        ]
        for vertex in spreading:
            vertex.inputs += 1
            self._join(boundaries, Exchanging("broadcast"), vertex, 1)
        return spreading

    def _follow(self, producer: _Vertex, operator: job_pb2.Operator) -> _Vertex:
        """A vertex that reads `producer` subtask by subtask."""
        vertex = self._new_vertex(producer.parallelism)
        vertex.lead = producer.lead or producer
        vertex.operators.append(operator)
        vertex.inputs = 1
        self._join(producer, Exchanging("forward"), vertex, 0)
        return vertex


def _option(option: config.Option[int], options: Mapping[str, str]) -> int:
    return option.type.parse(options.get(option.key, option.default))


def _told(parallelism: int) -> str:
    return str(parallelism) if parallelism else "an adaptive number of"


def _in_order(vertices: list[_Vertex]) -> Iterator[_Vertex]:
    """Every producer before its consumers; of those that are possible the first made first."""
    missing = {vertex: len({edge[0].number for edge in vertex.edges}) for vertex in vertices}
    consumers: dict[_Vertex, list[_Vertex]] = {vertex: [] for vertex in vertices}
    for vertex in vertices:
        for producer in dict.fromkeys(edge[0] for edge in vertex.edges):
            consumers[producer].append(vertex)
    ready = [vertex.number for vertex in vertices if missing[vertex] == 0]
    heapq.heapify(ready)
    while ready:
        vertex = vertices[heapq.heappop(ready)]
        yield vertex
        for consumer in consumers[vertex]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, consumer.number)


def _vertex_message(vertex: _Vertex, vertex_id: str) -> job_pb2.JobVertex:
    name = " -> ".join(operator.name for operator in vertex.operators)
    if len(name) > _VERTEX_NAME_CHARACTERS_MAX:
        name = name[: _VERTEX_NAME_CHARACTERS_MAX - 3] + "..."
    return job_pb2.JobVertex(
        vertex_id=vertex_id,
        name=name,
        parallelism=vertex.parallelism,
        operators=vertex.operators,
        outputs=[
            job_pb2.IntermediateDataSet(
                distribution=job_pb2.Distribution(
                    kind=_KINDS[kind], keys=keys, boundaries_input=boundaries_input
                ),
                subpartitions=subpartitions,
            )
            for kind, keys, subpartitions, boundaries_input in vertex.outputs
        ],
    )
