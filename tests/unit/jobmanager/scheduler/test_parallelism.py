"""The shape of vertices: explicit, by default, or from the bytes of the inputs (FLIP-187)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdover.config import Configuration
from holdover.v1 import events_pb2, job_pb2
from jobmanager.job_options import scheduler_options
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.parallelism import (
    AdaptiveParallelism,
    balanced_bounds,
    initialize_source,
    initialize_vertex,
    ready_to_initialize,
)
from jobmanager.scheduler.states import JobState
from tests.doubles.scheduler_world import OPTIONS
from tests.unit.jobmanager.scheduler.job_graphs import (
    BROADCAST,
    FORWARD,
    HASH,
    REBALANCE,
    chain,
    connect,
    source,
    stage,
)
from tests.unit.jobmanager.scheduler.scenes import finish, finished, graph_of, initialized, started

BY_BYTES = AdaptiveParallelism(parallelism_min=2, parallelism_max=5, bytes_per_task=100)
weights = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=60)


def shape(
    graph: ExecutionGraph, vertex_id: str, adaptive: AdaptiveParallelism = BY_BYTES
) -> events_pb2.ExecutionJobVertexInitialized:
    return initialize_vertex(graph, graph.vertices[vertex_id], adaptive)


def bounds_of(event: events_pb2.ExecutionJobVertexInitialized) -> list[list[int]]:
    return [list(ranges.bounds) for ranges in event.input_ranges]


def fed(job: job_pb2.JobGraph, **subpartition_bytes: list[int]) -> ExecutionGraph:
    """A graph whose sources have one finished subtask each, of these bytes."""
    graph = ExecutionGraph(job)
    for vertex_id, counts in subpartition_bytes.items():
        graph.apply(initialized(vertex_id, 1))
        graph.apply(finished(vertex_id, 0, subpartition_bytes=counts))
    return graph


def consumer_of(width: int, **kinds: int) -> job_pb2.JobGraph:
    """Sources that feed one vertex `c` of no told parallelism, each by this exchange."""
    job = job_pb2.JobGraph(
        job_id="job", vertices=[*(source(vertex_id, 1) for vertex_id in kinds), stage("c", 0)]
    )
    for vertex_id, kind in kinds.items():
        connect(job, vertex_id, "c", kind, width if kind in (HASH, REBALANCE) else 1)  # type: ignore[arg-type]
    return job


def test_an_explicit_parallelism_is_taken_as_it_is() -> None:
    graph = fed(chain(4), s=[0] * 4)
    assert ready_to_initialize(graph, graph.vertices["m"])
    assert shape(graph, "m").parallelism == 4
    assert bounds_of(shape(graph, "m")) == [[0, 1, 2, 3, 4]]


def test_an_adaptive_vertex_waits_for_all_its_inputs() -> None:
    world = started(chain(3, adaptive=True))
    finish(world, "s", [0, 1])
    assert not graph_of(world).vertices["m"].initialized
    finish(world, "s", [2])
    assert graph_of(world).vertices["m"].initialized


@pytest.mark.parametrize(
    ("total", "parallelism"), [(0, 2), (199, 2), (201, 3), (500, 5), (10_000, 5)]
)
def test_the_bytes_decide_within_the_bounds(total: int, parallelism: int) -> None:
    graph = fed(consumer_of(8, a=HASH), a=[total, *[0] * 7])
    assert shape(graph, "c").parallelism == parallelism


def test_there_are_never_more_subtasks_than_subpartitions() -> None:
    graph = fed(consumer_of(3, a=HASH), a=[1000] * 3)
    assert shape(graph, "c").parallelism == 3


def test_broadcast_bytes_do_not_count() -> None:
    graph = fed(consumer_of(8, a=HASH, b=BROADCAST), a=[10] * 8, b=[10_000])
    event = shape(graph, "c")
    assert event.parallelism == 2
    assert bounds_of(event)[1] == []


def test_both_sides_of_a_join_are_cut_at_the_same_bounds() -> None:
    """Equal keys of all hash inputs meet in one subtask, however the bytes are spread."""
    graph = fed(consumer_of(4, a=HASH, b=HASH), a=[300, 0, 0, 0], b=[0, 0, 0, 100])
    first, second = bounds_of(shape(graph, "c"))
    assert first == second
    assert first[0] == 0
    assert first[-1] == 4


def test_a_forward_exchange_hands_its_parallelism_on() -> None:
    world = started(chain(4, forward=True))
    assert graph_of(world).vertices["m"].parallelism == 4
    assert graph_of(world).vertices["m"].input_bounds == [()]


def test_a_forward_exchange_may_bring_more_subtasks_than_a_hash_input_has_subpartitions() -> None:
    job = job_pb2.JobGraph(
        job_id="job", vertices=[source("a", 0), source("b", 1), stage("c", 0), stage("d", 2)]
    )
    connect(job, "a", "c", FORWARD, 1)
    connect(job, "b", "c", HASH, 2)
    connect(job, "c", "d", HASH, 2)
    options = replace(OPTIONS, adaptive=AdaptiveParallelism(5, 6, 1))
    world = started(job, options=options)
    owner = graph_of(world).vertices["c"]
    assert owner.parallelism > 2
    for vertex_id in "abcd":
        finish(world, vertex_id)
    assert graph_of(world).all_finished


def test_a_default_parallelism_counts_where_the_job_says_nothing() -> None:
    by_default = replace(BY_BYTES, parallelism_default=3)
    graph = fed(consumer_of(8, a=HASH), a=[1000] * 8)
    assert shape(graph, "c", by_default).parallelism == 3
    assert initialize_source(graph.vertices["a"], [], by_default).parallelism == 1
    assert shape(fed(consumer_of(2, a=HASH), a=[9, 9]), "c", by_default).parallelism == 2


def test_a_default_parallelism_holds_for_sources_and_is_no_match_for_a_number() -> None:
    by_default = replace(BY_BYTES, parallelism_default=3)
    graph = ExecutionGraph(job_pb2.JobGraph(job_id="job", vertices=[source("a", 0)]))
    assert initialize_source(graph.vertices["a"], [], by_default).parallelism == 3
    assert by_default.splits_wanted == 3
    assert BY_BYTES.splits_wanted == 5


@pytest.mark.parametrize(("told", "default"), [("-1", 0), ("7", 7)])
def test_the_cluster_option_reaches_the_scheduler(told: str, default: int) -> None:
    config = Configuration.of({"parallelism.default": told})
    assert scheduler_options(config).adaptive.parallelism_default == default


def test_a_source_has_no_more_subtasks_than_splits_unless_it_is_told() -> None:
    splits = [job_pb2.Split(index=i, path="/f", start=0, end=1000) for i in range(3)]
    job = job_pb2.JobGraph(job_id="job", vertices=[source("a", 0), source("b", 8)])
    graph = ExecutionGraph(job)
    assert initialize_source(graph.vertices["a"], splits, BY_BYTES).parallelism == 3
    assert initialize_source(graph.vertices["a"], [], BY_BYTES).parallelism == 1
    assert initialize_source(graph.vertices["b"], splits, BY_BYTES).parallelism == 8


def test_source_subtasks_without_a_split_finish_with_nothing() -> None:
    world = started(chain(12), slots=4)
    world.run_to_end()
    assert world.ended is JobState.FINISHED
    assert world.output() == list(range(8))


@settings(deadline=None)
@given(weights, st.integers(1, 80))
def test_bounds_cover_everything_once_and_in_order(cut: list[int], ranges: int) -> None:
    bounds = balanced_bounds(cut, ranges)
    assert len(bounds) == ranges + 1
    assert (bounds[0], bounds[-1]) == (0, len(cut))
    assert bounds == sorted(bounds)
    if len(cut) >= ranges:
        assert len(set(bounds)) == len(bounds), "an empty range beside one that could give"


@settings(deadline=None)
@given(weights, st.integers(1, 20))
def test_no_range_is_much_heavier_than_the_fair_share(cut: list[int], ranges: int) -> None:
    bounds = balanced_bounds(cut, ranges)
    heaviest = max(sum(cut[first:end]) for first, end in pairwise(bounds))
    assert heaviest <= sum(cut) / ranges + 2 * max(cut)


def test_bytes_that_are_not_known_count_as_equal() -> None:
    assert balanced_bounds([0] * 128, 4) == [0, 32, 64, 96, 128]


def test_fewer_weights_than_ranges_leave_the_last_ranges_empty() -> None:
    assert balanced_bounds([5, 5], 4) == [0, 1, 2, 2, 2]
