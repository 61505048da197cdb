"""When faults are made: at a time, at an event, at a step of a recovery, or never."""

from __future__ import annotations

import math
from typing import Any

from simulator import fault_kinds as kinds
from simulator.simulate import run_scenario
from tests.simulation.story import two_stages


def when(**fields: Any) -> list[float]:
    """When a scenario makes a fault of these fields; the job runs from 1 s to about 5 s."""
    fault = kinds.AddressChange.model_validate({"victims": "standby", **fields})
    job_options = {"heartbeat.interval": "1 s"}
    scenario = two_stages(
        4, taskmanagers=2, reduce_s=1.0, jobmanagers=2, options=job_options, faults=(fault,)
    )
    record = run_scenario(scenario, seed=1)
    assert record.findings == []
    return [made.at_s for made in record.faults]


def test_a_fault_happens_at_its_time_as_often_as_it_says() -> None:
    assert when(at=0.5) == [0.5]
    assert when(at=0.5, repeat=3, every=0.25) == [0.5, 0.75, 1.0]


def test_a_fault_waits_for_what_it_says_and_then_as_long_as_it_says() -> None:
    [begun_s] = when(when={"stage": "map", "finished": 0.01})
    [half_s] = when(when={"stage": "map", "finished": 0.5, "after": 0.2})
    [over_s] = when(when={"jobs": "FINISHED"}) or [math.inf]
    assert 1.0 < begun_s < half_s < over_s


def test_a_state_that_a_job_had_for_a_moment_counts() -> None:
    [made_s] = when(when={"job": "CREATED"})
    [runs_s] = when(when={"job": "RUNNING"})
    assert made_s < runs_s < made_s + 0.1


def test_a_fault_whose_moment_never_comes_is_not_made() -> None:
    assert when(when={"job": "CANCELED"}) == []
    assert when(at=3000.0) == []


def test_a_fault_waits_for_a_step_after_another_fault_was_made() -> None:
    """The first leadership's steps do not count."""
    crash = kinds.Crash.model_validate(
        {"id": "first", "victims": "leader", "restart_after": 0.5, "at": 3.0}
    )
    steps = ("elected", "reconciling", "registered", "ready", "running", "committing")
    aimed = [
        kinds.AddressChange.model_validate(
            {"victims": "standby", "when": {"step": step, "since": "first"}}
        )
        for step in ("noticed", *steps)
    ]
    scenario = two_stages(4, taskmanagers=1, reduce_s=1.0, jobmanagers=2, faults=(crash, *aimed))
    record = run_scenario(scenario, seed=1)
    assert record.findings == []
    assert record.unmade == []
    assert [fault.kind for fault in record.faults] == ["crash", *["address-change"] * len(aimed)]
    [elected, *_] = [epoch for epoch in record.epochs if epoch.from_s > 3.0]
    times_s = [fault.at_s for fault in record.faults]
    assert min(times_s) == 3.0
    assert elected.from_s in times_s
    assert elected.ready_s in times_s


def test_the_first_step_of_the_run_counts_where_no_fault_is_named() -> None:
    [made_s] = when(when={"step": "elected"})
    assert made_s < 1.0


def test_what_never_comes_is_told_by_the_record() -> None:
    late = kinds.Crash.model_validate({"victims": "leader", "at": 3000.0})
    never = kinds.Crash.model_validate({"victims": "leader", "when": {"step": "failing"}})
    record = run_scenario(two_stages(1, reduce_s=1.0, faults=(late, never)), seed=1)
    assert record.faults == []
    assert [(fault.kind, fault.when) for fault in record.unmade] == [
        ("crash", "at 3000.0 s"),
        ("crash", "step failing"),
    ]


def test_a_client_cancels_a_job() -> None:
    """P47: it ends so, whoever leads by then, and nothing of it is visible."""
    cancel = kinds.CancelJob.model_validate({"id": "c", "job": "job", "at": 3.0})
    crash = kinds.Crash.model_validate(
        {"victims": "leader", "when": {"step": "cancelling", "since": "c"}}
    )
    record = run_scenario(two_stages(4, faults=(cancel, crash)), seed=1)
    assert record.findings == []
    assert [job.state for job in record.jobs] == ["CANCELED"]
