"""Jobs end, however: finished, failed or cancelled, while leaders die and workers are away."""

from __future__ import annotations

import pytest

from simulator.expected_failures import NO_SLOTS
from tests.simulation.story import (
    HEARTBEAT_S,
    WAIT,
    Story,
    attempts_of,
    runs_of,
    tell,
    three_jobs,
    two_stages,
)

NAMES = ("tm-1", "tm-2", "tm-3")
SLOT_TIMEOUT_S = 60.0


def test_nothing_is_left_anywhere_of_jobs_that_have_ended_in_any_way() -> None:
    """P35: finished, failed, cancelled; the JobManager dies as the first of them ends, and one
    TaskManager is away until all is over. It learns of the ends when it is back."""
    names = ("finished", "failed", "cancelled")

    async def plot(story: Story) -> None:
        for job in names:
            await story.stage_finished("map", job=job)
        away = story.cut("jm-1", "tm-3")
        story.cancel("cancelled")
        await story.until(lambda: story.logged("job ended"), "the first job ends")
        story.kill("jm-1", restart_after_s=1.0)
        await story.until(lambda: all(story.has_ended(job) for job in names), "all jobs end")
        assert story.files("tm-3") != [], "it has heard of no end"
        story.heal(away)
        await story.registered("tm-3", 2)
        await story.until(
            lambda: not any(story.files(name) or story.held(name) for name in NAMES),
            "nothing is left at any TaskManager",
            2 * HEARTBEAT_S,
        )

    tell(three_jobs(names), plot, ends=["FINISHED", "FAILED", "CANCELED"])


@pytest.mark.parametrize("after_s", [0.0, 0.5, 2.0])
def test_a_cancelled_job_stays_cancelled_whenever_its_leader_dies(after_s: float) -> None:
    """P47: after the acknowledgement no leader starts anything of it, and nothing is left."""
    acknowledged_s: list[float] = []

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        await story.at(story.now_s + 1.0)
        story.cancel()
        acknowledged_s.append(await story.until(story.cancel_is_acknowledged, "it is acknowledged"))
        await story.at(story.now_s + after_s)
        story.kill("jm-1", restart_after_s=1.0)
        await story.until(story.has_ended, "the job ends")

    record = tell(two_stages(6), plot, ends=["CANCELED"])
    stages = [*attempts_of(record, "map"), *attempts_of(record, "reduce")]
    assert [a for a in stages if a.started_s > acknowledged_s[0]] == []


def test_a_job_is_cancelled_while_its_leader_waits_for_workers() -> None:
    """P47: at once, and not when the wait is over; the worker that never comes is not missed."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.kill("tm-2")
        story.kill("jm-1", restart_after_s=1.0)
        waits_s = await story.job_is("RECONCILING")
        story.cancel()
        ended_s = await story.until(story.has_ended, "the job ends")
        assert ended_s - waits_s < 5.0

    record = tell(two_stages(6), plot, ends=["CANCELED"])
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)


def test_all_processes_are_started_again_on_empty_disks_and_the_job_ends_right() -> None:
    """P48: nothing of what had finished is anywhere any more; its producers run again."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        dark = [story.power_loss(name) for name in NAMES]
        story.kill("jm-1", restart_after_s=1.0)
        await story.at(story.now_s + 2.0)
        for made in dark:
            story.heal(made)
        await story.registered("tm-1", 2)

    record = tell(two_stages(6, leader="file"), plot)
    assert runs_of(record, "map") == dict.fromkeys(range(6), 2)


def test_with_no_worker_back_the_job_fails_when_it_has_waited_long_enough() -> None:
    """P48: in `slot.request.timeout`, and its failure says what it had waited for."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        for name in NAMES:
            story.kill(name)
        story.kill("jm-1", restart_after_s=1.0)
        waits_s = await story.job_is("RUNNING")
        story.may_fail(NO_SLOTS)
        ended_s = await story.until(story.has_ended, "the job ends")
        assert ended_s - waits_s == pytest.approx(SLOT_TIMEOUT_S, abs=1.0)

    options = {"slot.request.timeout": f"{SLOT_TIMEOUT_S:.0f} s", WAIT: "5 s"}
    record = tell(two_stages(6, options=options), plot, ends=["FAILED"])
    assert "0 TaskManagers are registered" in record.jobs[0].failure
