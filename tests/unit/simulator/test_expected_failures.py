"""A job may fail only for a reason that its scenario gives it."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.expected_failures import NO_SLOTS, RESTARTS_USED, failures_allowed
from simulator.scenario import Scenario

KILL = {"kind": "kill-task", "victims": "one", "at": 1}
LOST = {"kind": "lose-partitions", "victims": "one", "at": 1}
CRASH = {"kind": "crash", "victims": "one", "at": 1, "restart_after": 10}
NO_RESTARTS = {"restart-strategy.type": "none"}
ATTEMPTS = "restart-strategy.fixed-delay.attempts"


def allowed(
    *faults: dict[str, Any],
    options: dict[str, str] | None = None,
    failing: float = 0.0,
    jobs: int = 1,
    **cluster: Any,
) -> tuple[str, ...]:
    """With what the first job of a scenario with these faults may fail."""
    stages = [{"name": "map", "parallelism": 4, "failure_probability": failing}]
    scenario = Scenario.model_validate(
        {
            "cluster": {"taskmanagers": 3, "slots": 2, "taskmanager_restart": 1, **cluster},
            "jobs": [{"name": f"job-{number}", "stages": stages} for number in range(jobs)],
            "options": options or {},
            "faults": list(faults),
        }
    )
    return failures_allowed(scenario, scenario.jobs[0], scenario.options, patience_s=30.0)


def test_without_faults_nothing_may_fail() -> None:
    assert allowed() == ()
    assert allowed(options=NO_RESTARTS) == ()


@pytest.mark.parametrize("fault", [KILL, LOST, CRASH])
def test_a_job_without_restarts_may_fail_of_the_first_fault(fault: dict[str, Any]) -> None:
    assert allowed(fault, options=NO_RESTARTS) == (RESTARTS_USED,)


def test_attempts_that_fail_by_themselves_may_use_up_all_restarts() -> None:
    assert allowed(failing=0.1) == (RESTARTS_USED,)


@pytest.mark.parametrize(
    ("fault", "failures"),
    [
        (KILL, 1),
        ({**KILL, "repeat": 3, "every": 1}, 3),
        ({**KILL, "tasks": "all"}, 2),
        ({**KILL, "victims": "all", "tasks": "all"}, 6),
    ],
)
def test_killed_tasks_are_counted(fault: dict[str, Any], failures: int) -> None:
    assert allowed(fault, options={ATTEMPTS: str(failures)}) == ()
    assert allowed(fault, options={ATTEMPTS: str(failures - 1)}) == (RESTARTS_USED,)


def test_a_clock_that_is_set_is_no_reason_to_fail() -> None:
    assert allowed({"kind": "clock-jump", "victims": "all", "by": 5, "at": 1}) == ()


def test_a_job_may_run_out_of_patience_where_faults_last_that_long() -> None:
    many = {ATTEMPTS: "0"}
    timeout = "slot.request.timeout"
    assert NO_SLOTS not in allowed(CRASH, options={timeout: "1 min", **many})
    assert NO_SLOTS in allowed(CRASH, options={timeout: "30 s", **many})
    assert NO_SLOTS in allowed({**CRASH, "restart_after": "never"}, options=many)
    assert NO_SLOTS in allowed(
        {"kind": "pause", "victims": "one", "at": 1, "for": 1}, taskmanager_restart="never"
    )


def test_a_job_may_wait_for_another_as_long_as_that_takes() -> None:
    assert allowed(jobs=2) == (NO_SLOTS,)
