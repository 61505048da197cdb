"""JobGraph: what a JobManager must refuse, each with the field and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdover.errors import JobGraphError
from holdover.jobgraph import validate, validation_steps
from holdover.v1 import job_pb2
from holdover.v1.job_pb2 import (
    DETERMINISM_DETERMINATE,
    DISTRIBUTION_KIND_FORWARD,
    DISTRIBUTION_KIND_HASH,
    DISTRIBUTION_KIND_RANGE,
    JobGraph,
    Operator,
)
from tests.unit.jobgraph_builders import (
    function,
    join,
    operator,
    ranged,
    sink,
    source,
    sql,
    valid,
    vertex,
)


def refused(graph: JobGraph) -> str:
    with pytest.raises(JobGraphError) as error:
        validate(graph)
    return str(error.value)


def test_a_valid_graph_passes() -> None:
    validate(valid())
    validate(ranged())


Change = Callable[[JobGraph], object]


def set_at(path: str, value: object) -> Change:
    """Sets the field at a path such as "vertices[0].operators[1].name"."""

    def change(graph: JobGraph) -> None:
        owner, _, field = path.rpartition(".")
        message = eval(f"graph.{owner}" if owner else "graph", {"graph": graph})
        setattr(message, field, value)

    return change


V0 = "vertices[0]"
TEXT = f"{V0}.operators[0].source.text"
SQL = "vertices[2].operators[0].sql"
SINK = "vertices[3].operators[0].sink"
OUT = f"{V0}.outputs[0]"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("job_id", "Job/1", "'Job/1' is not allowed: it must match [a-z0-9]"),
        ("name", "a\nb", "has characters that cannot be printed"),
        ("name", "x" * 1001, "has 1001 characters; 1000 are allowed"),
        (f"{V0}.vertex_id", "V-0", "vertex id 'V-0' is not allowed"),
        ("vertices[1].vertex_id", "v0", "'v0' is also the id of vertices[0]"),
        (f"{V0}.parallelism", -1, "-1 must be 1 to 32768, or 0 for adaptive"),
        (f"{V0}.parallelism", 32_769, "32769 must be 1 to 32768, or 0 for adaptive"),
        (f"{V0}.operators[0].determinism", 0, "0 is no determinism"),
        (f"{V0}.operators[0].determinism", 7, "7 is no determinism"),
        (f"{TEXT}.glob", "in/*.txt", "'in/*.txt' is not absolute"),
        (f"{TEXT}.glob", "/a/../b", "contains '..': write '/b'"),
        (f"{TEXT}.glob", "/" + "x" * 4096, "must have at most 4096 characters"),
        (f"{TEXT}.glob", "/a\0", "and no NUL among them"),
        (f"{V0}.operators[1].function.reference", "m.f", "must be written as 'module:name'"),
        (f"{SQL}.query", "  ", "is empty: write one SELECT statement"),
        (f"{SQL}.inputs[0].name", "my table", "'my table' is no table name"),
        (f"{SQL}.inputs[1].name", "INPUT", "is also the name of inputs[0]"),
        (f"{SQL}.inputs[1].vertex_input", 2, "2 is out of bounds: the vertex has 2 inputs"),
        (f"{SQL}.inputs[0].vertex_input", -1, "but this is the first"),
        (f"{SQL}.inputs[0].vertex_input", -2, "-2 is out of bounds"),
        (f"{SINK}.path", "out", "'out' is not absolute"),
        (f"{SINK}.path", "//", "is the root directory"),
        (f"{SINK}.format", 0, "0 is no format"),
        (f"{SINK}.format", 9, "9 is no format"),
        (f"{OUT}.distribution.kind", 0, "0 is no distribution"),
        (f"{OUT}.distribution.kind", 12, "12 is no distribution"),
        (f"{OUT}.distribution.kind", 2, "must be empty: only hash and range have keys"),
        (f"{OUT}.subpartitions", 0, "0 must be 1 to 32768 for this distribution"),
        (f"{OUT}.subpartitions", 32_769, "32769 must be 1 to 32768"),
        ("vertices[1].outputs[0].subpartitions", 2, "2 must be 1 for this distribution"),
        ("edges[0].source_vertex_id", "v9", "there is no vertex 'v9' in this job"),
        ("edges[0].target_vertex_id", "v9", "there is no vertex 'v9' in this job"),
        ("edges[0].source_output", 1, "1 is out of bounds: vertex 'v0' has 1 outputs"),
        ("edges[0].target_input", -1, "-1 must be 0 to 99999"),
    ],
)
def test_a_bad_field_is_named(path: str, value: object, message: str) -> None:
    graph = valid()
    set_at(path, value)(graph)
    told = refused(graph)
    assert message in told
    # Keys are wrong only for the kind that was set.
    assert told.startswith((path, f"{OUT}.distribution.keys"))


@pytest.mark.parametrize(
    ("place", "replacement", "message"),
    [
        (0, Operator(name="x", determinism=DETERMINISM_DETERMINATE), "does nothing"),
        (0, operator(source=job_pb2.Source()), "reads nothing: set text, csv, parquet or"),
        (
            0,
            operator(source=job_pb2.Source(sequence=job_pb2.SequenceSource(start=2, end=1))),
            "1 is below start 2",
        ),
        (
            0,
            operator(source=job_pb2.Source(csv=job_pb2.CsvSource(glob="/a", delimiter="::"))),
            "'::' must be one ASCII character",
        ),
        (
            0,
            operator(source=job_pb2.Source(csv=job_pb2.CsvSource(glob="/a", delimiter=","))),
            "names 0 columns, but there is no header",
        ),
        (
            0,
            operator(
                source=job_pb2.Source(
                    csv=job_pb2.CsvSource(
                        glob="/a", delimiter=",", header=True, typed_columns=["x"]
                    )
                )
            ),
            "has 0 types for 1 typed_columns",
        ),
        (
            0,
            operator(
                source=job_pb2.Source(
                    parquet=job_pb2.ParquetSource(glob="/a", columns=["x", "y", "x"])
                )
            ),
            "columns[2]: repeats column 'x'",
        ),
        (1, operator(function=job_pb2.PythonFunction()), "has no code"),
        (1, operator(function=job_pb2.PythonFunction(pickled=b"")), "has no code"),
        (1, operator(workload=job_pb2.Workload(seconds=-1)), "seconds: -1.0 must be 0 to"),
        (1, operator(workload=job_pb2.Workload(seconds=float("nan"))), "nan must be 0 to"),
        (1, operator(workload=job_pb2.Workload(output_bytes=-1)), "output_bytes: -1 must be"),
        (1, operator(key_sample=job_pb2.KeySample(rows_max=1)), "keys: names no column"),
        (1, operator(key_sample=job_pb2.KeySample(keys=["k"])), "rows_max: 0 must be 1 to"),
        (1, operator(key_sample=job_pb2.KeySample(keys=["k", "k"])), "repeats column 'k'"),
        (1, operator(key_sample=job_pb2.KeySample(keys=[""])), "keys[0]: is empty"),
        (1, operator(range_boundaries=job_pb2.RangeBoundaries(keys=["k"])), "ranges: 0 must"),
        (1, operator(sql=job_pb2.Sql(query="select 1")), "inputs: is empty"),
        (1, source(), "source: must be the first operator of its chain"),
        (1, sink(), "outputs: must be empty: a sink hands no rows on"),
        (0, sink(), "sink: must be the last operator of its chain"),
        (0, function(), "function has no input: an edge must lead into the vertex"),
        (1, sql(("a", 0)), "vertex_input: 0 is out of bounds: the vertex has 0 inputs"),
    ],
)
def test_a_bad_operator_is_named(place: int, replacement: Operator, message: str) -> None:
    graph = valid()
    graph.vertices[0].operators[place].CopyFrom(replacement)
    told = refused(graph)
    assert message in told
    assert told.startswith("vertices[0]")


def test_a_query_in_a_chain_must_read_the_operator_before_it() -> None:
    graph = valid()
    graph.vertices[2].operators.append(sql(("input", 0)))
    assert "does not name the operator before it (vertex_input -1)" in refused(graph)


def test_range_boundaries_are_made_in_one_subtask() -> None:
    graph = ranged()
    graph.vertices[2].parallelism = 2
    assert "vertices[2].parallelism: 2 must be 1" in refused(graph)


@pytest.mark.parametrize(
    ("boundaries_input", "message"),
    [(2, "2 is no input: the vertex has 2"), (0, "input 0 must be broadcast")],
)
def test_a_range_needs_boundaries(boundaries_input: int, message: str) -> None:
    graph = ranged()
    graph.vertices[3].outputs[0].distribution.boundaries_input = boundaries_input
    assert message in refused(graph)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (DISTRIBUTION_KIND_HASH, "vertices[0].outputs[0].distribution.keys"),
        (DISTRIBUTION_KIND_RANGE, "vertices[0].outputs[0].distribution.keys"),
    ],
)
def test_hash_and_range_need_keys(kind: job_pb2.DistributionKind.ValueType, field: str) -> None:
    graph = valid()
    graph.vertices[0].outputs[0].distribution.ClearField("keys")
    graph.vertices[0].outputs[0].distribution.kind = kind
    assert refused(graph) == f"{field}: names no column: give at least one key"


def test_an_empty_graph_is_refused() -> None:
    assert refused(JobGraph(job_id="j")) == "vertices: is empty: at least 1 is needed"


def test_a_vertex_without_operators_is_refused() -> None:
    graph = valid()
    graph.vertices[1].ClearField("operators")
    assert refused(graph) == "vertices[1].operators: is empty: at least 1 is needed"


def test_a_graph_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdover.jobgraph.validation.GRAPH_BYTES_MAX", 100)
    assert "bytes; 100 are allowed" in refused(valid())


def test_too_many_vertices_are_refused() -> None:
    graph = JobGraph(job_id="j")
    for _ in range(10_001):
        vertex(graph, source())
    assert refused(graph) == "vertices: has 10001 entries; 10000 are allowed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([("parallelism.default", "0")], "options[0]: parallelism.default is '0' from the job's"),
        ([("no.such", "1")], "options[0]: unknown option 'no.such'"),
        ([("log.level", "DEBUG")], "options[0]: log.level (from the job's options) cannot be set"),
        (
            [("parallelism.default", "1"), ("parallelism.default", "2")],
            "options[1]: parallelism.default is set already in options[0]",
        ),
    ],
)
def test_bad_options_are_refused(options: list[tuple[str, str]], message: str) -> None:
    graph = valid()
    for key, value in options:
        graph.options.add(key=key, value=value)
    assert refused(graph).startswith(message)


@pytest.mark.parametrize("name", ["", "../m.py", "a/m.py", ".m.py", "m\n.py", "m" * 129])
def test_an_attached_file_has_a_plain_name(name: str) -> None:
    graph = valid()
    graph.files.add(name=name)
    assert refused(graph).startswith(f"files[0].name: {name!r} is no plain file name")


def test_attached_files_have_different_names() -> None:
    graph = valid()
    graph.files.add(name="m.py")
    graph.files.add(name="m.py")
    assert refused(graph) == "files[1].name: 'm.py' is also files[0]"


# --- Edges ---------------------------------------------------------------------------------------


def test_a_cycle_names_the_vertices_on_it() -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, source())
    vertex(graph, sql(("a", 0), ("b", 1)))
    vertex(graph, function())
    vertex(graph, function())
    join(graph, 0, 1)
    join(graph, 1, 2)
    join(graph, 2, 1, target_input=1)
    join(graph, 2, 3)
    assert refused(graph) == "edges: form a cycle: v1 -> v2 -> v1; a job runs once through"


def test_a_vertex_that_reads_itself_is_a_cycle() -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, function())
    join(graph, 0, 0)
    assert "form a cycle: v0 -> v0" in refused(graph)


def test_a_producer_stands_before_its_consumer() -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, function())
    vertex(graph, source())
    join(graph, 1, 0)
    assert refused(graph) == (
        "edges[0]: vertex 'v1' must stand before its consumer 'v0' in vertices"
    )


def test_inputs_are_numbered_without_hole() -> None:
    graph = valid()
    graph.edges[1].target_input = 2
    assert refused(graph) == "vertices[2]: input 1 is fed by no edge, but input 2 is"


def test_an_input_that_nobody_reads_is_refused() -> None:
    graph = valid()
    join(graph, 1, 3, target_input=1)
    assert refused(graph) == "vertices[3]: input 1 is read by no operator of the vertex"


def test_an_output_that_nobody_reads_is_refused() -> None:
    graph = valid()
    del graph.edges[2]
    assert refused(graph) == "vertices[2].outputs[0]: is read by no edge: remove it"


def test_more_subtasks_than_subpartitions_are_refused() -> None:
    graph = valid()
    graph.vertices[2].parallelism = 9
    assert refused(graph) == (
        "edges[0]: feeds 9 subtasks of 'v2' from 8 subpartitions: some would read nothing"
    )


def test_forward_decides_how_many_subtasks_the_subpartitions_must_feed() -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, source(), parallelism=9)
    vertex(graph, source())
    vertex(graph, sql(("a", 0), ("b", 1)))
    join(graph, 1, 2, target_input=1)
    join(graph, 0, 2, DISTRIBUTION_KIND_FORWARD)
    assert refused(graph).startswith("edges[0]: feeds 9 subtasks of 'v2' from 8 subpartitions")


def test_equal_keys_must_meet() -> None:
    graph = valid()
    graph.vertices[1].outputs[0].CopyFrom(graph.vertices[0].outputs[0])
    graph.vertices[1].outputs[0].subpartitions = 16
    assert refused(graph) == (
        "edges[1]: has 16 hash subpartitions, but another input of 'v2' has 8:"
        " equal keys would not meet"
    )


@pytest.mark.parametrize(("producer", "told"), [(4, "4"), (0, "an adaptive number of")])
def test_forward_needs_equal_parallelism(producer: int, told: str) -> None:
    graph = valid()
    graph.vertices[2].parallelism = producer
    graph.vertices[3].parallelism = 3
    assert refused(graph) == (
        f"edges[2]: forwards {told} subtasks of 'v2' to 3 of 'v3': the numbers must be equal"
    )


def test_two_adaptive_vertices_cannot_forward_to_one() -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, source())
    vertex(graph, source())
    vertex(graph, sql(("a", 0), ("b", 1)))
    join(graph, 0, 2, DISTRIBUTION_KIND_FORWARD)
    join(graph, 1, 2, DISTRIBUTION_KIND_FORWARD, target_input=1)
    assert refused(graph) == (
        "edges[1]: forwards 'v1' to 'v2', whose number of subtasks is that of 'v0' already:"
        " give all of them the same parallelism"
    )
    graph.vertices[0].parallelism = graph.vertices[1].parallelism = 3
    validate(graph)


def test_nothing_is_forwarded_to_an_adaptive_source() -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, source())
    vertex(graph, source(), sql(("a", -1), ("b", 0)))
    join(graph, 0, 1, DISTRIBUTION_KIND_FORWARD)
    assert "whose number of subtasks is that of 'v1' already" in refused(graph)


def test_no_rows_are_spread_over_the_subtasks_of_a_source() -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, source())
    vertex(graph, source(), sql(("a", -1), ("b", 0)), parallelism=2)
    join(graph, 0, 1, DISTRIBUTION_KIND_HASH)
    assert refused(graph) == (
        "edges[0]: spreads rows over 'v1', which begins with a source: what its subtasks read"
        " beside their splits must be broadcast or forwarded"
    )


def test_sinks_have_different_directories() -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, source(), sink("/out"))
    vertex(graph, source(), sink("/out/"))
    assert refused(graph) == (
        "vertices[1].operators[1].sink.path: '/out' is also the directory of"
        " vertices[0].operators[1].sink.path: give each its own"
    )


def test_a_large_graph_is_looked_at_in_short_steps() -> None:
    """P55: a JobManager answers heartbeats between them."""
    graph = JobGraph(job_id="job", name="wide")
    for _ in range(4_000):
        vertex(graph, source())
    assert sum(1 for _ in validation_steps(graph)) >= 20
