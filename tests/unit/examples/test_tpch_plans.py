"""TPC-H's jobs as graphs, before any cluster runs them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from holdover import jobgraph
from holdover.api import Job
from holdover.cli.tpch.data import TpchData
from holdover.cli.tpch.ledger import add_ledger
from holdover.cli.tpch.queries import QUERIES
from holdover.cli.tpch.query import Parallelism
from holdover.v1.job_pb2 import JobGraph

EXAMPLES = Path(__file__).parents[3] / "examples" / "tpch"
DATA = TpchData(Path("/data"), 1.0)


def graph_of(number: int) -> JobGraph:
    """The job of a query over tables that do not exist."""
    return QUERIES[number].job(DATA, "/out").build("q")


@pytest.mark.parametrize("number", QUERIES)
def test_a_plan_is_a_valid_graph_of_at_least_three_stages(number: int) -> None:
    """So that a JobManager that dies half way leaves finished stages behind."""
    graph = graph_of(number)

    jobgraph.validate(graph)
    stage: dict[str, int] = {}
    for vertex in graph.vertices:
        feeding = [
            e.source_vertex_id for e in graph.edges if e.target_vertex_id == vertex.vertex_id
        ]
        stage[vertex.vertex_id] = 1 + max((stage[source] for source in feeding), default=0)
    assert max(stage.values()) >= 3


@pytest.mark.parametrize("number", QUERIES)
def test_a_plan_reads_only_the_columns_that_it_uses(number: int) -> None:
    """Every source names its columns, and a filter or a join runs in the task that reads."""
    sources = [
        (vertex, vertex.operators[0].source.parquet)
        for vertex in graph_of(number).vertices
        if vertex.operators[0].HasField("source")
    ]

    assert all(source.columns for _, source in sources)
    lineitem = next(vertex for vertex, source in sources if "lineitem" in source.glob)
    assert lineitem.operators[1].HasField("sql")


@pytest.mark.parametrize("number", QUERIES)
def test_a_ledger_is_the_last_word_of_every_vertex_but_for_the_sink(number: int) -> None:
    """With it the graph stays valid."""
    graph = graph_of(number)
    add_ledger(graph, Path("/ledger"))

    jobgraph.validate(graph)
    for vertex in graph.vertices:
        names = [operator.name for operator in vertex.operators if not operator.HasField("sink")]
        assert names[-1] == "ledger"
    assert sum(vertex.operators[-1].HasField("sink") for vertex in graph.vertices) == 1


def test_parallelism_grows_with_the_scale_within_bounds() -> None:
    """Small scales still give subtasks to lose; large ones do not drown in them."""
    assert [Parallelism.of(scale).lineitem for scale in (0.1, 3, 10, 1000)] == [12, 12, 40, 240]


@pytest.mark.parametrize("number", QUERIES)
def test_an_example_file_builds_its_job_from_arguments(number: int, tmp_path: Path) -> None:
    """As `holdover submit` calls it; tables that are there are not generated."""
    for table in ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region"):
        (tmp_path / f"{table}.parquet").touch()
    (tmp_path / "supplier.parquet").touch()
    spec = importlib.util.spec_from_file_location(f"q{number}", EXAMPLES / f"q{number}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    job = module.build(
        ["--scale", "2", "--data", str(tmp_path), "--lineitem-parallelism", "7", "--output", "out"]
    )

    assert isinstance(job, Job)
    graph = job.build("q")
    jobgraph.validate(graph)
    lineitem = next(
        vertex
        for vertex in graph.vertices
        if vertex.operators[0].source.parquet.glob == str(tmp_path / "lineitem.parquet")
    )
    assert lineitem.parallelism == 7
