"""What a loss costs: exact sets, closed before anything is scheduled (behaviour 5.6)."""

from __future__ import annotations

from holdover.v1 import events_pb2, job_pb2
from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import ResetPlan, RestartStrategy, plan_resets
from jobmanager.scheduler.failures import FailureHandling
from jobmanager.scheduler.restarted_workers import RestartedWorkers
from jobmanager.scheduler.states import ExecutionState, JobState
from tests.doubles.scheduler_world import OPTIONS
from tests.unit.jobmanager.scheduler.job_graphs import (
    FORWARD,
    HASH,
    chain,
    connect,
    dealt_out,
    join,
    sink,
    source,
    stage,
    unrecorded,
)
from tests.unit.jobmanager.scheduler.scenes import graph_with, state_changed

LOST = events_pb2.RESET_REASON_PARTITION_LOST
UPSTREAM = events_pb2.RESET_REASON_UPSTREAM_CLOSURE
UNKNOWN = events_pb2.RESET_REASON_SPLITS_UNKNOWN
MIXED = events_pb2.RESET_REASON_INDETERMINATE_PRODUCER
ALL = range(4)


def lose(graph: ExecutionGraph, *subtasks: tuple[str, int]) -> ResetPlan:
    """These outputs are gone; what must run again?"""
    vertices = [graph.vertex_at(*subtask) for subtask in subtasks]
    for vertex in vertices:
        graph.set_available(vertex, False)
    return plan_resets(graph, [(vertex, LOST) for vertex in vertices])


def drop(graph: ExecutionGraph, vertex_id: str) -> None:
    """All outputs of a vertex are gone, and nobody has missed them so far."""
    for vertex in graph.vertices[vertex_id].subtasks:
        graph.set_available(vertex, False)


def indeterminate_chain() -> job_pb2.JobGraph:
    """source -> an indeterminate stage -> sink."""
    job = chain(4)
    job.vertices[1].operators[0].determinism = job_pb2.DETERMINISM_INDETERMINATE
    return job


def test_a_lost_output_costs_its_producer_alone() -> None:
    graph = graph_with(chain(4), 4, {"s": ALL, "m": ALL})
    assert lose(graph, ("m", 2)).resets == {("m", 2): LOST}


def test_a_producer_whose_inputs_are_gone_takes_them_along() -> None:
    """P12: M finished, all S outputs gone, one M output lost."""
    graph = graph_with(chain(4), 4, {"s": ALL, "m": ALL})
    drop(graph, "s")
    plan = lose(graph, ("m", 1))
    assert plan.resets == {("m", 1): LOST} | {("s", i): UPSTREAM for i in ALL}


def test_only_those_inputs_that_are_gone() -> None:
    graph = graph_with(chain(4), 4, {"s": ALL, "m": ALL})
    graph.set_available(graph.vertex_at("s", 3), False)
    assert lose(graph, ("m", 1)).resets == {("m", 1): LOST, ("s", 3): UPSTREAM}


def test_all_outputs_of_a_worker_go_in_one_plan() -> None:
    """P16."""
    graph = graph_with(chain(4), 4, {"s": ALL, "m": ALL})
    plan = lose(graph, ("s", 0), ("s", 1), ("m", 0))
    assert plan.resets == {("m", 0): LOST, ("s", 0): UPSTREAM, ("s", 1): UPSTREAM}


def test_what_nobody_needs_any_more_is_left_alone() -> None:
    """P17: every consumer has finished."""
    graph = graph_with(chain(4), 4, {"s": ALL, "m": ALL})
    assert lose(graph, *(("s", i) for i in ALL)) == ResetPlan()


def test_an_unfinished_subtask_has_nothing_to_lose() -> None:
    graph = graph_with(chain(4), 4, {"s": [0]})
    assert lose(graph, ("s", 1)) == ResetPlan()


def test_forward_exchanges_are_followed_subtask_by_subtask() -> None:
    graph = graph_with(chain(4, forward=True), 4, {"s": ALL, "m": ALL})
    drop(graph, "s")
    assert lose(graph, ("m", 2)).resets == {("m", 2): LOST, ("s", 2): UPSTREAM}


def test_both_inputs_of_a_join_are_followed() -> None:
    job = join(4)
    graph = graph_with(job, 4, {"s1": ALL, "s2": ALL, "j": ALL})
    drop(graph, "s1")
    graph.set_available(graph.vertex_at("s2", 0), False)
    plan = lose(graph, ("j", 3))
    expected = {("j", 3): LOST, ("s2", 0): UPSTREAM} | {("s1", i): UPSTREAM for i in ALL}
    assert plan.resets == expected


def test_what_may_come_back_is_awaited_and_not_reset() -> None:
    graph = graph_with(chain(4), 4, {"s": ALL, "m": ALL})
    drop(graph, "s")
    graph.set_available(graph.vertex_at("m", 0), False)
    plan = plan_resets(
        graph, [(graph.vertex_at("m", 0), LOST)], lambda vertex: vertex.stored_at == "tm-3"
    )
    assert plan.resets == {("m", 0): LOST} | {("s", i): UPSTREAM for i in range(3)}
    assert list(plan.awaited) == [("s", 3)]


def test_consumers_of_an_indeterminate_producer_run_again_finished_or_not() -> None:
    """Behaviour 5.6: whoever has read its old rows."""
    graph = graph_with(indeterminate_chain(), 4, {"s": ALL, "m": ALL, "k": [0, 1]})
    graph.vertex_at("k", 2).state = ExecutionState.RUNNING
    plan = lose(graph, ("m", 0))
    assert plan.resets == {("m", 0): LOST, ("k", 0): MIXED, ("k", 1): MIXED}
    assert list(plan.restarts) == [("k", 2)]


