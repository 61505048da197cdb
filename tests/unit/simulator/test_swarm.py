"""Drawn scenarios: a function of the seed, varied, and valid."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import get_args

import pytest

from simulator.fault_kinds import CancelJob, Drain, FaultMade, StepName, StepReached
from simulator.scenario_file import parse_scenario, scenario_text
from simulator.swarm import SWARM_DOUBLE, SWARM_EXTERNAL, SWARMS, WORK_S_MAX, draw_scenario
from simulator.swarm_faults import FAULTS_MAX
from tests.unit.simulator.test_scenario import FAULT_MODELS

SEEDS = range(400)


def test_a_seed_gives_the_same_scenario_in_every_process() -> None:
    program = (
        "import hashlib; from simulator.swarm import draw_scenario;"
        "from simulator.scenario_file import scenario_text;"
        "print(hashlib.sha256(''.join(scenario_text(draw_scenario(s)) for s in range(20))"
        ".encode()).hexdigest())"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1")
    ]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("swarm", SWARMS)
def test_seeds_differ_and_every_draw_can_be_written_down(swarm: str) -> None:
    texts = [scenario_text(draw_scenario(seed, swarm)) for seed in range(60)]
    assert len(set(texts)) == len(texts)
    for seed, text in enumerate(texts):
        assert parse_scenario(text.encode(), "s.yaml") == draw_scenario(seed, swarm)


def test_a_swarm_has_every_fault_and_every_run_only_some() -> None:
    scenarios = [draw_scenario(seed) for seed in SEEDS]
    kinds = [Counter(fault.kind for fault in scenario.faults) for scenario in scenarios]
    models = [model for model in FAULT_MODELS if model not in (CancelJob, Drain)]
    assert set().union(*kinds) == {model.model_fields["kind"].default for model in models}
    assert {len(scenario.faults) for scenario in scenarios} >= set(range(FAULTS_MAX))
    dominated = sum(max(count.values(), default=0) >= 4 for count in kinds)
    assert dominated > len(SEEDS) / 10


def test_most_runs_lose_several_leaders_and_make_faults_around_them() -> None:
    drawn = [draw_scenario(seed).faults for seed in SEEDS]
    leaders = ("leader", "jobmanagers")
    losses = [sum(v.role in leaders for fault in faults for v in fault.roles()) for faults in drawn]
    assert sum(count >= 2 for count in losses) > len(SEEDS) / 2
    follow = [faults for faults in drawn if any(isinstance(f.when, FaultMade) for f in faults)]
    assert len(follow) > len(SEEDS) / 2


def test_a_swarm_has_all_exchanges_and_adaptive_and_flaky_stages() -> None:
    stages = [s for seed in SEEDS for job in draw_scenario(seed).jobs for s in job.stages]
    assert {stage.exchange for stage in stages} == {"hash", "rebalance", "broadcast", "forward"}
    assert any(stage.parallelism is None for stage in stages)
    assert any(stage.failure_probability > 0 for stage in stages)
    assert any(stage.indeterminate for stage in stages)


@pytest.mark.parametrize("swarm", SWARMS)
def test_from_seed_20000_on_rows_come_in_splits_and_in_any_order(swarm: str) -> None:
    later = [draw_scenario(20_000 + seed, swarm) for seed in SEEDS]
    stages = [stage for scenario in later for job in scenario.jobs for stage in job.stages]
    assert any(stage.unordered for stage in stages)
    assert any(stage.splits for stage in stages)
    assert not any(s.unordered for seed in SEEDS for s in draw_scenario(seed, swarm).jobs[0].stages)


def test_a_drawn_run_is_small_and_every_job_may_restart_without_bound() -> None:
    for seed in SEEDS:
        scenario = draw_scenario(seed)
        assert scenario.cluster.taskmanagers <= 12
        assert max(job.submit_at_s for job in scenario.jobs) <= WORK_S_MAX
        assert scenario.options["restart-strategy.fixed-delay.attempts"] == "1000000"


def test_where_faults_meet_most_are_aimed_at_a_step_of_the_recovery_from_another() -> None:
    scenarios = [draw_scenario(seed, SWARM_DOUBLE) for seed in SEEDS]
    for scenario in scenarios:
        aimed = [f for f in scenario.faults if isinstance(f.when, StepReached) and f.when.since]
        assert aimed
        assert len(scenario.faults) <= FAULTS_MAX
    faults = [fault for scenario in scenarios for fault in scenario.faults]
    steps = Counter(fault.when.step for fault in faults if isinstance(fault.when, StepReached))
    assert steps.keys() == set(get_args(StepName)) - {"failing"}
    assert sum(steps.values()) > len(faults) / 2


def test_where_faults_meet_some_jobs_are_cancelled_and_have_splits() -> None:
    scenarios = [draw_scenario(seed, SWARM_DOUBLE) for seed in SEEDS]
    cancelled = sum(any(f.kind == "cancel-job" for f in s.faults) for s in scenarios)
    assert len(SEEDS) / 10 < cancelled < len(SEEDS) / 2
    sources = [s.splits for c in scenarios for j in c.jobs for s in j.stages if not s.inputs]
    assert len(sources) / 3 < sum(sources) < 2 * len(sources) / 3


def test_where_output_goes_to_shuffle_services_they_are_victims_as_taskmanagers_are() -> None:
    scenarios = [draw_scenario(seed, SWARM_EXTERNAL) for seed in SEEDS]
    roles = Counter(
        victims.role for s in scenarios for fault in s.faults for victims in fault.roles()
    )
    assert all(scenario.cluster.shuffle_services for scenario in scenarios)
    assert {"shuffle", "shuffle:one", "shuffle:all", "shuffle:holders"} <= set(roles)
    assert roles["one"] > 100
    assert sum(isinstance(fault, Drain) for s in scenarios for fault in s.faults) > 100
    external = [s for s in scenarios if s.options["shuffle.mode"] == "external"]
    assert 0.85 < len(external) / len(scenarios) < 0.95
