"""Output at shuffle services: its makers die, and leaders do; it does not run again."""

from __future__ import annotations

from typing import Any

from simulator.scenario import Scenario
from tests.simulation.story import Story, runs_of, tell, two_stages

ONCE = dict.fromkeys(range(6), 1)


def external(services: int = 2, **more: Any) -> Scenario:
    return two_stages(6, shuffle_services=services, options={"shuffle.mode": "external"}, **more)


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

    options = {"shuffle.mode": "external", "taskmanager.registration.timeout": "5 min"}
    scenario = two_stages(6, shuffle_services=2, options=options)
    assert runs_of(tell(scenario, plot), "map") == ONCE


def test_a_service_that_is_lost_costs_what_it_held() -> None:
    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.kill("ss-1")

    record = tell(external(), plot)
    assert sorted(runs_of(record, "map").values()) == [1, 1, 1, 2, 2, 2]