def test_who_reads_by_position_the_rows_of_an_unordered_producer_runs_again() -> None:
    """Behaviour 5.6: the rows are the same, but another run deals them out otherwise."""
    graph = graph_with(dealt_out(4), 4, {"s": ALL, "m": ALL, "k": [0, 1]})
    plan = lose(graph, ("m", 0))
    assert plan.resets == {("m", 0): LOST, ("k", 0): MIXED, ("k", 1): MIXED}


def test_of_a_source_whose_splits_nobody_knows_any_more_all_subtasks_run_again() -> None:
    """Behaviour 5.7: one must, and what the others have read cannot be told."""
    graph = graph_with(unrecorded(chain(4)), 4, {"s": ALL, "m": [0]})
    plan = lose(graph, ("s", 2))
    assert plan.resets == {
        ("s", 2): LOST,
        **{("s", i): UNKNOWN for i in (0, 1, 3)},
        ("m", 0): MIXED,
    }


def test_while_the_leader_lives_that_listed_them_one_subtask_of_such_a_source_runs_alone() -> None:
    graph = graph_with(unrecorded(chain(4)), 4, {"s": ALL})
    graph.vertices["s"].splits_unknown = False
    assert lose(graph, ("s", 2)).resets == {("s", 2): LOST}


def test_consumers_of_a_determinate_producer_do_not() -> None:
    graph = graph_with(chain(4), 4, {"s": ALL, "m": ALL, "k": [0, 1]})
    graph.vertex_at("k", 2).state = ExecutionState.RUNNING
    plan = lose(graph, ("m", 0))
    assert (plan.resets, plan.restarts) == ({("m", 0): LOST}, {})


def test_readers_of_a_lost_worker_start_anew_and_finished_ones_are_left_alone() -> None:
    """P54: whatever they still want of it, they would ask for in vain until they give up."""
    graph = graph_with(chain(4), 4, {"s": ALL, "m": ALL, "k": [0, 1]})
    graph.vertex_at("k", 2).state = ExecutionState.RUNNING
    gone = graph.vertex_at("m", 0)
    graph.set_available(gone, False)
    plan = plan_resets(graph, [(gone, events_pb2.RESET_REASON_WORKER_LOST)])
    assert plan.resets == {("m", 0): events_pb2.RESET_REASON_WORKER_LOST}
    assert list(plan.restarts) == [("k", 2)]


def test_mixed_rows_are_followed_to_the_end_and_upstream_again() -> None:
    """n/0 needs m/1, which is indeterminate: all of n, and the sink that has read n, run again, and
    t, which n reads too, because it is gone.
    """
    vertices = [
        source("s", 2),
        stage("m", 2, job_pb2.DETERMINISM_INDETERMINATE),
        source("t", 2),
        stage("n", 2),
        sink("k", 2),
    ]
    job = job_pb2.JobGraph(job_id="job", vertices=vertices)
    connect(job, "s", "m", HASH, 2)
    connect(job, "m", "n", HASH, 2)
    connect(job, "t", "n", FORWARD, 1)
    connect(job, "n", "k", HASH, 2)
    both = range(2)
    graph = graph_with(job, 2, {"s": both, "m": both, "t": both, "n": both, "k": [1]})
    drop(graph, "t")
    graph.set_available(graph.vertex_at("m", 1), False)
    plan = lose(graph, ("n", 0))
    assert plan.resets == {
        ("n", 0): LOST,
        ("m", 1): UPSTREAM,
        ("n", 1): MIXED,
        ("t", 0): UPSTREAM,
        ("t", 1): UPSTREAM,
        ("k", 1): MIXED,
    }


def test_a_rerun_that_would_reach_published_output_fails_the_job() -> None:
    """Behaviour 5.6: instead of mixing two outcomes."""
    graph = graph_with(indeterminate_chain(), 4, {"s": ALL, "m": ALL, "k": ALL})
    graph.apply(state_changed(JobState.RUNNING))
    graph.apply(events_pb2.JobEvent(commit_started=events_pb2.JobCommitStarted()))
    core = SchedulerCore(graph, 1, OPTIONS)
    vertex = graph.vertex_at("m", 0)
    reason = events_pb2.RESET_REASON_STAGED_FILES_LOST
    handling = FailureHandling(core, RestartStrategy(3, 0), RestartedWorkers(core))
    handling.reset([(vertex, reason)])
    assert core.doom is not None
    assert "5 subtasks (m/0 first) would have to run again after" in core.doom.message
    assert core.decision.events == []
    assert graph.all_finished


# Restart strategies


def test_a_fixed_delay_is_the_same_every_time_until_all_attempts_are_used() -> None:
    strategy = RestartStrategy(attempts_max=3, delay_s=2)
    assert [strategy.next_delay_s() for _ in range(5)] == [2, 2, 2, None, None]
    assert strategy.restarts == 3


def test_an_exponential_delay_grows_to_its_maximum() -> None:
    strategy = RestartStrategy(9, delay_s=1, backoff_multiplier=3, delay_s_max=10)
    assert [strategy.next_delay_s() for _ in range(4)] == [1, 3, 9, 10]


def test_no_restart_is_no_restart() -> None:
    assert RestartStrategy(attempts_max=0, delay_s=0).next_delay_s() is None


def test_a_delay_stays_at_its_maximum_after_any_number_of_restarts() -> None:
    strategy = RestartStrategy(1 << 31, delay_s=0.1, backoff_multiplier=1.5, delay_s_max=60)
    assert [strategy.next_delay_s() for _ in range(5000)][-1] == 60
