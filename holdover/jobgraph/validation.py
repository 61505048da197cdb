"""Everything that a JobManager must refuse in a JobGraph, before it stores and schedules it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from holdover import ids
from holdover.config import check_job_option
from holdover.errors import ConfigurationError, InvalidId, JobGraphError
from holdover.jobgraph.index import JobGraphIndex, find_cycle
from holdover.jobgraph.operator_rules import (
    PARALLELISM_MAX,
    check_keys,
    check_name,
    check_operator,
)
from holdover.v1 import job_pb2
from holdover.v1.job_pb2 import JobEdge, JobGraph, JobVertex

GRAPH_BYTES_MAX = 256 << 20
VERTICES_MAX = 10_000
EDGES_MAX = 100_000
OPERATORS_PER_VERTEX_MAX = 256
OUTPUTS_PER_VERTEX_MAX = 1_024
FILES_MAX = 1_024

#: Vertices, or edges, of one step of the validation.
_PER_STEP = 200

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
#: Distributions with one subpartition for each subtask of the consumer, or more.
_PARTITIONED = (
    job_pb2.DISTRIBUTION_KIND_HASH,
    job_pb2.DISTRIBUTION_KIND_REBALANCE,
    job_pb2.DISTRIBUTION_KIND_RANGE,
)
_KEYED = (job_pb2.DISTRIBUTION_KIND_HASH, job_pb2.DISTRIBUTION_KIND_RANGE)
_KINDS = (
    *_PARTITIONED,
    job_pb2.DISTRIBUTION_KIND_BROADCAST,
    job_pb2.DISTRIBUTION_KIND_FORWARD,
)


def validate(graph: JobGraph) -> None:
    """Raises JobGraphError naming the first field that makes the graph impossible to run.

    Pure: it looks at nothing but the graph. Whether files, functions and columns exist shows when
    tasks run.
    """
    for _ in validation_steps(graph):
        pass


def validation_steps(graph: JobGraph) -> Iterator[None]:
    """`validate` in short steps, for who has other things to do between them."""
    if graph.ByteSize() > GRAPH_BYTES_MAX:
        raise JobGraphError(
            "", f"the job graph has {graph.ByteSize()} bytes; {GRAPH_BYTES_MAX} are allowed"
        )
    try:
        ids.job_id(graph.job_id)
    except InvalidId as error:
        raise JobGraphError("job_id", str(error)) from None
    check_name(graph.name, "name")
    _check_count(len(graph.vertices), VERTICES_MAX, "vertices", at_least=1)
    _check_count(len(graph.edges), EDGES_MAX, "edges")
    _check_options(graph)
    _check_files(graph)
    yield from _check_vertices(graph.vertices)
    yield from _check_edges(graph)
    index = JobGraphIndex.of(graph)
    yield
    yield from _check_order(graph, index)
    for position, vertex in enumerate(graph.vertices):
        _check_inputs(vertex, index, f"vertices[{position}]")
        if position % _PER_STEP == 0:
            yield
    yield from _check_exchanges(graph, index)
    _check_sinks_apart(graph)


def _check_count(count: int, count_max: int, field: str, at_least: int = 0) -> None:
    if count < at_least:
        raise JobGraphError(field, f"is empty: at least {at_least} is needed")
    if count > count_max:
        raise JobGraphError(field, f"has {count} entries; {count_max} are allowed")


def _check_options(graph: JobGraph) -> None:
    seen: dict[str, int] = {}
    for position, entry in enumerate(graph.options):
        field = f"options[{position}]"
        try:
            check_job_option(entry.key, entry.value, "the job's options")
        except ConfigurationError as error:
            raise JobGraphError(field, str(error)) from None
        if entry.key in seen:
            raise JobGraphError(field, f"{entry.key} is set already in options[{seen[entry.key]}]")
        seen[entry.key] = position


def _check_files(graph: JobGraph) -> None:
    _check_count(len(graph.files), FILES_MAX, "files")
    seen: dict[str, int] = {}
    for position, file in enumerate(graph.files):
        field = f"files[{position}].name"
        if _FILE_NAME.fullmatch(file.name) is None:
            raise JobGraphError(
                field,
                f"{file.name!r} is no plain file name: it must match {_FILE_NAME.pattern}",
            )
        if file.name in seen:
            raise JobGraphError(field, f"{file.name!r} is also files[{seen[file.name]}]")
        seen[file.name] = position


def _check_vertices(vertices: Sequence[JobVertex]) -> Iterator[None]:
    seen: dict[str, int] = {}
    for position, vertex in enumerate(vertices):
        if position % _PER_STEP == 0:
            yield
        field = f"vertices[{position}]"
        try:
            ids.vertex_id(vertex.vertex_id)
        except InvalidId as error:
            raise JobGraphError(f"{field}.vertex_id", str(error)) from None
        if vertex.vertex_id in seen:
            raise JobGraphError(
                f"{field}.vertex_id",
                f"{vertex.vertex_id!r} is also the id of vertices[{seen[vertex.vertex_id]}]",
            )
        seen[vertex.vertex_id] = position
        check_name(vertex.name, f"{field}.name")
        if not 0 <= vertex.parallelism <= PARALLELISM_MAX:
            raise JobGraphError(
                f"{field}.parallelism",
                f"{vertex.parallelism} must be 1 to {PARALLELISM_MAX}, or 0 for adaptive",
            )
        _check_chain(vertex, field)
        _check_outputs(vertex, field)


def _check_chain(vertex: JobVertex, field: str) -> None:
    _check_count(len(vertex.operators), OPERATORS_PER_VERTEX_MAX, f"{field}.operators", at_least=1)
    last = len(vertex.operators) - 1
    for position, operator in enumerate(vertex.operators):
        place = f"{field}.operators[{position}]"
        check_operator(operator, place)
        kind = operator.WhichOneof("kind")
        if kind == "source" and position > 0:
            raise JobGraphError(f"{place}.source", "must be the first operator of its chain")
        if kind == "sink" and position < last:
            raise JobGraphError(f"{place}.sink", "must be the last operator of its chain")
        if kind == "sink" and vertex.outputs:
            raise JobGraphError(f"{field}.outputs", "must be empty: a sink hands no rows on")
        if kind == "range_boundaries" and vertex.parallelism != 1:
            raise JobGraphError(
                f"{field}.parallelism",
                f"{vertex.parallelism} must be 1: range boundaries are made from all samples",
            )


def _check_outputs(vertex: JobVertex, field: str) -> None:
    _check_count(len(vertex.outputs), OUTPUTS_PER_VERTEX_MAX, f"{field}.outputs")
    for position, output in enumerate(vertex.outputs):
        place = f"{field}.outputs[{position}]"
        distribution = output.distribution
        if distribution.kind not in _KINDS:
            raise JobGraphError(
                f"{place}.distribution.kind",
                f"{distribution.kind} is no distribution: set hash (1), rebalance (2),"
                " broadcast (3), forward (4) or range (5)",
            )
        if distribution.kind in _KEYED:
            check_keys(distribution.keys, f"{place}.distribution.keys")
        elif distribution.keys:
            raise JobGraphError(
                f"{place}.distribution.keys", "must be empty: only hash and range have keys"
            )
        subpartitions_max = PARALLELISM_MAX if distribution.kind in _PARTITIONED else 1
        if not 1 <= output.subpartitions <= subpartitions_max:
            allowed = f"1 to {PARALLELISM_MAX}" if subpartitions_max > 1 else "1"
            raise JobGraphError(
                f"{place}.subpartitions",
                f"{output.subpartitions} must be {allowed} for this distribution",
            )


def _check_edges(graph: JobGraph) -> Iterator[None]:
    vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
    read: dict[tuple[str, int], int] = {}
    for position, edge in enumerate(graph.edges):
        if position % _PER_STEP == 0:
            yield
        field = f"edges[{position}]"
        for end in ("source_vertex_id", "target_vertex_id"):
            if getattr(edge, end) not in vertices:
                raise JobGraphError(
                    f"{field}.{end}", f"there is no vertex {getattr(edge, end)!r} in this job"
                )
        outputs = len(vertices[edge.source_vertex_id].outputs)
        if not 0 <= edge.source_output < outputs:
            raise JobGraphError(
                f"{field}.source_output",
                f"{edge.source_output} is out of bounds: vertex {edge.source_vertex_id!r} has"
                f" {outputs} outputs",
            )
        if not 0 <= edge.target_input < EDGES_MAX:
            raise JobGraphError(
                f"{field}.target_input", f"{edge.target_input} must be 0 to {EDGES_MAX - 1}"
            )
        read[edge.source_vertex_id, edge.source_output] = position
    for position, vertex in enumerate(graph.vertices):
        for output in range(len(vertex.outputs)):
            if (vertex.vertex_id, output) not in read:
                raise JobGraphError(
                    f"vertices[{position}].outputs[{output}]", "is read by no edge: remove it"
                )


def _check_order(graph: JobGraph, index: JobGraphIndex) -> Iterator[None]:
    """Where every producer stands before its consumers there is no cycle."""
    order = {vertex_id: position for position, vertex_id in enumerate(index.vertices)}
    for position, edge in enumerate(graph.edges):
        if position % _PER_STEP == 0:
            yield
        if order[edge.source_vertex_id] < order[edge.target_vertex_id]:
            continue
        cycle = find_cycle(index)
        if cycle:
            told = " -> ".join([*cycle, cycle[0]])
            raise JobGraphError("edges", f"form a cycle: {told}; a job runs once through")
        raise JobGraphError(
            f"edges[{position}]",
            f"vertex {edge.source_vertex_id!r} must stand before its consumer"
            f" {edge.target_vertex_id!r} in vertices",
        )


def _check_inputs(vertex: JobVertex, index: JobGraphIndex, field: str) -> None:
    """Inputs are numbered without a hole, and each is read by an operator or a range output."""
    count = index.input_count(vertex.vertex_id)
    fed = {edge.target_input: edge for edge in index.inputs[vertex.vertex_id]}
    for number in range(min(count, len(fed) + 1)):
        if number not in fed:
            raise JobGraphError(
                field, f"input {number} is fed by no edge, but input {count - 1} is"
            )
    read = _inputs_of_first(vertex, count, field)
    for position, operator in enumerate(vertex.operators):
        if operator.HasField("sql"):
            read += _inputs_of_sql(operator.sql, position, count, f"{field}.operators[{position}]")
    for position, output in enumerate(vertex.outputs):
        if output.distribution.kind == job_pb2.DISTRIBUTION_KIND_RANGE:
            number = output.distribution.boundaries_input
            place = f"{field}.outputs[{position}].distribution.boundaries_input"
            if number not in fed:
                raise JobGraphError(place, f"{number} is no input: the vertex has {count}")
            if index.distribution(fed[number]).kind != job_pb2.DISTRIBUTION_KIND_BROADCAST:
                raise JobGraphError(
                    place, f"input {number} must be broadcast, so that all subtasks agree"
                )
            read.append(number)
    for number in range(count):
        if number not in read:
            raise JobGraphError(field, f"input {number} is read by no operator of the vertex")


def _inputs_of_first(vertex: JobVertex, count: int, field: str) -> list[int]:
    """Inputs that the first operator reads without naming them."""
    kind = vertex.operators[0].WhichOneof("kind")
    if kind in ("source", "sql"):
        return []
    if kind == "workload":
        return list(range(count))
    if count == 0:
        raise JobGraphError(
            f"{field}.operators[0]", f"{kind} has no input: an edge must lead into the vertex"
        )
    return [0]


def _inputs_of_sql(sql: job_pb2.Sql, position: int, count: int, field: str) -> list[int]:
    numbers = [table.vertex_input for table in sql.inputs]
    for place, number in enumerate(numbers):
        where = f"{field}.sql.inputs[{place}].vertex_input"
        if number == -1 and position == 0:
            raise JobGraphError(where, "-1 means the operator before, but this is the first")
        if not -1 <= number < count:
            raise JobGraphError(where, f"{number} is out of bounds: the vertex has {count} inputs")
    if position > 0 and -1 not in numbers:
        raise JobGraphError(
            f"{field}.sql.inputs",
            "does not name the operator before it (vertex_input -1): its rows would be lost",
        )
    return [number for number in numbers if number >= 0]


def _check_exchanges(graph: JobGraph, index: JobGraphIndex) -> Iterator[None]:
    entering: dict[str, list[tuple[str, JobEdge]]] = {}
    for position, edge in enumerate(graph.edges):
        entering.setdefault(edge.target_vertex_id, []).append((f"edges[{position}]", edge))
    # What decides the number of subtasks of a vertex: a number, or the adaptive vertex that all
    # forward edges lead back to.
    leads: dict[str, str | int] = {}
    for number, vertex in enumerate(graph.vertices):
        if number % _PER_STEP == 0:
            yield
        if vertex.parallelism or vertex.operators[0].HasField("source"):
            leads[vertex.vertex_id] = vertex.parallelism or vertex.vertex_id
        hashed = 0
        spread: list[tuple[str, int]] = []
        for field, edge in entering.get(vertex.vertex_id, ()):
            kind = index.distribution(edge).kind
            producer = index.vertices[edge.source_vertex_id]
            subpartitions = producer.outputs[edge.source_output].subpartitions
            if kind == job_pb2.DISTRIBUTION_KIND_FORWARD:
                _check_forward(producer, vertex, leads, field)
            elif kind in _PARTITIONED and vertex.operators[0].HasField("source"):
                raise JobGraphError(
                    field,
                    f"spreads rows over {vertex.vertex_id!r}, which begins with a source: what"
                    " its subtasks read beside their splits must be broadcast or forwarded",
                )
            elif kind in _PARTITIONED:
                spread.append((field, subpartitions))
            if kind != job_pb2.DISTRIBUTION_KIND_HASH:
                continue
            if hashed not in (0, subpartitions):
                raise JobGraphError(
                    field,
                    f"has {subpartitions} hash subpartitions, but another input of"
                    f" {vertex.vertex_id!r} has {hashed}: equal keys would not meet",
                )
            hashed = subpartitions
        lead = leads.setdefault(vertex.vertex_id, vertex.vertex_id)
        for field, subpartitions in spread:
            if isinstance(lead, int) and lead > subpartitions:
                raise JobGraphError(
                    field,
                    f"feeds {lead} subtasks of {vertex.vertex_id!r} from {subpartitions}"
                    " subpartitions: some would read nothing",
                )


def _check_forward(
    producer: JobVertex, consumer: JobVertex, leads: dict[str, str | int], field: str
) -> None:
    """A forward edge joins vertices that will have the same number of subtasks."""
    lead = leads[producer.vertex_id]
    known = leads.setdefault(consumer.vertex_id, lead)
    if known == lead:
        return
    if consumer.parallelism:
        told = lead if isinstance(lead, int) else "an adaptive number of"
        raise JobGraphError(
            field,
            f"forwards {told} subtasks of {producer.vertex_id!r} to {consumer.parallelism} of"
            f" {consumer.vertex_id!r}: the numbers must be equal",
        )
    raise JobGraphError(
        field,
        f"forwards {producer.vertex_id!r} to {consumer.vertex_id!r}, whose number of subtasks"
        f" is that of {known!r} already: give all of them the same parallelism",
    )


def _check_sinks_apart(graph: JobGraph) -> None:
    seen: dict[str, str] = {}
    for position, vertex in enumerate(graph.vertices):
        for number, operator in enumerate(vertex.operators):
            if not operator.HasField("sink"):
                continue
            field = f"vertices[{position}].operators[{number}].sink.path"
            path = posixpath.normpath(operator.sink.path)
            if path in seen:
                raise JobGraphError(
                    field, f"{path!r} is also the directory of {seen[path]}: give each its own"
                )
            seen[path] = field
