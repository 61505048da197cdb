"""Leadership by a lease, in virtual time: slow, failing and losing stores, pauses and deaths."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from holdover.coordination.leader import LeaderStateDamaged
from holdover.coordination.object_leader import ObjectLeaderElection, ObjectLeaderRetrieval
from holdover.runtime import (
    ObjectConflict,
    ObjectStoreUnavailable,
    ObjectVersion,
    Runtime,
    VersionedObject,
)
from holdover.runtime.real import real_runtime
from simulator.world.process import Process, ProcessState
from simulator.world.world import World

T = TypeVar("T")

LEASE_S = 10.0
CANDIDATES = 3
RUN_S = 600.0
LOOK_S = 0.02


class UnreliableObjects:
    """Objects in a world. A request arrives although its sender is paused or dead by then."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._numbers = itertools.count()
        self.stored: dict[str, VersionedObject] = {}
        self.epochs: list[int] = []

    async def read(self, url: str) -> VersionedObject | None:
        """See `VersionedObjects.read`."""
        return await self._request(url, lambda: self.stored.get(url))

    async def replace(self, url: str, data: bytes, version: ObjectVersion | None) -> ObjectVersion:
        """See `VersionedObjects.replace`."""
        return await self._request(url, lambda: self._replace(url, data, version))

    def fence(self, url: str, may_write: Callable[[], bool]) -> None:
        """Nothing but the lease is written here."""

    def _replace(self, url: str, data: bytes, version: ObjectVersion | None) -> ObjectVersion:
        found = self.stored.get(url)
        if (None if found is None else found.version) != version:
            raise ObjectConflict(url, "somebody else was faster")
        new = ObjectVersion(str(next(self._numbers)), None)
        self.stored[url] = VersionedObject(data, new)
        if url.endswith("lease.json"):
            self.epochs.append(json.loads(data)["epoch"])
        return new

    async def _request(self, url: str, apply: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._world.loop.world_process.spawn(self._serve(url, apply, answer))
        return await answer

    async def _serve(self, url: str, apply: Callable[[], T], answer: asyncio.Future[T]) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / 0.2))
        fate = self._chance.random()
        try:
            if fate < 0.05:
                raise ObjectStoreUnavailable(url, "it is throttled")
            result = apply()
            await asyncio.sleep(self._chance.expovariate(1 / 0.2))
            if fate < 0.1:
                raise ObjectStoreUnavailable(url, "the answer is lost")
        except OSError as error:
            if not answer.done():
                answer.set_exception(error)
            return
        if not answer.done():
            answer.set_result(result)


class Cluster:
    """Candidates that campaign over and over, and what happened to them."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.chance = random.Random(seed)
        self.objects = UnreliableObjects(self.world, self.chance)
        self.candidates: dict[str, tuple[Process, ObjectLeaderElection]] = {}
        self.led: list[int] = []
        self.most_at_once = 0
        self.led_s = 0.0

    def start(self, name: str) -> None:
        """A new life of a candidate, on a host whose clock is not quite right."""
        host = self.world.host(name)
        host.set_clock_rate(self.chance.uniform(0.97, 1.03), self.world.now_s)
        process = self.world.process(host, name)
        runtime = dataclasses.replace(self.world.runtime(process), objects=self.objects)
        process.spawn(self._live(name, process, runtime))

    async def _live(self, name: str, process: Process, runtime: Runtime) -> None:
        election = ObjectLeaderElection(runtime, "s3://bucket/cluster", LEASE_S)
        self.candidates[name] = process, election
        while True:
            self.led.append((await election.campaign(f"{name}:1")).epoch)
            await election.lost.wait()
            await election.step_down()

    async def watch(self) -> None:
        """Look who leads. A paused process does nothing, so what it believes does not matter."""
        while self.world.now_s < RUN_S:
            await asyncio.sleep(LOOK_S)
            leaders = [
                election
                for process, election in self.candidates.values()
                if process.state is ProcessState.RUNNING and election.is_leader()
            ]
            self.most_at_once = max(self.most_at_once, len(leaders))
            self.led_s += LOOK_S if leaders else 0.0

    async def disturb(self) -> None:
        """Pause and kill candidates."""
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / 15.0))
            name = self.chance.choice(sorted(self.candidates))
            process, _ = self.candidates[name]
            if self.chance.random() < 0.3:
                self.world.kill(process)
                self.start(name)
            else:
                process.pause()
                await asyncio.sleep(self.chance.uniform(0.0, 2 * LEASE_S))
                process.resume()

    async def run(self) -> None:
        """Everything, to the end."""
        for number in range(CANDIDATES):
            self.start(f"jm-{number}")
        disturbing = self.world.loop.world_process.spawn(self.disturb())
        await self.watch()
        disturbing.cancel()
        await asyncio.wait([disturbing])


@pytest.mark.parametrize("seed", [*range(8), 213, 235, 322, 341])
def test_never_two_lead_and_epochs_only_grow(seed: int) -> None:
    """Over pauses, deaths, clocks of different rates, and a store that is slow, fails and loses
    answers."""
    cluster = Cluster(seed)
    cluster.world.run(cluster.run())
    cluster.world.close()
    print(f"{len(cluster.led)} leaderships, {cluster.led_s:.0f} of {RUN_S:.0f} s with a leader")
    assert cluster.most_at_once == 1
    assert cluster.led == sorted(set(cluster.led)), "in the order in which they were won"
    assert cluster.objects.epochs == sorted(cluster.objects.epochs)
    assert len(cluster.led) > 3
    assert cluster.led_s > RUN_S / 4


async def test_a_lease_that_cannot_be_read_is_not_guessed_at() -> None:
    runtime = real_runtime()
    url = "memory://damaged-lease/cluster"
    await runtime.objects.replace(f"{url}/leader/lease.json", b"{}", None)
    election = ObjectLeaderElection(runtime, url, LEASE_S)
    with pytest.raises(LeaderStateDamaged, match=r"lease\.json is damaged: it is no lease"):
        await election.campaign("jm:1")
    with pytest.raises(LeaderStateDamaged):
        await ObjectLeaderRetrieval(runtime, url, LEASE_S).current()
