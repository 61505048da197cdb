"""Clocks of hosts that run fast or slow."""

from __future__ import annotations

import asyncio
import random

from simulator.world.process import Host
from simulator.world.world import World


def test_a_timer_is_never_due_before_its_host_shows_the_time() -> None:
    chance = random.Random(1)
    for _ in range(10_000):
        host = Host("a")
        host.set_clock_rate(chance.uniform(0.9, 1.1), chance.uniform(0, 1e5))
        local_s = host.local_s(chance.uniform(0, 1e6))
        assert 0 <= host.local_s(host.world_s(local_s)) - local_s < 1e-9


def test_who_sleeps_until_a_time_of_a_drifting_clock_wakes_at_it() -> None:
    world = World(seed=1)
    chance = random.Random(2)

    async def sleep_until(host: Host, due_s: float) -> int:
        naps = 0
        while (remaining_s := due_s - host.local_s(world.now_s)) > 0:
            naps += 1
            assert naps < 10, f"asleep for ever, {remaining_s} s before the time"
            await asyncio.sleep(remaining_s)
        return naps

    async def scene() -> None:
        host = world.host("a")
        process = world.process(host, "a")
        for _ in range(1000):
            host.set_clock_rate(chance.uniform(0.9, 1.1), world.now_s)
            due_s = host.local_s(world.now_s) + chance.uniform(0, 10)
            assert await process.spawn(sleep_until(host, due_s)) <= 2

    world.run(scene())
    assert world.failures == []
    world.close()
