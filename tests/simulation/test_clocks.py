"""Wall clocks jump; nobody decides anything by them."""

from __future__ import annotations

import pytest

from simulator.record import RunRecord
from tests.simulation.story import Story, ready_of, runs_of, tell, two_stages, wait_of

HOUR_S = 3_600.0
EVERYBODY = ("jm-1", "tm-1", "tm-2", "tm-3", "leader-service")


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("victim", ["jm-1", "tm-1", "leader-service"])
def test_a_jump_in_the_middle_of_a_job_is_noticed_by_nobody(victim: str, by_s: float) -> None:
    """P60: nobody is declared dead, no leadership ends, nothing runs twice."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.jump(victim, by_s)
        await story.at(story.now_s + 55.0)
        _nobody_is_lost(story, 0.0)

    record = tell(two_stages(6), plot)
    assert len(record.epochs) == 1
    assert record.measures.subtasks_rerun == 0


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_the_wait_for_workers_keeps_its_length_when_clocks_jump_inside_it(by_s: float) -> None:
    """P60: W is 30 s, whatever JobManager, leader service and a TaskManager show."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.kill("tm-2")
        await story.kill("jm-1", restart_after_s=1.0).over.wait()
        began_s = await story.job_is("RECONCILING")
        await story.at(began_s + 5.0)
        for victim in ("jm-1", "tm-1", "leader-service"):
            story.jump(victim, by_s)
        await story.job_is("RUNNING")
        _nobody_is_lost(story, began_s)

    record = tell(two_stages(6), plot)
    _, until_s = wait_of(record, 2)
    assert until_s - ready_of(record, 2) == pytest.approx(30.0, abs=0.2)
    assert sorted(runs_of(record, "map").values()) == [1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_retained_partitions_live_as_long_as_ever_when_clocks_jump(by_s: float) -> None:
    """P60: R is 300 s; an hour later by the clock on the wall everything is there still."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        dead = story.kill("jm-1")
        await story.until(lambda: story.logged("JobManager lost", "tm-1"), "tm-1 notices")
        lost_s = story.logged("JobManager lost", "tm-1")[-1].at_s
        await story.at(lost_s + 10.0)
        for victim in EVERYBODY:
            story.jump(victim, by_s)
        await story.at(lost_s + 299.0)
        assert story.files("tm-1")
        assert len(story.held("tm-1")) == 2
        await story.at(lost_s + 305.0)
        assert story.files("tm-1") == []
        story.heal(dead)
        await story.registered("tm-1", 2)

    record = tell(two_stages(6), plot)
    assert _fate(record) == {2}


def _fate(record: RunRecord) -> set[int]:
    return set(runs_of(record, "map").values())


def _nobody_is_lost(story: Story, since_s: float) -> None:
    for event in ("taskmanager lost", "JobManager lost", "leadership lost"):
        assert story.logged(event, since_s=since_s) == []
