"""Each fault does to a running cluster what it says, and is healed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdover.runtime import Disk
from simulator import fault_kinds as kinds
from simulator.cluster import LEADER_HOST
from simulator.fault_effects import SHARED_STORAGE
from simulator.world.process import ProcessState
from simulator.world.storage import SimulatedStorage
from tests.simulation.story import Story, attempts_of, tell, two_stages
from tests.unit.simulator.cluster_scene import SOON_S, Scene, play

ENDINGS = [kinds.Crash, kinds.Stop, kinds.PowerLoss]
DISK_S = 0.01
"""More than an operation takes."""


async def read_s(scene: Scene, disk: Disk, path: str) -> float:
    """How long it takes to look at a file."""
    began_s = scene.now_s
    await disk.stat(path)
    return scene.now_s - began_s


# ------------------------------------------------------------------ processes that end


@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("victim", ["jobmanager:1", "taskmanager:1", "leader-service"])
def test_who_is_ended_is_started_again_after_its_time_and_not_before(
    kind: type[kinds.FaultModel], victim: str
) -> None:
    async def plot(scene: Scene) -> None:
        made = scene.make(kind, victims=victim, restart_after=7.0)
        name = victim.replace("jobmanager:", "jm-").replace("taskmanager:", "tm-")
        await asyncio.sleep(6.9)
        assert not scene.node(name).alive
        assert scene.injector.active == 1
        await made.over.wait()
        assert (scene.now_s, scene.lives(name)) == (12.0, 2)
        assert scene.injector.active == 0
        await scene.until(lambda: scene.cluster.leader() is not None)
        await scene.until(lambda: all(scene.registered(f"tm-{n}") for n in (1, 2, 3)))

    record = play(plot)
    assert [(fault.at_s, fault.until_s) for fault in record.faults] == [(5.0, 12.0)]


@pytest.mark.parametrize(
    ("victim", "after_s"), [("jobmanager:1", 4.0), ("taskmanager:1", 9.0), ("leader-service", 4.0)]
)
def test_without_a_word_they_come_back_as_the_cluster_says(victim: str, after_s: float) -> None:
    async def plot(scene: Scene) -> None:
        began_s = scene.now_s
        await scene.make(kinds.Crash, victims=victim).over.wait()
        assert scene.now_s - began_s == pytest.approx(after_s)

    play(plot, jobmanager_restart=4.0, taskmanager_restart=9.0)


def test_who_is_never_started_again_is_so_by_healing_and_acts_on_nobody_till_then() -> None:
    async def plot(scene: Scene) -> None:
        made = scene.make(kinds.Crash, victims="taskmanager:1", restart_after="never")
        assert made.over.is_set()
        assert scene.injector.active == 0
        assert scene.injector.changed_s == 5.0
        await asyncio.sleep(50.0)
        assert not scene.node("tm-1").alive
        scene.injector.heal(made)
        assert scene.node("tm-1").alive

    play(plot, taskmanager_restart=0.5)


def test_who_takes_its_time_to_end_is_started_again_as_soon_as_it_has() -> None:
    """Frozen, it does not hear the signal."""

    async def plot(scene: Scene) -> None:
        scene.make(kinds.Pause, victims="taskmanager:1", **{"for": 5.0})
        scene.make(kinds.Stop, victims="taskmanager:1", restart_after=1.0)
        await asyncio.sleep(4.9)
        assert scene.lives("tm-1") == 1
        await scene.until(lambda: scene.lives("tm-1") == 2, within_s=2.0)

    play(plot, taskmanager_restart="never")


def test_who_is_ended_twice_comes_back_when_the_second_fault_is_over() -> None:
    async def plot(scene: Scene) -> None:
        scene.make(kinds.Crash, victims="taskmanager:1", restart_after=2.0)
        await asyncio.sleep(1.0)
        scene.make(kinds.PowerLoss, victims="taskmanager:1", restart_after=3.0)
        await asyncio.sleep(2.9)
        assert not scene.node("tm-1").alive
        await asyncio.sleep(0.2)
        assert scene.lives("tm-1") == 2

    play(plot)


def test_a_fault_that_is_over_does_not_start_whom_another_keeps_dead() -> None:
    async def plot(scene: Scene) -> None:
        scene.make(kinds.Crash, victims="taskmanager:1", restart_after="never")
        scene.make(kinds.Crash, victims="taskmanager:1", restart_after=1.0)
        await asyncio.sleep(10.0)
        assert not scene.node("tm-1").alive

    play(plot)


def test_the_restart_of_who_has_ended_by_itself_waits_for_the_fault_that_keeps_it_dead() -> None:
    async def plot(scene: Scene) -> None:
        scene.cluster.stop_node(scene.node("tm-1"))
        await scene.until(lambda: not scene.node("tm-1").alive)
        scene.make(kinds.Crash, victims="taskmanager:1", restart_after=10.0)
        await asyncio.sleep(9.9)
        assert not scene.node("tm-1").alive
        await asyncio.sleep(0.2)
        assert scene.lives("tm-1") == 2

    play(plot, taskmanager_restart=2.0)


def test_a_crash_leaves_a_disk_as_it_is_and_a_power_loss_what_was_synced() -> None:
    async def plot(scene: Scene) -> None:
        left = {}
        for kind, name in ((kinds.Crash, "1"), (kinds.PowerLoss, "2")):
            file = await scene.disk_on(f"tm-{name}").open_append("/unsynced")
            await file.write(b"rows")
            scene.make(kind, victims=f"taskmanager:{name}", restart_after=1.0)
            await asyncio.sleep(2.0)
            left[name] = await scene.disk_on(f"tm-{name}").stat("/unsynced")
        assert left["1"] is not None
        assert left["2"] is None

    play(plot)


def test_peers_of_a_host_without_power_hear_nothing() -> None:
    async def plot(scene: Scene) -> None:
        made = scene.make(kinds.PowerLoss, victims="rack:1", restart_after="never")
        assert not scene.passes("jm-1", "tm-1")
        scene.injector.heal(made)
        assert scene.passes("jm-1", "tm-1")

    play(plot)


@pytest.mark.parametrize("kind", ENDINGS)
def test_nobody_leads_for_long_without_a_leader_service(kind: type[kinds.FaultModel]) -> None:
    async def plot(scene: Scene) -> None:
        made = scene.make(kind, victims=LEADER_HOST, restart_after="never")
        await scene.until(lambda: scene.cluster.leader() is None, within_s=10.0)
        scene.injector.heal(made)
        await scene.until(lambda: scene.cluster.leader() is not None)
        leader = scene.cluster.leader()
        assert leader is not None
        assert scene.cluster.epoch_of(leader) == 2

    play(plot)


# ------------------------------------------------------------------ processes that are paused


@pytest.mark.parametrize("victim", ["leader", "taskmanager:2", "leader-service"])
def test_who_is_paused_freezes_and_goes_on(victim: str) -> None:
    async def plot(scene: Scene) -> None:
        made = scene.make(kinds.Pause, victims=victim, **{"for": 3.0})
        [name] = [node.name for node in scene.cluster.machines() if node.alive and not node.runs]
        process = scene.node(name).process
        await made.over.wait()
        assert scene.now_s == 8.0
        assert process is not None
        assert process.state is ProcessState.RUNNING

    play(plot)


def test_who_is_paused_twice_goes_on_when_the_second_pause_is_over() -> None:
    async def plot(scene: Scene) -> None:
        scene.make(kinds.Pause, victims="taskmanager:1", **{"for": 4.0})
        scene.make(kinds.Pause, victims="taskmanager:1", **{"for": 2.0})
        await asyncio.sleep(3.0)
        assert not scene.node("tm-1").runs
        await asyncio.sleep(1.1)
        assert scene.node("tm-1").runs

    play(plot)


def test_a_pause_does_not_hold_the_next_life() -> None:
    async def plot(scene: Scene) -> None:
        scene.make(kinds.Pause, victims="taskmanager:1", **{"for": 10.0})
        scene.make(kinds.Crash, victims="taskmanager:1", restart_after=1.0)
        await asyncio.sleep(2.0)
        assert scene.node("tm-1").runs

    play(plot)


# ------------------------------------------------------------------ the network


def test_a_cut_stops_packets_both_ways_and_a_one_way_cut_only_those_of_the_first() -> None:
    async def plot(scene: Scene) -> None:
        pair = ("jobmanagers", "taskmanager:1")
        both = scene.make(kinds.Cut, between=pair, **{"for": 2.0})
        assert not scene.passes("jm-2", "tm-1")
        assert not scene.passes("tm-1", "jm-2")
        assert scene.passes("jm-1", "tm-2")
        await both.over.wait()
        one_way = scene.make(kinds.Cut, between=pair, one_way=True)
        assert not scene.passes("jm-1", "tm-1")
        assert scene.passes("tm-1", "jm-1")
        scene.injector.heal(one_way)
        assert scene.passes("jm-1", "tm-1")

    play(plot)


def test_packets_of_who_has_a_slow_link_take_longer() -> None:
    async def plot(scene: Scene) -> None:
        made = scene.make(kinds.SlowLink, victims="taskmanager:1", latency=2.0, **{"for": 20.0})
        assert await scene.transfer_s("tm-2", "tm-1") > 2.0
        assert await scene.transfer_s("tm-2", "tm-3") < 0.1
        await made.over.wait()
        assert await scene.transfer_s("tm-2", "tm-1") < 0.1

    play(plot)


def test_lost_packets_are_a_delay_and_never_a_lost_message() -> None:
    async def plot(scene: Scene) -> None:
        async def longest_s() -> float:
            return max([await scene.transfer_s("tm-2", "tm-1") for _ in range(20)])

        usual_s = await longest_s()
        made = scene.make(kinds.LosePackets, victims="taskmanager:1", probability=0.5)
        assert await longest_s() > 10 * usual_s
        scene.injector.heal(made)
        assert await longest_s() < 2 * usual_s

    play(plot)


@pytest.mark.parametrize("victim", ["leader", "taskmanager:1"])
def test_who_has_another_address_is_found_again_by_its_name(victim: str) -> None:
    async def plot(scene: Scene) -> None:
        made = scene.make(kinds.AddressChange, victims=victim)
        assert made.over.is_set()
        await scene.until(lambda: not scene.registered("tm-1"), within_s=10.0)
        await scene.until(lambda: scene.registered("tm-1"))
        assert scene.lives("tm-1") == 1

    play(plot)


def test_nobody_reaches_a_leader_service_that_is_down() -> None:
    async def plot(scene: Scene) -> None:
        made = scene.make(kinds.LeaderServiceDown, **{"for": 20.0})
        assert not scene.passes("jm-1", LEADER_HOST)
        await scene.until(lambda: scene.cluster.leader() is None, within_s=20.0)
        await made.over.wait()
        assert scene.lives(LEADER_HOST) == 1
        await scene.until(lambda: scene.cluster.leader() is not None)

    play(plot)


# ------------------------------------------------------------------ disks and clocks


@pytest.mark.parametrize(
    ("victim", "host", "path"),
    [
        ("taskmanager:1", "tm-1", "/local/x"),
        ("leader-service", LEADER_HOST, "/x"),
        (SHARED_STORAGE, "tm-2", "/shared/x"),
    ],
)
def test_a_disk_that_hangs_or_is_slow_answers_as_ever_when_that_is_over(
    victim: str, host: str, path: str
) -> None:
    async def plot(scene: Scene) -> None:
        disk = scene.disk_on(host)
        scene.make(kinds.DiskHang, victims=victim, **{"for": 3.0})
        assert await read_s(scene, disk, path) == pytest.approx(3.0, abs=DISK_S)
        slow = scene.make(kinds.SlowDisk, victims=victim, factor=10_000)
        assert await read_s(scene, disk, path) > 0.5
        scene.injector.heal(slow)
        assert await read_s(scene, disk, path) < DISK_S

    play(plot)


def test_the_fault_of_one_disk_is_not_that_of_another() -> None:
    async def plot(scene: Scene) -> None:
        scene.make(kinds.DiskHang, victims="taskmanager:1")
        assert await read_s(scene, scene.disk_on("tm-2"), "/local/x") < DISK_S
        assert await read_s(scene, scene.disk_on("tm-1"), "/shared/x") < DISK_S

    play(plot)


@pytest.mark.parametrize(
    ("kind", "fields", "error"),
    [
        (kinds.DiskFull, {"left": 10}, "No space left"),
        (kinds.DiskError, {"on": "write"}, "Input/output error"),
        (kinds.DiskError, {"on": "sync"}, "Input/output error"),
    ],
)
def test_a_disk_that_is_full_or_broken_refuses_writes_until_it_is_healed(
    kind: type[kinds.FaultModel], fields: dict[str, Any], error: str
) -> None:
    async def plot(scene: Scene) -> None:
        disk = scene.disk_on("tm-1")
        made = scene.make(kind, victims="taskmanager:1", **fields)
        with pytest.raises(OSError, match=error):
            await disk.publish("/x", b"more than ten bytes")
        scene.injector.heal(made)
        await disk.publish("/x", b"more than ten bytes")

    play(plot)


def test_a_disk_that_cannot_be_read_can_be_written() -> None:
    async def plot(scene: Scene) -> None:
        disk = scene.disk_on("tm-1")
        scene.make(kinds.DiskError, victims="taskmanager:1", on="read")
        await disk.publish("/x", b"x")
        with pytest.raises(OSError, match="Input/output error"):
            await disk.read("/x")

    play(plot)


def test_a_leader_service_waits_for_a_disk_that_it_cannot_read() -> None:
    async def plot(scene: Scene) -> None:
        scene.make(kinds.DiskError, victims=LEADER_HOST, on="read", **{"for": 5.0})
        scene.make(kinds.Crash, victims=LEADER_HOST, restart_after=1.0)
        await scene.until(lambda: scene.cluster.leader() is None, within_s=10.0)
        await scene.until(lambda: scene.cluster.leader() is not None)
        leader = scene.cluster.leader()
        assert leader is not None
        assert scene.cluster.epoch_of(leader) == 2

    play(plot)


def test_a_wall_clock_jumps_and_nothing_else() -> None:
    async def plot(scene: Scene) -> None:
        host = scene.world.host("tm-1")
        local_s = host.local_s(scene.now_s)
        made = scene.make(kinds.ClockJump, victims="taskmanager:1", by=-5.5)
        assert made.over.is_set()
        assert host.wall_offset_ms == -5500
        assert host.local_s(scene.now_s) == local_s
        assert scene.world.host("tm-2").wall_offset_ms == 0

    play(plot)


def test_drifts_of_one_clock_add_up_and_leave_it_at_its_own_rate() -> None:
    async def plot(scene: Scene) -> None:
        host = scene.world.host("tm-1")
        first = scene.make(kinds.ClockDrift, victims="taskmanager:1", rate=1.1, **{"for": 2.0})
        scene.make(kinds.ClockDrift, victims="taskmanager:1", rate=0.9, **{"for": 3.0})
        assert host.clock_rate == pytest.approx(0.99)
        await first.over.wait()
        assert host.clock_rate == 0.9
        await asyncio.sleep(1.5)
        assert host.clock_rate == 1.0

    play(plot)


# ------------------------------------------------------------------ what jobs have


def test_a_killed_task_fails_and_its_taskmanager_lives() -> None:
    async def plot(story: Story) -> None:
        await story.until(lambda: story.tasks("tm-1"), "tm-1 runs something")
        await asyncio.sleep(0.3)
        story.make(kinds.KillTask, victims="taskmanager:1", tasks="one")

    record = tell(two_stages(2, taskmanagers=1, reduce_s=0.1), plot)
    ends = [attempt.end for attempt in attempts_of(record, "map")]
    assert ends.count("finished") == 2
    assert len(ends) == 3
    assert len(record.workers[0].lives) == 1


def test_partitions_that_vanish_are_made_again() -> None:
    async def plot(story: Story) -> None:
        await story.until(lambda: story.held("tm-1"), "tm-1 holds something")
        files = len(story.files("tm-1"))
        story.make(kinds.LosePartitions, victims="holders", part=1.0)
        assert files > 0
        left = {file.rpartition(".")[2] for file in story.files("tm-1")}
        assert left == {"finished"}, "the records of what they were"

    record = tell(two_stages(4, taskmanagers=1, reduce_s=0.1), plot)
    assert len(attempts_of(record, "map")) > 4


def test_a_cut_log_loses_its_end_while_its_leader_is_dead() -> None:
    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        leader = story.leader()
        shared: SimulatedStorage = story.world.storages.shared
        before = shared.used_bytes
        made = story.make(kinds.CutLog, victims="leader", restart_after=1.0)
        assert not leader.alive
        assert shared.used_bytes < before
        await made.over.wait()
        assert leader.alive

    tell(two_stages(4, taskmanagers=1, reduce_s=1.0), plot)


# ------------------------------------------------------------------ whom


def test_a_fault_with_nobody_to_suffer_it_happens_to_nobody() -> None:
    async def plot(scene: Scene) -> None:
        for made in (
            scene.make(kinds.Crash, victims="holders"),
            scene.make(kinds.Cut, between=("holders", "all")),
        ):
            assert made.over.is_set()
        assert scene.injector.active == 0
        assert all(scene.passes("tm-1", f"tm-{n}") for n in (2, 3))

    assert [fault.until_s for fault in play(plot).faults] == [None, None]


def test_healing_ends_every_fault_and_starts_every_process() -> None:
    async def plot(scene: Scene) -> None:
        scene.make(kinds.Pause, victims="taskmanager:1", **{"for": 1e6})
        scene.make(kinds.PowerLoss, victims="taskmanager:2", restart_after="never")
        scene.make(kinds.Cut, between=("jobmanagers", "taskmanager:3"))
        scene.make(kinds.Crash, victims="jobmanagers", restart_after="never")
        scene.make(kinds.DiskHang, victims=SHARED_STORAGE)
        scene.make(kinds.Crash, victims=LEADER_HOST)
        await asyncio.sleep(SOON_S)
        scene.injector.heal_all()
        assert scene.injector.active == 0
        assert all(node.runs for node in scene.cluster.machines())
        await scene.until(lambda: all(scene.registered(f"tm-{n}") for n in (1, 2, 3)))

    record = play(plot)
    assert all(fault.until_s is not None for fault in record.faults)
