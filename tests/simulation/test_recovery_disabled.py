"""A job that has switched recovery off, beside one that has not."""

from __future__ import annotations

from functools import partial

from jobmanager.job_store import JobStore
from simulator.cluster import JOBS_DIRECTORY
from simulator.invariants.stored import as_it_is, exists
from simulator.quantities import Constant
from simulator.scenario import ClusterSpec, JobSpec, Scenario, StageSpec
from tests.simulation.story import Story, runs_of, tell

TIMEOUT_S = 5.0
NAMES = ("tm-1", "tm-2", "tm-3")


def test_off_is_off_for_the_one_job_and_the_other_takes_no_notice() -> None:
    """P18: no event files, its partitions are gone soon after the leader, and it starts anew and
    says so; the other keeps its partitions and repeats nothing."""

    def held(story: Story, job: str) -> int:
        return sum(key.attempt.job_id == job for name in NAMES for key in story.held(name))

    def holds(story: Story, job: str) -> bool:
        return held(story, job) == 4

    async def plot(story: Story) -> None:
        shared = story.world.storages.shared
        store = JobStore(shared, JOBS_DIRECTORY)
        for job in ("off", "on"):
            await story.stage_finished("map", job=job)
            await story.until(partial(holds, story, job), "it holds partitions")
        dead = story.kill("jm-1")
        killed_s = story.now_s
        gone_s = await story.until(lambda: held(story, "off") == 0, "its partitions are gone")
        assert gone_s - killed_s < TIMEOUT_S
        await story.at(killed_s + 2 * TIMEOUT_S)
        assert held(story, "on") == 4
        assert not exists(as_it_is(shared), store.events_directory("off"))
        assert exists(as_it_is(shared), store.events_directory("on"))
        story.heal(dead)

    record = tell(_two_jobs(), plot)
    assert runs_of(record, "map", "off") == dict.fromkeys(range(4), 2)
    assert runs_of(record, "map", "on") == dict.fromkeys(range(4), 1)
    [off] = [job for job in record.jobs if job.job_id == "off"]
    assert "recovery" in off.recoveries[0]["restarted_reason"]


def _two_jobs() -> Scenario:
    stages = (
        StageSpec(name="map", parallelism=4, seconds=Constant(1.0)),
        StageSpec(name="reduce", parallelism=2, seconds=Constant(40.0)),
    )
    off = {"execution.batch.job-recovery.enabled": "false"}
    return Scenario(
        name="story",
        cluster=ClusterSpec(taskmanagers=3, slots=4),
        jobs=(JobSpec(name="off", stages=stages, options=off), JobSpec(name="on", stages=stages)),
        options={"heartbeat.interval": "1 s", "heartbeat.timeout": f"{TIMEOUT_S:.0f} s"},
    )
