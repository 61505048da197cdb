"""Output at shuffle services: its makers die, and leaders do; it does not run again."""

from __future__ import annotations

import posixpath
from typing import Any

from shuffle.partition_name import DATA_SUFFIX
from simulator import fault_kinds as kinds
from simulator.quantities import Constant
from simulator.scenario import JobSpec, NetworkSpec, Scenario, StageSpec
from tests.simulation.story import (
    HEARTBEAT_S,
    Story,
    attempts_of,
    runs_of,
    tell,
    three_jobs,
    two_stages,
)

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


def test_what_no_leader_comes_for_is_kept_for_its_time_and_not_longer() -> None:
    """P36: the time runs from the loss of the leader."""
    timeout_s = 40.0

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        away = story.kill("jm-1")
        lost_s = story.now_s
        await story.at(lost_s + timeout_s - 0.5)
        assert sum(len(story.held(name)) for name in ("ss-1", "ss-2")) == 6
        await story.until(
            lambda: not any(story.files(name) for name in ("ss-1", "ss-2")), "it is deleted", 20.0
        )
        assert story.now_s >= lost_s + timeout_s
        story.heal(away)
        await story.registered("ss-1", 2)

    options = {**EXTERNAL, "taskmanager.registration.timeout": f"{timeout_s:.0f} s"}
    record = tell(two_stages(6, shuffle_services=2, options=options), plot)
    assert runs_of(record, "map") == dict.fromkeys(range(6), 2)


def test_nothing_is_left_at_any_service_of_jobs_that_have_ended_in_any_way() -> None:
    """P35: finished, failed, cancelled; the JobManager dies as the first of them ends, and one
    service is away until all is over. It learns of the ends when it is back."""
    names = ("finished", "failed", "cancelled")

    async def plot(story: Story) -> None:
        for job in names:
            await story.stage_finished("map", job=job)
        assert story.held("ss-1") != []
        assert story.held("ss-2") != []
        away = story.cut("jm-1", "ss-2")
        story.cancel("cancelled")
        await story.until(lambda: story.logged("job ended"), "the first job ends")
        story.kill("jm-1", restart_after_s=1.0)
        await story.until(lambda: all(story.has_ended(job) for job in names), "all jobs end")
        assert story.files("ss-2") != [], "it has heard of no end"
        story.heal(away)
        await story.registered("ss-2", 2)
        await story.until(
            lambda: not any(story.files(name) or story.held(name) for name in ("ss-1", "ss-2")),
            "nothing is left at any service",
            2 * HEARTBEAT_S,
        )

    tell(
        three_jobs(names, options=EXTERNAL, shuffle_services=2),
        plot,
        ends=["FINISHED", "FAILED", "CANCELED"],
    )


def test_damaged_output_is_found_before_it_is_used_and_its_producers_run_again() -> None:
    """P38: while the leader and all readers are away a byte is flipped in one partition, and
    another one is emptied."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        for name in ("jm-1", "tm-1", "tm-2", "tm-3"):
            story.kill(name, restart_after_s=5.0)
        await story.at(story.now_s + 1.0)
        storage = story.world.storages.of(story.cluster.node("ss-1").host)
        flipped, emptied = [f for f in story.files("ss-1") if f.endswith(DATA_SUFFIX)][:2]
        content = bytes(storage.file(flipped).data)
        storage.overwrite(flipped, bytes([content[0] ^ 1]) + content[1:])
        storage.overwrite(emptied, b"")
        damaged.extend(_subtask_of(path) for path in (flipped, emptied))

    damaged: list[int] = []
    runs = runs_of(tell(external(), plot), "map")
    assert runs == {**ONCE, **dict.fromkeys(damaged, 2)}


def test_a_service_that_was_killed_finds_what_it_held_beside_a_living_one() -> None:
    """P40: each has a directory of its own, and what was being put when it died is gone."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map", 0.5)
        held = [len(story.held(name)) for name in ("ss-1", "ss-2")]
        assert all(held)
        story.kill("ss-1", restart_after_s=0.5)
        await story.until(lambda: not story.cluster.node("ss-1").alive, "it is dead")
        looked = "looked through what the process before has left"
        await story.until(lambda: story.logged(looked, "ss-1"), "it has looked for its work")
        # How much of that its leader still wants, if it was lost, is another thing.
        assert int(str(story.logged(looked, "ss-1")[-1].fields["found"])) >= held[0]
        assert len(story.held("ss-2")) >= held[1]
        assert not [path for path in story.files("ss-1") if path.endswith(".part")]

    record = tell(external(), plot)
    assert set(runs_of(record, "map").values()) <= {1, 2}


def test_a_cut_while_output_is_put_costs_no_restart() -> None:
    """P41: what is on its way arrives when the link is whole again; a put that breaks all the same
    is tried anew, and that counts as nobody's failure."""

    async def plot(story: Story) -> None:
        await story.until(lambda: story.tasks("tm-1"), "tasks run")
        await story.at(story.now_s + 1.3)  # they have computed, and put for some seconds
        for number in (1, 2, 3):
            cut = story.cut(f"tm-{number}", "ss-1")
            await story.at(story.now_s + 2.0)
            story.heal(cut)

    stages = (
        StageSpec(name="map", parallelism=12, seconds=Constant(1.0), output_bytes=Constant(50e6)),
        StageSpec(name="reduce", parallelism=2, seconds=Constant(5.0)),
    )
    options = {**EXTERNAL, "restart-strategy.type": "none"}
    scenario = two_stages(
        12, shuffle_services=1, options=options, network=NetworkSpec(bandwidth=100_000_000)
    ).model_copy(update={"jobs": (JobSpec(name="job", stages=stages),)})
    record = tell(scenario, plot)
    ends = [attempt.end for attempt in attempts_of(record, "map") if attempt.end == "finished"]
    assert len(ends) == 12


def _subtask_of(path: str) -> int:
    """Of the attempt that has written a file."""
    return int(posixpath.basename(path).split("-")[2])
