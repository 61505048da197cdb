"""What every arm's clock and randomness keep."""

from __future__ import annotations

import asyncio

from holdover.runtime import Runtime


async def test_monotonic_time_follows_the_event_loop(runtime_arm: Runtime) -> None:
    loop = asyncio.get_running_loop()

    def look() -> tuple[float, float, float]:
        return loop.time(), runtime_arm.clock.monotonic_s(), loop.time()

    before_s, started_s, after_s = look()
    await asyncio.sleep(0.05)
    before_end_s, ended_s, after_end_s = look()
    elapsed_s = ended_s - started_s
    resolution_s = 0.001
    assert before_end_s - after_s - resolution_s <= elapsed_s
    assert elapsed_s <= after_end_s - before_s + resolution_s
    assert elapsed_s >= 0.045


async def test_monotonic_time_never_goes_back(runtime_arm: Runtime) -> None:
    seen = [runtime_arm.clock.monotonic_s() for _ in range(1000)]
    assert seen == sorted(seen)


async def test_wall_time_is_milliseconds_of_this_century(runtime_arm: Runtime) -> None:
    assert 946_684_800_000 < runtime_arm.clock.wall_ms() < 4_102_444_800_000


async def test_uniform_stays_in_its_bounds_and_varies(runtime_arm: Runtime) -> None:
    drawn = [runtime_arm.randomness.uniform(2.0, 3.0) for _ in range(100)]
    assert all(2.0 <= number <= 3.0 for number in drawn)
    assert len(set(drawn)) > 50


async def test_tokens_have_the_asked_length_and_differ(runtime_arm: Runtime) -> None:
    tokens = [runtime_arm.randomness.token_hex(8) for _ in range(100)]
    assert all(len(token) == 16 and int(token, 16) >= 0 for token in tokens)
    assert len(set(tokens)) == 100
