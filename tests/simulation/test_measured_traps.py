"""Seven traps into which recovery of batch jobs was measured to fall elsewhere, and not here."""

from __future__ import annotations

import pytest

from simulator.quantities import Constant
from simulator.scenario import ClusterSpec, JobSpec, NetworkSpec, Scenario, StageSpec
from tests.simulation.story import (
    WAIT,
    LogEvent,
    Story,
    attempts_of,
    ready_of,
    runs_of,
    tell,
    two_stages,
    wait_of,
)

MAPS = 6
ONCE = dict.fromkeys(range(MAPS), 1)


def resets(story: Story) -> dict[str, int]:
    """Subtasks of each vertex that this leader's recovery had run again, by the vertex's name."""
    master = story.cluster.job_master(story.job)
    assert master is not None
    report = master.recovery_reports()[-1]
    return {v.name: sum(r.subtasks for r in v.resets) for v in report.vertices if v.resets}


async def jobmanager_restarts(story: Story) -> None:
    await story.kill("jm-1", restart_after_s=1.0).over.wait()
    await story.job_is("RECONCILING")


def test_1_a_registration_that_is_slow_and_is_repeated_loses_nothing() -> None:
    """The answer takes longer than the worker waits for it: it registers again, and this second
    offer comes after the wait is over."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        killed_s = story.now_s
        story.kill("jm-1", restart_after_s=1.0)

        def offers() -> list[LogEvent]:
            told = story.logged("taskmanager registered", "jm-1", since_s=killed_s)
            return [event for event in told if event.fields["worker"] == "tm-1"]

        await story.until(offers, "the leader has taken the registration of tm-1")
        slow = story.cut("jm-1", "tm-1", one_way=True)
        await story.job_is("RUNNING")
        assert not offers()[1:], "the wait was over before the second offer"
        await story.at(story.now_s + 2.0)
        story.heal(slow)
        await story.registered("tm-1", 2)
        assert [event.fields["refreshed"] for event in offers()] == [False, True]
        assert story.files("tm-1"), "what was accepted is kept"

    options = {"taskmanager.registration.call-timeout": "1 s"}
    network = NetworkSpec(latency=Constant(0.1))
    record = tell(two_stages(MAPS, options=options, network=network, reduce_s=20.0), plot)
    assert runs_of(record, "map") == ONCE


def test_2_all_losses_are_known_at_once_and_reset_together() -> None:
    """A worker is gone with the JobManager: one wave, no reader that fails, no restart counted."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.kill("tm-2")
        await jobmanager_restarts(story)
        await story.job_is("RUNNING")
        master = story.cluster.job_master(story.job)
        assert master is not None
        assert master.status().restarts == 0

    record = tell(two_stages(MAPS, options={WAIT: "5 s"}), plot)
    again = [a for a in attempts_of(record, "map") if a.epoch == 2]
    assert len(again) == 2
    _, until_s = wait_of(record, 2)
    assert max(a.started_s for a in again) - until_s < 0.5
    assert not [a for a in attempts_of(record, "reduce") if a.end == "failed"]


def test_3_a_broken_connection_is_acted_upon_at_once_and_what_ends_meanwhile_is_kept() -> None:
    """No heartbeat has to run out: tasks are stopped within a second of the death, and the output
    of one that had ended by then, unheard, counts."""
    ends: dict[str, float] = {}

    async def plot(story: Story) -> None:
        await story.stage_finished("map", 0.3)
        ends["killed"] = story.now_s
        down = story.kill("jm-1")
        names = ("tm-1", "tm-2", "tm-3")
        await story.until(lambda: not any(story.tasks(name) for name in names), "no task runs", 3.0)
        ends["stopped"] = story.now_s
        story.heal(down)

    options = {"heartbeat.timeout": "50 s"}
    record = tell(two_stages(MAPS, map_s=4.0, slots=1, options=options), plot)
    assert ends["stopped"] - ends["killed"] < 1.5
    ended = {a.subtask for a in attempts_of(record, "map") if a.epoch == 1 and a.end == "finished"}
    again = {a.subtask for a in attempts_of(record, "map") if a.epoch == 2}
    assert ended
    assert not ended & again


