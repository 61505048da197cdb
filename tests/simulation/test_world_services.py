"""The real services in the world: elections by file and by lease, take-over, and hand-over."""

from __future__ import annotations

import pytest

from tests.simulation.story import Story, ready_of, runs_of, tell, two_stages

BY_FILE_AND_BY_LEASE = pytest.mark.parametrize("leader", ["file", "service"])
LEASE_TTL_S = 3.0


@BY_FILE_AND_BY_LEASE
def test_a_job_runs_without_a_fault(leader: str) -> None:
    """One epoch; every subtask once; nothing is left (the invariants look)."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")

    record = tell(two_stages(6, reduce_s=1.0, leader=leader), plot)
    assert [epoch.epoch for epoch in record.epochs] == [1]
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)
    assert runs_of(record, "reduce") == dict.fromkeys(range(2), 1)
    assert record.jobs[0].recoveries == []


@BY_FILE_AND_BY_LEASE
def test_a_standby_takes_over_from_a_dead_leader(leader: str) -> None:
    """It was there already: only the lease has to run out."""
    died_s: list[float] = []

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        dead = story.leader().name
        story.kill(dead)
        died_s.append(story.now_s)
        for name in ("tm-1", "tm-2", "tm-3"):
            await story.registered(name, 2)
        assert story.leader().name != dead

    record = tell(two_stages(6, leader=leader, jobmanagers=2, lease_ttl_s=LEASE_TTL_S), plot)
    at_most_s = 0.5 + (LEASE_TTL_S if leader == "service" else 0.0)
    assert ready_of(record, 2) - died_s[0] < at_most_s
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)


@BY_FILE_AND_BY_LEASE
def test_a_leader_that_is_told_to_stop_hands_over_at_once(leader: str) -> None:
    """SIGTERM: no lease has to run out, and no event of the log is lost."""
    stopped_s: list[float] = []

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        stopped = story.leader().name
        story.stop(stopped)
        stopped_s.append(story.now_s)
        await story.until(lambda: not story.cluster.node(stopped).alive, "it has ended")
        assert story.logged("jobmanager ends", stopped)
        for name in ("tm-1", "tm-2", "tm-3"):
            await story.registered(name, 2)

    record = tell(two_stages(6, leader=leader, jobmanagers=2), plot)
    assert ready_of(record, 2) - stopped_s[0] < 1.5
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)
    [recovery] = record.jobs[0].recoveries
    assert sum(vertex.get("adopted", 0) for vertex in recovery["vertices"]) == 0


def test_a_frozen_leader_that_wakes_up_under_its_successor_steps_down() -> None:
    """It believes that no time has passed; what it says is refused."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        frozen = story.leader().name
        asleep = story.pause(frozen)
        await story.registered("tm-1", 2)
        woke_s = story.now_s
        story.heal(asleep)
        node = story.cluster.node(frozen)
        await story.until(lambda: story.cluster.epoch_of(node) is None, "it steps down", 5.0)
        await story.at(woke_s + 10.0)
        assert story.cluster.epoch_of(story.leader()) == 2

    record = tell(two_stages(6, jobmanagers=2), plot)
    assert [epoch.epoch for epoch in record.epochs] == [1, 2]
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)


def test_a_worker_that_is_told_to_stop_leaves_and_is_replaced_at_once() -> None:
    """Its tasks and partitions are given to others without any timeout; what it had finished stays
    on its disk, should it be started again."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        await story.until(lambda: story.tasks("tm-1"), "it works")
        story.stop("tm-1")
        stopped_s = story.now_s
        await story.until(lambda: story.logged("taskmanager lost"), "the leader hears of it", 1.0)
        [lost] = story.logged("taskmanager lost")
        assert "left" in str(lost.fields["reason"])
        await story.until(lambda: not story.cluster.node("tm-1").alive, "it has ended", 5.0)
        stems = {file.rpartition("/")[2].partition("-")[0] for file in story.files("tm-1")}
        assert stems == {"v0"}, "of the first stage, and nothing of the second"
        assert story.now_s - stopped_s < 5.0

    record = tell(two_stages(6, reduces=6, reduce_s=10.0), plot)
    assert sorted(runs_of(record, "map").values()) == [1, 1, 1, 1, 2, 2]
