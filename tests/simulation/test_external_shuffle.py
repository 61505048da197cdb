"""Output at shuffle services: its makers die, and leaders do; it does not run again."""

from __future__ import annotations

from typing import Any

from simulator import fault_kinds as kinds
from simulator.scenario import Scenario
from tests.simulation.story import Story, runs_of, tell, two_stages

EXTERNAL = {"shuffle.mode": "external"}
ONCE = dict.fromkeys(range(6), 1)


def external(services: int = 2, **more: Any) -> Scenario:
    return two_stages(6, shuffle_services=services, options=EXTERNAL, **more)


def test_output_is_spread_over_the_services_and_goes_with_its_job() -> None:
    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        assert sorted(len(story.held(name)) for name in ("ss-1", "ss-2")) == [3, 3]
        assert not any(story.held(name) for name in ("tm-1", "tm-2", "tm-3"))

    assert runs_of(tell(external(), plot), "map") == ONCE


def test_the_jobmanager_and_all_taskmanagers_die_and_no_finished_work_is_lost() -> None:
    """P39: where output is and who has made it are two things."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        for name in ("jm-1", "tm-1", "tm-2", "tm-3"):
            story.kill(name, restart_after_s=2.0)
        await story.job_is("RUNNING")

    assert runs_of(tell(external(), plot), "map") == ONCE


def test_a_service_that_is_started_again_brings_back_what_it_held() -> None:
    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        for name in ("jm-1", "ss-1", "ss-2"):
            story.kill(name, restart_after_s=2.0)
        await story.job_is("RUNNING")

    assert runs_of(tell(external(), plot), "map") == ONCE


def test_the_services_outlive_a_leader_that_is_long_away() -> None:
    """P36, P37: silence between leaders is nobody's end."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.kill("jm-1", restart_after_s=120.0)
        await story.registered("ss-1", 2, within_s=200.0)

    options = {**EXTERNAL, "taskmanager.registration.timeout": "5 min"}
    scenario = two_stages(6, shuffle_services=2, options=options)
    assert runs_of(tell(scenario, plot), "map") == ONCE


def test_a_service_that_is_lost_costs_what_it_held() -> None:
    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.kill("ss-1")

    record = tell(external(), plot)
    assert sorted(runs_of(record, "map").values()) == [1, 1, 1, 2, 2, 2]


def test_a_service_that_is_drained_leaves_and_nothing_runs_again() -> None:
    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        assert story.held("ss-1")
        story.make(kinds.Drain, victims="shuffle:1")
        others = ("ss-2", "ss-3")
        await story.until(lambda: sum(len(story.held(name)) for name in others) == 6, "copies")
        await story.until(lambda: not story.cluster.node("ss-1").alive, "it leaves", within_s=200.0)

    record = tell(external(3, shuffle_service_restart="never"), plot)
    assert runs_of(record, "map") == ONCE
    assert runs_of(record, "reduce") == {0: 1, 1: 1}


def test_the_leader_dies_while_a_service_is_drained() -> None:
    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.make(kinds.Drain, victims="shuffle:1")
        await story.until(lambda: len(story.held("ss-2")) > 3, "a copy has come")
        story.kill("jm-1", restart_after_s=2.0)
        await story.job_is("RUNNING")
        await story.until(lambda: not story.cluster.node("ss-1").alive, "it leaves", within_s=200.0)

    record = tell(external(2, shuffle_service_restart="never"), plot)
    assert runs_of(record, "map") == ONCE


def test_partitions_that_are_gone_at_a_service_run_again_and_no_others() -> None:
    """P34."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map", 0.5)
        story.make(kinds.LosePartitions, victims="shuffle:holders", part=1.0)

    scenario = two_stages(12, shuffle_services=2, options=EXTERNAL)
    assert sorted(runs_of(tell(scenario, plot), "map").values()) == [1] * 9 + [2] * 3


def test_a_cut_between_a_task_and_a_service_costs_time_alone() -> None:
    """P41."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map", 0.5)
        for _ in range(3):
            cut = story.cut("tm-1", "ss-1")
            await story.at(story.now_s + 2.0)
            story.heal(cut)
            await story.at(story.now_s + 1.0)

    record = tell(external(), plot)
    assert runs_of(record, "map") == ONCE
