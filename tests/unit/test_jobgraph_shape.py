"""JobGraph: who feeds whom, and what a second run would produce."""

from __future__ import annotations

import pytest

from holdover.jobgraph import JobGraphIndex, determinism_of, find_cycle, validate
from holdover.v1 import job_pb2
from holdover.v1.job_pb2 import (
    DETERMINISM_DETERMINATE,
    DETERMINISM_INDETERMINATE,
    DETERMINISM_UNORDERED,
    DISTRIBUTION_KIND_BROADCAST,
    DISTRIBUTION_KIND_FORWARD,
    DISTRIBUTION_KIND_HASH,
    DISTRIBUTION_KIND_RANGE,
    DISTRIBUTION_KIND_REBALANCE,
    JobGraph,
)
from tests.unit.jobgraph_builders import function, join, ranged, source, valid, vertex

# --- Look-ups ------------------------------------------------------------------------------------


def test_the_index_knows_producers_and_consumers() -> None:
    index = JobGraphIndex.of(ranged())
    assert index.producers("v3") == ("v0", "v2")
    assert index.consumers("v0") == ("v1", "v3")
    assert index.consumers("v0", output=1) == ("v3",)
    assert index.input_count("v3") == 2
    assert index.topological_order() == ("v0", "v1", "v2", "v3", "v4")
    assert index.distribution(index.inputs["v4"][0]).kind == DISTRIBUTION_KIND_RANGE
    assert find_cycle(index) == ()


# --- Determinism ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promised", "kind", "followed_by"),
    [
        (DETERMINISM_DETERMINATE, DISTRIBUTION_KIND_HASH, DETERMINISM_DETERMINATE),
        (DETERMINISM_DETERMINATE, DISTRIBUTION_KIND_REBALANCE, DETERMINISM_DETERMINATE),
        (DETERMINISM_DETERMINATE, DISTRIBUTION_KIND_FORWARD, DETERMINISM_DETERMINATE),
        (DETERMINISM_UNORDERED, DISTRIBUTION_KIND_HASH, DETERMINISM_UNORDERED),
        (DETERMINISM_UNORDERED, DISTRIBUTION_KIND_BROADCAST, DETERMINISM_UNORDERED),
        (DETERMINISM_UNORDERED, DISTRIBUTION_KIND_REBALANCE, DETERMINISM_INDETERMINATE),
        (DETERMINISM_UNORDERED, DISTRIBUTION_KIND_FORWARD, DETERMINISM_INDETERMINATE),
        (DETERMINISM_INDETERMINATE, DISTRIBUTION_KIND_HASH, DETERMINISM_INDETERMINATE),
    ],
)
def test_an_exchange_of_unordered_rows_by_position_makes_what_follows_indeterminate(
    promised: job_pb2.Determinism.ValueType,
    kind: job_pb2.DistributionKind.ValueType,
    followed_by: int,
) -> None:
    graph = JobGraph(job_id="j")
    vertex(graph, source(), function())
    vertex(graph, function())
    join(graph, 0, 1, kind)
    graph.vertices[0].operators[1].determinism = promised
    validate(graph)
    assert determinism_of(graph) == {"v0": promised, "v1": followed_by}


def test_a_vertex_is_as_determinate_as_its_worst_input_and_operator() -> None:
    graph = valid()
    graph.vertices[1].operators[0].determinism = DETERMINISM_UNORDERED
    assert determinism_of(graph) == {
        "v0": DETERMINISM_DETERMINATE,
        "v1": DETERMINISM_UNORDERED,
        "v2": DETERMINISM_UNORDERED,
        "v3": DETERMINISM_INDETERMINATE,
    }


def test_a_sample_of_unordered_rows_is_indeterminate() -> None:
    graph = ranged()
    graph.vertices[0].operators[0].determinism = DETERMINISM_UNORDERED
    graph.vertices[0].operators.append(graph.vertices[1].operators[0])
    assert determinism_of(graph)["v0"] == DETERMINISM_INDETERMINATE
