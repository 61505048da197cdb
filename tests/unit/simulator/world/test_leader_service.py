"""Leases on a world's leader service: who leads when the service, the network or a leader fails."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from holdover.coordination.leader import LeaderRecord
from simulator.world.leader_client import LeaderServiceClient
from simulator.world.leader_service import SimulatedLeaderService
from simulator.world.process import ProcessState
from simulator.world.world import World
from tests.doubles.candidate import Candidate

TTL_S = 10.0


@dataclass
class Scene:
    world: World
    service: SimulatedLeaderService

    def candidate(self, name: str) -> Candidate:
        process = self.world.process(self.world.host(name), name)
        client = self.service.client(self.world.runtime(process))
        candidate = Candidate(self.world, process, client.election())
        process.spawn(candidate.campaign())
        return candidate

    async def until(self, condition: Callable[[], bool], within_s: float) -> float:
        """Wait for something, and return how long it took."""
        began_s = self.world.now_s
        while not condition():
            assert self.world.now_s < began_s + within_s, f"not within {within_s} s"
            await asyncio.sleep(0.01)
        return self.world.now_s - began_s

    async def led(self, candidate: Candidate, times: int = 1) -> None:
        await self.until(lambda: len(candidate.epochs) == times, TTL_S)


@pytest.fixture
def scene() -> Iterator[Scene]:
    world = World(seed=3)
    service = SimulatedLeaderService(world, world.host("leader-service"), lease_ttl_s=TTL_S)
    service.start()
    yield Scene(world, service)
    assert world.failures == []
    world.close()


def test_the_lease_of_a_killed_leader_ends_within_its_ttl(scene: Scene) -> None:
    async def play() -> None:
        first, second = scene.candidate("jm-1"), scene.candidate("jm-2")
        await scene.until(lambda: len(first.epochs + second.epochs) == 1, 1)
        if second.epochs:
            first, second = second, first
        await asyncio.sleep(5 * TTL_S)
        assert second.epochs == []
        scene.world.kill(first.process)
        took_s = await scene.until(lambda: len(second.epochs) == 1, 2 * TTL_S)
        assert TTL_S / 2 < took_s <= TTL_S + 0.1
        assert second.epochs > first.epochs

    scene.world.run(play())


def test_a_leader_that_is_cut_off_knows_before_another_leads(scene: Scene) -> None:
    async def play() -> None:
        world = scene.world
        first = scene.candidate("jm-1")
        await scene.led(first)
        second = scene.candidate("jm-2")
        await asyncio.sleep(1)
        world.network.cut([first.process.host], [scene.service.host], both=True)
        await scene.until(lambda: len(second.epochs) == 1, 2 * TTL_S)
        assert first.lost_s
        assert first.lost_s[0] < world.now_s
        assert not first.election.is_leader()
        assert second.election.is_leader()

    scene.world.run(play())


def test_a_short_cut_costs_nobody_the_leadership(scene: Scene) -> None:
    """P33."""

    async def play() -> None:
        first = scene.candidate("jm-1")
        await scene.led(first)
        cut = scene.world.network.cut([first.process.host], [scene.service.host], both=True)
        await asyncio.sleep(TTL_S / 4)
        scene.world.network.heal(cut)
        await asyncio.sleep(10 * TTL_S)
        assert first.lost_s == []
        assert first.election.is_leader()

    scene.world.run(play())


def test_a_paused_leader_is_none_when_it_goes_on(scene: Scene) -> None:
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


@pytest.mark.parametrize("death", ["kill", "power loss"])
def test_a_service_that_restarts_keeps_the_leader_and_its_epochs(scene: Scene, death: str) -> None:
    """P30."""

    async def play() -> None:
        first = scene.candidate("jm-1")
        await scene.led(first)
        assert scene.service.process is not None
        if death == "kill":
            scene.world.kill(scene.service.process)
        else:
            scene.world.power_loss(scene.service.host)
        second = scene.candidate("jm-2")
        await asyncio.sleep(TTL_S / 4)
        scene.world.power_on(scene.service.host)
        scene.service.start()
        await asyncio.sleep(5 * TTL_S)
        assert first.lost_s == []
        scene.world.kill(first.process)
        await scene.until(lambda: len(second.epochs) == 1, 2 * TTL_S)
        assert second.epochs > first.epochs

    scene.world.run(play())


def test_a_leader_without_a_service_leads_until_its_lease_ends_and_again_later(
    scene: Scene,
) -> None:
    async def play() -> None:
        first = scene.candidate("jm-1")
        await scene.led(first)
        assert scene.service.process is not None
        scene.world.kill(scene.service.process)
        await asyncio.sleep(TTL_S / 3)
        assert first.election.is_leader()
        await asyncio.sleep(TTL_S)
        assert not first.election.is_leader()
        scene.service.start()
        await scene.until(lambda: len(first.epochs) == 2, 3 * TTL_S)
        assert first.epochs[0] < first.epochs[1]

    scene.world.run(play())


def test_a_thousand_watchers_are_told_once_and_do_not_ask(scene: Scene) -> None:
    told: Counter[LeaderRecord] = Counter()

    async def watch(client: LeaderServiceClient) -> None:
        async for record in client.retrieval().changes():
            told[record] += 1

    async def play() -> None:
        world = scene.world
        for number in range(1000):
            process = world.process(world.host(f"tm-{number}"), f"tm-{number}")
            process.spawn(watch(scene.service.client(world.runtime(process))))
        await asyncio.sleep(5)
        events = world.trace.events
        await asyncio.sleep(60)
        assert world.trace.events == events
        first = scene.candidate("jm-1")
        await scene.until(lambda: told.total() == 1000, 5)
        assert told == {LeaderRecord(first.epochs[0], "jm-1:1"): 1000}

    scene.world.run(play())


def test_a_watcher_finds_the_service_again(scene: Scene) -> None:
    """P32."""

    told: Counter[int] = Counter()

    async def watch(client: LeaderServiceClient) -> None:
        async for record in client.retrieval().changes():
            told[record.epoch] += 1

    async def play() -> None:
        world = scene.world
        process = world.process(world.host("tm"), "tm")
        process.spawn(watch(scene.service.client(world.runtime(process))))
        first = scene.candidate("jm-1")
        await scene.led(first)
        assert scene.service.process is not None
        world.kill(scene.service.process)
        world.kill(first.process)
        await asyncio.sleep(3 * TTL_S)
        scene.service.start()
        second = scene.candidate("jm-2")
        await scene.until(lambda: len(second.epochs) == 1, 2 * TTL_S)
        await scene.until(lambda: told == Counter(first.epochs + second.epochs), 5)

    scene.world.run(play())


@pytest.mark.parametrize("seed", range(20))
def test_two_never_hold_themselves_for_leaders_whatever_fails(seed: int) -> None:
    """P29. A leader that is paused cannot say so, but does nothing either."""
    world = World(seed)
    service = SimulatedLeaderService(world, world.host("leader-service"), lease_ttl_s=TTL_S)
    service.start()
    scene = Scene(world, service)
    candidates = [scene.candidate(f"jm-{number}") for number in range(4)]

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
            candidates[place] = await misfortune(scene, candidates[place], chance)
        await asyncio.sleep(6 * TTL_S)
        assert not watching.done(), watching.exception()
        assert len(leaders()) == 1
        watching.cancel()

    world.run(play())
    assert world.failures == []
    world.close()


async def misfortune(scene: Scene, candidate: Candidate, chance: random.Random) -> Candidate:
    """Something that befalls a candidate or the service, and passes; the candidate then, or its
    successor after a death."""
    world, service, process = scene.world, scene.service, candidate.process
    lasts_s = chance.uniform(0, 2 * TTL_S)
    match chance.choice(["death", "pause", "cut", "drift", "service", "power"]):
        case "death":
            world.kill(process)
            return scene.candidate(process.name)
        case "pause":
            process.pause()
            await asyncio.sleep(lasts_s)
            process.resume()
        case "cut":
            both = chance.random() < 0.5
            cut = world.network.cut([process.host], [service.host], both=both)
            await asyncio.sleep(lasts_s)
            world.network.heal(cut)
        case "drift":
            process.host.set_clock_rate(chance.uniform(0.97, 1.03), world.now_s)
        case end:
            assert service.process is not None
            if end == "service":
                world.kill(service.process)
            else:
                world.power_loss(service.host)
            await asyncio.sleep(lasts_s)
            world.power_on(service.host)
            service.start()
    return candidate
