"""How long a scenario's work may take once all is healed."""

from __future__ import annotations

import math
from typing import Any

from simulator.run_settings import cluster_settings, patience_s, settling_max_s
from simulator.scenario import Scenario


def scenario(*stages: dict[str, Any], **cluster: Any) -> Scenario:
    return Scenario.model_validate(
        {"cluster": {"taskmanagers": 100, "slots": 10, **cluster}, "jobs": [{"stages": stages}]}
    )


def settling_s(*stages: dict[str, Any], **cluster: Any) -> float:
    return settling_max_s(scenario(*stages, **cluster), {})


def test_a_single_long_subtask_has_its_time_however_many_slots_there_are() -> None:
    assert settling_s({"name": "a", "parallelism": 1, "seconds": "1 h"}) > 3_600


def test_work_has_its_time_on_few_slots() -> None:
    wide = {"name": "a", "parallelism": 1_000, "seconds": "10 s"}
    few, many = settling_s(wide, taskmanagers=1, slots=1), settling_s(wide)
    assert few > 10_000
    assert many < 2_000


def test_stages_that_follow_each_other_have_the_time_of_all() -> None:
    stage = {"parallelism": 1, "seconds": "10 min"}
    chain = [{"name": name, **stage} for name in ("a", "b", "c")]
    assert settling_s(*chain) - settling_s(*chain[:1]) > 1_200


def test_attempts_that_fail_have_the_time_of_those_that_follow_and_of_the_pauses() -> None:
    sure = {"name": "a", "parallelism": 1, "seconds": "100 s"}
    assert settling_s({**sure, "failure_probability": 0.5}) - settling_s(sure) > 100
    assert math.isfinite(settling_s({**sure, "failure_probability": 1.0}))


def test_patience_follows_from_the_options() -> None:
    stage = {"name": "a", "parallelism": 1}
    longer = {"heartbeat.timeout": "500 s", "heartbeat.interval": "10 s"}
    assert patience_s(scenario(stage), longer) - patience_s(scenario(stage), {}) == 450


def test_never_is_no_time_and_a_locked_file_needs_no_leader_service() -> None:
    spec = {"taskmanager_restart": "never", "jobmanager_restart": 3, "leader": "file"}
    settings = cluster_settings(scenario({"name": "a", "parallelism": 1}, **spec), {})
    assert settings.taskmanager_restart_s is None
    assert settings.jobmanager_restart_s == 3.0
    assert settings.lease_ttl_s is None
