"""Leadership by etcd when etcd, the network or a leader fails, in a simulated world."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from holdover.coordination.etcd_leader import EtcdLeaderService
from simulator.world.etcd import SimulatedEtcd
from simulator.world.process import Process, ProcessState
from simulator.world.world import World
from tests.doubles.candidate import Candidate

TTL_S = 10.0
#: etcd looks for leases that have ended at times, and an election takes some messages.
ELECTION_S = 1.0


@dataclass
class Scene:
    world: World
    etcd: SimulatedEtcd

    def service(self, process: Process) -> EtcdLeaderService:
        runtime = self.world.runtime(process)
        return EtcdLeaderService(runtime, [self.etcd.endpoint], "c", "/shared/c", TTL_S)

    def candidate(self, name: str) -> Candidate:
        process = self.world.process(self.world.host(name), name)
        candidate = Candidate(self.world, process, self.service(process).election())
        process.spawn(candidate.campaign())
        return candidate

    def follower(self, name: str, told: dict[str, int]) -> Process:
        """A process that writes the newest epoch it knows into `told`."""
        process = self.world.process(self.world.host(name), name)

        async def follow() -> None:
            async for record in self.service(process).retrieval().changes():
                told[name] = record.epoch

        process.spawn(follow())
        return process

    async def until(self, condition: Callable[[], bool], within_s: float) -> float:
        """Wait for something, and return how long it took."""
        began_s = self.world.now_s
        while not condition():
            assert self.world.now_s < began_s + within_s, f"not within {within_s} s"
            await asyncio.sleep(0.01)
        return self.world.now_s - began_s

    async def led(self, candidate: Candidate, times: int = 1) -> None:
        await self.until(lambda: len(candidate.epochs) == times, 2 * TTL_S)

    async def stop_etcd(self, for_s: float) -> None:
        assert self.etcd.process is not None
        self.world.kill(self.etcd.process)
        await asyncio.sleep(for_s)
        self.etcd.start()


@pytest.fixture
def scene() -> Iterator[Scene]:
    world = World(seed=3)
    etcd = SimulatedEtcd(world, world.host("etcd"))
    etcd.start()
    yield Scene(world, etcd)
    assert world.failures == []
    world.close()


def test_the_lease_of_a_killed_leader_ends_within_its_ttl(scene: Scene) -> None:
    async def play() -> None:
        first = scene.candidate("jm-1")
        await scene.led(first)
        second = scene.candidate("jm-2")
        await asyncio.sleep(5 * TTL_S)
        assert second.epochs == []
        scene.world.kill(first.process)
        took_s = await scene.until(lambda: len(second.epochs) == 1, 2 * TTL_S)
        assert TTL_S / 2 < took_s <= TTL_S + ELECTION_S
        assert second.epochs > first.epochs

    scene.world.run(play())


def test_a_leader_that_is_cut_off_stops_before_another_leads(scene: Scene) -> None:
    """P29."""

    async def play() -> None:
        world = scene.world
        first = scene.candidate("jm-1")
        await scene.led(first)
        second = scene.candidate("jm-2")
        await asyncio.sleep(1)
        world.network.cut([first.process.host], [scene.etcd.host], both=True)
        await scene.until(lambda: len(second.epochs) == 1, 2 * TTL_S)
        assert first.lost_s[0] < world.now_s - 0.1 * TTL_S
        assert not first.election.is_leader()

    scene.world.run(play())


def test_a_paused_leader_is_none_when_it_goes_on(scene: Scene) -> None:
    """P29. A process that stands still renews nothing, and its own clock tells it so."""

    async def play() -> None:
        first = scene.candidate("jm-1")
        await scene.led(first)
        second = scene.candidate("jm-2")
        first.process.pause()
        await scene.until(lambda: len(second.epochs) == 1, 2 * TTL_S)
        first.process.resume()
        assert not first.election.is_leader()
        await scene.until(lambda: first.lost_s != [], 0.1)
        assert second.election.is_leader()

    scene.world.run(play())


@pytest.mark.parametrize("away_s", [5.0, 30.0, 180.0])
def test_after_etcd_was_away_exactly_one_leads(scene: Scene, away_s: float) -> None:
    """P30."""

    async def play() -> None:
        first = scene.candidate("jm-1")
        await scene.led(first)
        second = scene.candidate("jm-2")
        await asyncio.sleep(1)
        await scene.stop_etcd(away_s)
        await asyncio.sleep(3 * TTL_S)
        leading = [each for each in (first, second) if each.election.is_leader()]
        assert len(leading) == 1
        epochs = first.epochs + second.epochs
        assert len(epochs) == (1 if away_s < TTL_S / 2 + 1 else 2)
        assert leading[0].epochs[-1] == max(epochs)

    scene.world.run(play())


def test_short_losses_of_contact_change_nothing_and_a_long_one_once(scene: Scene) -> None:
    """P33: 3 s of every 8 for two minutes, then 12 s."""

    async def play() -> None:
        network = scene.world.network
        first = scene.candidate("jm-1")
        await scene.led(first)
        second = scene.candidate("jm-2")
        jobmanagers = [first.process.host, second.process.host]
        for lasts_s in [3.0] * 15:
            cut = network.cut(jobmanagers, [scene.etcd.host], both=True)
            await asyncio.sleep(lasts_s)
            network.heal(cut)
            await asyncio.sleep(8.0 - lasts_s)
        assert (first.epochs, first.lost_s, second.epochs) == ([first.epochs[0]], [], [])
        cut = network.cut(jobmanagers, [scene.etcd.host], both=True)
        await asyncio.sleep(12.0)
        network.heal(cut)
        await asyncio.sleep(3 * TTL_S)
        assert len(first.epochs + second.epochs) == 2

    scene.world.run(play())


@pytest.mark.parametrize("trouble", ["compaction", "silence", "restart"])
def test_a_follower_knows_the_new_leader_soon_after_its_watch_went_deaf(
    scene: Scene, trouble: str
) -> None:
    """P32."""
    told: dict[str, int] = {}

    async def play() -> None:
        world, etcd = scene.world, scene.etcd
        follower = scene.follower("tm", told)
        first = scene.candidate("jm-1")
        await scene.led(first)
        await scene.until(lambda: told.get("tm") == first.epochs[0], 1)
        second = scene.candidate("jm-2")
        await asyncio.sleep(1)
        cut = world.network.cut([follower.host], [etcd.host], both=True)
        etcd.is_deaf = trouble == "silence"
        world.kill(first.process)
        await scene.until(lambda: second.epochs != [], 3 * TTL_S)
        if trouble == "compaction":
            etcd.compact()
        elif trouble == "restart":
            await scene.stop_etcd(1.0)
        await asyncio.sleep(60.0)
        messages = world.trace.events
        world.network.heal(cut)
        await scene.until(lambda: told["tm"] == second.epochs[0], 10)
        assert world.trace.events - messages < 500, "no busy loop"

    scene.world.run(play())


def test_a_full_etcd_costs_nobody_the_leadership_and_the_next_waits_for_space(
    scene: Scene,
) -> None:
    async def play() -> None:
        first = scene.candidate("jm-1")
        await scene.led(first)
        second = scene.candidate("jm-2")
        scene.etcd.is_full = True
        await asyncio.sleep(5 * TTL_S)
        assert first.election.is_leader()
        scene.world.kill(first.process)
        await asyncio.sleep(5 * TTL_S)
        assert second.epochs == []
        scene.etcd.is_full = False
        await scene.until(lambda: second.epochs != [], 2)

    scene.world.run(play())


def test_a_renewal_without_a_majority_of_etcd_does_not_count(scene: Scene) -> None:
    """P29: its successor among the members may end the lease at any time."""

    async def play() -> None:
        first = scene.candidate("jm-1")
        await scene.led(first)
        await asyncio.sleep(TTL_S)
        scene.etcd.is_alone = True
        took_s = await scene.until(lambda: first.lost_s != [], TTL_S)
        assert took_s > TTL_S / 2
        scene.etcd.is_alone = False
        await scene.led(first, times=2)

    scene.world.run(play())


def test_an_answer_that_is_lost_leaves_no_leader_that_does_not_know(scene: Scene) -> None:
    """The key may have been made although nobody heard of it."""

    async def play() -> None:
        first, second = scene.candidate("jm-1"), scene.candidate("jm-2")
        await scene.until(lambda: bool(first.epochs or second.epochs), 5)
        if second.epochs:
            first, second = second, first
        scene.world.kill(first.process)
        await scene.until(lambda: b"/holdover/c/leader" not in scene.etcd.store.keys, 2 * TTL_S)
        cut = scene.world.network.cut([scene.etcd.host], [second.process.host], both=False)
        await asyncio.sleep(3 * TTL_S)
        scene.world.network.heal(cut)
        await scene.until(lambda: second.epochs != [], 2 * TTL_S)
        assert second.election.is_leader()

    scene.world.run(play())


@pytest.mark.parametrize("seed", range(20))
def test_two_never_hold_themselves_for_leaders_whatever_fails(seed: int) -> None:
    """P29, P30. A leader that is paused cannot say so, but does nothing either."""
    world = World(seed)
    etcd = SimulatedEtcd(world, world.host("etcd"))
    etcd.start()
    scene = Scene(world, etcd)
    candidates = [scene.candidate(f"jm-{number}") for number in range(3)]
    all_epochs: list[int] = []

    def leaders() -> list[str]:
        return [
            candidate.process.name
            for candidate in candidates
            if candidate.election.is_leader() and candidate.process.state is ProcessState.RUNNING
        ]

    async def watch() -> None:
        while True:
            assert len(leaders()) <= 1, f"at {world.now_s:.3f} s"
            await asyncio.sleep(0.1)

    async def play() -> None:
        chance = world.random("faults")
        watching = asyncio.ensure_future(watch())
        for _ in range(15):
            await asyncio.sleep(chance.uniform(0, 2 * TTL_S))
            place = chance.randrange(len(candidates))
            all_epochs.extend(candidates[place].epochs)
            candidates[place].epochs.clear()
            candidates[place] = await misfortune(scene, candidates[place], chance)
        await asyncio.sleep(6 * TTL_S)
        assert not watching.done(), watching.exception()
        assert len(leaders()) == 1
        watching.cancel()

    world.run(play())
    for candidate in candidates:
        all_epochs.extend(candidate.epochs)
    assert len(all_epochs) == len(set(all_epochs))
    assert world.failures == []
    world.close()


async def misfortune(scene: Scene, candidate: Candidate, chance: random.Random) -> Candidate:
    """Something that befalls a candidate or etcd, and passes; the candidate then, or its successor
    after a death."""
    world, etcd, process = scene.world, scene.etcd, candidate.process
    lasts_s = chance.uniform(0, 2 * TTL_S)
    match chance.choice(["death", "pause", "cut", "drift", "etcd", "power", "deaf", "full"]):
        case "death":
            world.kill(process)
            return scene.candidate(process.name)
        case "pause":
            process.pause()
            await asyncio.sleep(lasts_s)
            process.resume()
        case "cut":
            from_etcd = chance.random() < 0.5
            ends = ([etcd.host], [process.host]) if from_etcd else ([process.host], [etcd.host])
            cut = world.network.cut(*ends, both=chance.random() < 0.5)
            await asyncio.sleep(lasts_s)
            world.network.heal(cut)
        case "drift":
            process.host.set_clock_rate(chance.uniform(0.97, 1.03), world.now_s)
        case "deaf":
            etcd.is_deaf = True
            await asyncio.sleep(lasts_s)
            etcd.is_deaf = False
        case "full":
            etcd.is_full = True
            await asyncio.sleep(lasts_s)
            etcd.is_full = False
        case end:
            assert etcd.process is not None
            if end == "etcd":
                world.kill(etcd.process)
            else:
                world.power_loss(etcd.host)
            await asyncio.sleep(lasts_s)
            world.power_on(etcd.host)
            etcd.start()
    return candidate
