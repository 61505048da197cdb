"""Jobs of scenarios as graphs, and the output that they must have."""

from __future__ import annotations

from typing import Any

import pytest

from holdover.api import Job
from holdover.jobgraph.validation import validate
from holdover.v1.job_pb2 import JobGraph, Workload
from simulator.scenario import JobSpec
from simulator.workloads import build_graph, expected_rows, other_work


def job(*stages: dict[str, Any]) -> JobGraph:
    spec = JobSpec.model_validate({"name": "j", "stages": stages})
    graph = build_graph(spec, seed=5, output_directory="/shared/output/j")
    validate(graph)
    return graph


def ids(subtasks: int, rows: int) -> list[int]:
    return [(subtask << 32) + row for subtask in range(subtasks) for row in range(rows)]


MAP = {"name": "map", "parallelism": 3, "rows": 2}


def test_a_stage_is_a_vertex_and_the_last_one_ends_in_a_sink() -> None:
    graph = job(
        MAP, {"name": "reduce", "seconds": "lognormal(2 s, 0.5)", "failure_probability": 0.1}
    )
    names = {vertex.operators[0].name: vertex.vertex_id for vertex in graph.vertices}
    assert names == {"map": "v0", "reduce": "v1"}
    first, last = graph.vertices
    assert (first.parallelism, last.parallelism) == (3, 0)
    assert last.operators[0].workload.seconds_distribution.lognormal.median == 2
    assert last.operators[0].workload.failure_probability == 0.1
    assert last.operators[1].sink.path == "/shared/output/j"


@pytest.mark.parametrize("exchange", ["hash", "rebalance", "forward"])
def test_all_rows_arrive_once(exchange: str) -> None:
    assert expected_rows(job(MAP, {"name": "reduce", "exchange": exchange})) == ids(3, 2)


def test_a_source_of_no_rows_makes_none() -> None:
    graph = job({**MAP, "rows": 0}, {"name": "reduce"})
    assert expected_rows(graph) == []
    assert all(vertex.operators[0].workload.pass_rows for vertex in graph.vertices)


def test_a_broadcast_repeats_rows_for_each_reader() -> None:
    side = {"name": "side", "parallelism": 1, "rows": 1, "inputs": []}
    both = {"name": "both", "parallelism": 2, "inputs": ["map", "side"], "exchange": "broadcast"}
    assert expected_rows(job(MAP, side, both)) == sorted(2 * (ids(3, 2) + ids(1, 1)))


def test_several_last_stages_have_directories_of_their_own() -> None:
    graph = job(MAP, {"name": "a", "inputs": ["map"]}, {"name": "b", "inputs": ["map"]})
    paths = [vertex.operators[-1].sink.path for vertex in graph.vertices[1:]]
    assert paths == ["/shared/output/j/a", "/shared/output/j/b"]
    assert expected_rows(graph) == sorted(2 * ids(3, 2))


def test_how_often_an_adaptive_stage_reads_a_broadcast_must_be_told() -> None:
    described = Job("j")
    rows = described.workload(0, rows=2, parallelism=1)
    mixed = rows.hash("value").union(rows.broadcast()).workload(0, pass_rows=True)
    mixed.write_csv("/out")
    graph = described.build("j")
    with pytest.raises(ValueError, match=r"vertex v1 .* decides how often"):
        expected_rows(graph)
    assert expected_rows(graph, {"v1": 3}) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_stored_graph_keeps_its_work_and_gets_the_options_of_the_scenario() -> None:
    stored = job(MAP).SerializeToString()
    spec = JobSpec.model_validate(
        {"name": "other", "graph": "f", "options": {"parallelism.default": "4"}, "seconds": "3 s"}
    )
    graph = build_graph(spec, seed=0, output_directory="/o", stored=stored)
    assert graph.job_id == "other"
    assert [(entry.key, entry.value) for entry in graph.options] == [("parallelism.default", "4")]
    work = other_work(spec)
    assert isinstance(work, Workload)
    assert work.seconds_distribution.constant == 3
    with pytest.raises(ValueError, match="content of f"):
        build_graph(spec, seed=0, output_directory="/o")
