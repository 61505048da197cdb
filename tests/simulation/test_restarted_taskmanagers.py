"""TaskManagers are started again on their disks, alone, with the JobManager, or all at once."""

from __future__ import annotations

import pytest

from simulator.quantities import Constant
from simulator.scenario import JobSpec, StageSpec
from tests.simulation.story import Story, attempts_of, runs_of, tell, two_stages, wait_of

ONCE = dict.fromkeys(range(6), 1)


def test_all_processes_are_killed_and_no_finished_work_is_lost() -> None:
    """P40: the partitions of every TaskManager are found on its disk."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        await story.at(story.now_s + 3.0)
        for name in ("jm-1", "tm-1", "tm-2", "tm-3"):
            story.kill(name, restart_after_s=2.0)
        await story.job_is("RUNNING")
        await story.registered("tm-1", 2)

    record = tell(two_stages(6, leader="file"), plot)
    assert runs_of(record, "map") == ONCE
    [recovery] = record.jobs[0].recoveries
    kinds = [worker["kind"] for worker in recovery["workers"]]
    assert kinds == ["WORKER_RETURN_KIND_IN_TIME"] * 3
    from_s, until_s = wait_of(record, 2)
    assert until_s - from_s < 5.0, "nothing is missing, so nothing is waited for"


def test_a_taskmanager_comes_back_while_the_jobmanager_is_away() -> None:
    """P23: its restart is no loss; it waits for the leader like the others."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        await story.at(story.now_s + 3.0)
        away = story.kill("jm-1")
        story.kill("tm-2", restart_after_s=0.5)
        await story.at(story.now_s + 10.0)
        assert len(story.held("tm-2")) == 2
        story.heal(away)
        await story.registered("tm-2", 2)

    record = tell(two_stages(6), plot)
    assert runs_of(record, "map") == ONCE


@pytest.mark.parametrize("away_s", [0.2, 3.0])
def test_a_taskmanager_comes_back_to_a_living_jobmanager(away_s: float) -> None:
    """What has begun to run again meanwhile is given up for what it brings; nothing finishes
    twice, and its tasks run elsewhere."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        await story.at(story.now_s + 1.0)
        story.kill("tm-2", restart_after_s=away_s)
        await story.until(lambda: story.epoch_of("tm-2") is None, "it is gone")
        await story.registered("tm-2", 1)

    record = tell(two_stages(6, map_s=8.0, reduces=4), plot)
    ends = [attempt.end for attempt in attempts_of(record, "map") if attempt.end == "finished"]
    assert len(ends) == 6


def test_a_job_that_ended_meanwhile_leaves_nothing_on_the_disk_of_one_that_was_away() -> None:
    """P35: it learns of the end when it offers what it has found."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        away = story.kill("tm-2")
        await story.until(lambda: story.logged("job ended"), "the job ends")
        assert story.files("tm-2") != []
        story.heal(away)
        await story.until(lambda: story.files("tm-2") == [], "its files are deleted")

    tell(two_stages(6, reduce_s=20.0), plot)


def test_found_work_is_kept_as_long_as_a_leader_may_come_and_not_longer() -> None:
    """P27: the time runs from the start of the TaskManager that has found it."""
    timeout_s = 40.0

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        away = story.kill("jm-1")
        story.kill("tm-2", restart_after_s=20.0)
        await story.until(lambda: len(story.held("tm-2")) == 2, "it has found its work")
        started_s = story.now_s
        await story.at(started_s + timeout_s - 1.0)
        assert len(story.held("tm-2")) == 2
        await story.until(lambda: story.files("tm-2") == [], "it is deleted", 5.0)
        assert story.now_s >= started_s + timeout_s - 0.1
        story.heal(away)
        await story.registered("tm-2", 2)

    options = {"taskmanager.registration.timeout": f"{timeout_s:.0f} s"}
    tell(two_stages(6, options=options), plot)


def test_a_bound_on_what_is_held_costs_only_what_nobody_needs() -> None:
    """Partitions are kept for the whole job, but for those above the bound, oldest first."""

    async def plot(story: Story) -> None:
        await story.stage_finished("middle")
        asked = "more finished partitions than wanted"
        await story.until(lambda: story.logged(asked), "they ask for room")
        await story.until(lambda: len(story.held("tm-1")) == 2, "the oldest are deleted")
        held = [execution.attempt.vertex_id for execution in story.held("tm-1")]
        assert len(set(held)) == 1, "what the last stage reads stays"

    options = {
        "taskmanager.retained-partitions.max-bytes": "2500 kb",
        "jobmanager.partition.release-during-job-execution": "false",
        "heartbeat.interval": "1 s",
    }
    scenario = two_stages(2, taskmanagers=1, options=options)
    stages = (
        StageSpec(name="map", parallelism=2, seconds=Constant(1.0)),
        StageSpec(name="middle", parallelism=2, seconds=Constant(1.0)),
        StageSpec(name="last", parallelism=1, seconds=Constant(60.0)),
    )
    job = JobSpec(name="job", stages=stages)
    tell(scenario.model_copy(update={"jobs": (job,)}), plot)


def test_one_that_is_awaited_in_vain_costs_what_was_on_its_disk_and_not_all_before_it() -> None:
    """The middle stage becomes finished while it is awaited with some of it: what that has read is
    kept, for some of it must be made once more."""

    async def plot(story: Story) -> None:
        await story.stage_finished("middle", 0.8)
        last, *_ = [name for name in ("tm-1", "tm-2", "tm-3") if story.tasks(name)]
        away.append(next(name for name in ("tm-1", "tm-2", "tm-3") if name != last))
        had.update((e.attempt.vertex_id, e.attempt.subtask) for e in story.held(away[0]))
        story.kill(away[0])
        await story.stage_finished("middle")
        await story.at(story.now_s + 5.0)
        for name in sorted({"tm-1", "tm-2", "tm-3"} - set(away)):
            assert any(e.attempt.vertex_id == "v0" for e in story.held(name))

    away: list[str] = []
    had: set[tuple[str, int]] = set()
    restart = "execution.batch.job-recovery.taskmanager-restart.timeout"
    stages = (
        StageSpec(name="first", parallelism=6, seconds=Constant(1.0)),
        StageSpec(name="middle", parallelism=7, seconds=Constant(2.0)),
        StageSpec(name="last", parallelism=2, seconds=Constant(2.0)),
    )
    scenario = two_stages(6, options={restart: "30 s"})
    job = JobSpec(name="job", stages=stages)
    record = tell(scenario.model_copy(update={"jobs": (job,)}), plot)
    for stage, vertex_id in (("first", "v0"), ("middle", "v1")):
        again = {subtask for subtask, runs in runs_of(record, stage).items() if runs > 1}
        assert again == {subtask for at, subtask in had if at == vertex_id}
        assert again