def test_4_half_a_stage_is_kept_whatever_the_pause_between_snapshots() -> None:
    """What a subtask of a source has read is in its event: nothing waits for a snapshot."""

    async def plot(story: Story) -> None:
        await story.stage_finished("read", 0.5)
        await story.at(story.now_s + 0.5)
        await story.kill("jm-1", restart_after_s=1.0).over.wait()

    stages = (
        StageSpec(name="read", parallelism=MAPS, seconds=Constant(2.0), splits=True),
        StageSpec(name="reduce", parallelism=2, seconds=Constant(5.0)),
    )
    scenario = Scenario(
        name="story",
        cluster=ClusterSpec(taskmanagers=3, slots=1),
        jobs=(JobSpec(name="job", stages=stages),),
        options={"execution.batch.job-recovery.snapshot.min-pause": "3 min"},
    )
    record = tell(scenario, plot)
    finished = {
        a.subtask for a in attempts_of(record, "read") if a.epoch == 1 and a.end == "finished"
    }
    assert len(finished) >= MAPS // 2
    assert all(runs_of(record, "read")[subtask] == 1 for subtask in finished)


def test_5_a_worker_that_is_gone_costs_its_own_output_and_no_consumer_that_has_finished() -> None:
    """And what is ready is not held up by the wait for it."""
    told: dict[str, int] = {}

    async def plot(story: Story) -> None:
        await story.stage_finished("reduce", 0.5)
        await story.at(story.now_s + 1.2)  # their events are durable
        story.kill("tm-3")
        await jobmanager_restarts(story)
        await story.job_is("RUNNING")
        told.update(resets(story))

    options = {WAIT: "5 s", "jobmanager.partition.release-during-job-execution": "true"}
    scenario = two_stages(MAPS, reduces=MAPS, reduce_s=3.0, slots=1, options=options)
    record = tell(scenario, plot)
    gone = {a.subtask for a in attempts_of(record, "map") if a.worker == "tm-3" and a.epoch == 1}
    assert [told[name] for name in told if name.startswith("map")] == [len(gone)]
    assert not [name for name in told if name.startswith("reduce")]
    assert runs_of(record, "map") == {i: 2 if i in gone else 1 for i in range(MAPS)}
    finished = {
        a.subtask for a in attempts_of(record, "reduce") if a.epoch == 1 and a.end == "finished"
    }
    assert finished
    assert all(runs_of(record, "reduce")[subtask] == 1 for subtask in finished)


def test_6_with_nobody_back_the_job_says_what_it_waits_for_and_its_history_goes_on() -> None:
    """It is not called recovered and left to hang. Its age and its attempts do not begin at 0."""
    before: dict[str, int] = {}

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        first = story.cluster.job_master(story.job)
        assert first is not None
        before["submitted"] = first.status().submitted_wall_ms
        away = [story.kill(f"tm-{number}") for number in (1, 2, 3)]
        await jobmanager_restarts(story)
        await story.job_is("RUNNING")
        master = story.cluster.job_master(story.job)
        assert master is not None
        await story.until(lambda: master.status().waiting, "it says what it waits for")
        status = master.status()
        assert "0 TaskManagers are registered" in status.waiting
        assert status.submitted_wall_ms == before["submitted"]
        states = [entry.leader_epoch for entry in status.history]
        assert {0, 1, 2} <= set(states), "the history begins with the submission"
        for made in away:
            story.heal(made)

    record = tell(two_stages(MAPS, options={WAIT: "2 s"}), plot)
    second = [a for a in attempts_of(record, "map") if a.epoch == 2]
    assert len(second) == MAPS
    assert {a.attempt for a in second} == {1}


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_7_the_job_carries_whether_it_is_recovered_and_workers_need_no_setting(
    enabled: str,
) -> None:
    """TaskManagers keep what a job wants kept, and nothing of one that does not."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        down = story.kill("jm-1")
        await story.until(lambda: not any(story.tasks(f"tm-{n}") for n in (1, 2, 3)), "stopped")
        await story.at(story.now_s + 1.0)
        kept = any(story.files(f"tm-{number}") for number in (1, 2, 3))
        assert kept is (enabled == "true")
        story.heal(down)

    scenario = two_stages(MAPS, reduce_s=5.0)
    job = scenario.jobs[0].model_copy(
        update={"options": {"execution.batch.job-recovery.enabled": enabled}}
    )
    record = tell(scenario.model_copy(update={"jobs": (job,)}), plot)
    assert ready_of(record, 2) > 0
    assert set(runs_of(record, "map").values()) == {1 if enabled == "true" else 2}
