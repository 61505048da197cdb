"""The two state machines: what their tables allow, and nothing else."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import product
from typing import TypeVar

import pytest

from holdover.v1 import common_pb2
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.states import (
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    TERMINAL_JOB_STATES,
    ExecutionState,
    InvalidTransition,
    JobState,
    check_job_transition,
)
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import initialized, state_changed

State = TypeVar("State", bound=Hashable)


def reachable(table: Mapping[State, Sequence[State]], start: State) -> set[State]:
    """Every state that can follow `start`, directly or not, with itself."""
    seen, pending = {start}, [start]
    while pending:
        for after in table[pending.pop()]:
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return seen


def test_every_state_of_the_wire_has_a_row() -> None:
    assert set(JOB_TRANSITIONS) == set(JobState)
    assert set(EXECUTION_TRANSITIONS) == set(ExecutionState)
    assert len(JobState) == len(common_pb2.JobState.keys()) - 1
    assert len(ExecutionState) == len(common_pb2.ExecutionState.keys()) - 1


@pytest.mark.parametrize(("before", "after"), [*product(JobState, JobState)])
def test_a_job_changes_only_as_its_table_allows(before: JobState, after: JobState) -> None:
    graph = ExecutionGraph(chain(1))
    graph.state = before
    if after in JOB_TRANSITIONS[before]:
        check_job_transition(before, after)
        graph.apply(state_changed(after))
        assert graph.state is after
    else:
        with pytest.raises(InvalidTransition, match=f"job {before.name} -> {after.name}"):
            graph.apply(state_changed(after))
        assert graph.state is before


@pytest.mark.parametrize(("before", "after"), [*product(ExecutionState, ExecutionState)])
def test_an_attempt_changes_only_as_its_table_allows(
    before: ExecutionState, after: ExecutionState
) -> None:
    graph = ExecutionGraph(chain(1))
    graph.apply(initialized("s", 1))
    vertex = graph.vertex_at("s", 0)
    vertex.state = before
    if after in EXECUTION_TRANSITIONS[before]:
        graph.transition(vertex, after)
        assert vertex.state is after
    else:
        with pytest.raises(InvalidTransition, match=f"s/0: {before.name} -> {after.name}"):
            graph.transition(vertex, after)
        assert vertex.state is before


def test_every_state_but_parked_is_reached_from_created() -> None:
    assert reachable(JOB_TRANSITIONS, JobState.CREATED) == set(JobState) - {JobState.PARKED}
    assert reachable(EXECUTION_TRANSITIONS, ExecutionState.CREATED) == set(ExecutionState)


def test_every_job_can_end_and_an_ended_job_stays_ended() -> None:
    for state in set(JobState) - {JobState.PARKED}:
        assert reachable(JOB_TRANSITIONS, state) & set(TERMINAL_JOB_STATES), state
    assert all(not JOB_TRANSITIONS[state] for state in TERMINAL_JOB_STATES)


def test_every_attempt_can_finish_or_make_room_for_the_next() -> None:
    for state in ExecutionState:
        after = reachable(EXECUTION_TRANSITIONS, state)
        assert {ExecutionState.FINISHED, ExecutionState.CREATED} <= after, state
