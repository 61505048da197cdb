"""Which registrations are served at once, and which come again later."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from holdover.runtime.real import SystemClock
from jobmanager.registration_admission import (
    AT_ONCE_MAX,
    NEVER_PUT_OFF,
    RETRY_AFTER_MAX_S,
    WAIT_MAX_S,
    ComeAgain,
    RegistrationAdmission,
    RegistrationLoad,
)


def busy_load(each_s: float) -> RegistrationLoad:
    """Two are inside; registrations have taken so long for a while."""
    load = RegistrationLoad()
    load.enter(0.0)
    load.enter(0.0)
    now_s = 0.0
    for _ in range(100):
        now_s += each_s
        load.leave(now_s, served=True)
        load.enter(now_s)
    return load


def put_off(load: RegistrationLoad, now_s: float) -> float:
    with pytest.raises(ComeAgain) as raised:
        load.enter(now_s)
    return raised.value.retry_after_s


def test_how_long_each_takes_is_measured_while_others_wait() -> None:
    assert busy_load(0.05).interval_s == pytest.approx(0.05, rel=0.01)
    load = RegistrationLoad()
    for now_s in (1.0, 7.0, 70.0):
        before = load.interval_s
        load.enter(now_s)
        load.leave(now_s + 0.001, served=True)
        assert load.interval_s == before  # it was idle between them


def test_a_few_are_never_put_off_however_slow_it_is() -> None:
    """P51"""
    load = busy_load(1.0)
    while load.inside < NEVER_PUT_OFF:
        load.enter(100.0)
    assert put_off(load, 100.0) > WAIT_MAX_S


def test_those_that_would_wait_for_long_get_times_of_their_own() -> None:
    """P28: one after the other, no faster than they can be served."""
    load = busy_load(0.01)
    now_s = 1.0
    while load.inside * load.interval_s <= WAIT_MAX_S:
        load.enter(now_s)
    times_s = [put_off(load, now_s) for _ in range(100)]
    assert times_s[0] >= WAIT_MAX_S
    gaps_s = [after - before for before, after in pairwise(times_s)]
    assert min(gaps_s) >= load.interval_s
    assert times_s[-1] <= RETRY_AFTER_MAX_S


def test_nobody_is_put_off_for_longer_than_a_bound() -> None:
    load = busy_load(0.1)
    while load.inside * load.interval_s <= WAIT_MAX_S:
        load.enter(10.0)
    assert max(put_off(load, 10.0) for _ in range(1_000)) == RETRY_AFTER_MAX_S


def test_only_a_large_cluster_is_told_to_spread_out() -> None:
    load = busy_load(0.005)
    assert load.spread_s(50) == 0.0
    assert load.spread_s(500) > 500 * load.interval_s
    assert load.spread_s(1_000_000) == RETRY_AFTER_MAX_S


async def test_a_few_are_served_at_a_time_in_the_order_in_which_they_came() -> None:
    admission = RegistrationAdmission(SystemClock())
    inside: list[int] = []
    done = asyncio.Event()

    async def come(number: int) -> None:
        async with admission.turn():
            inside.append(number)
            await done.wait()

    coming = [asyncio.create_task(come(number)) for number in range(2 * AT_ONCE_MAX)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert inside == list(range(AT_ONCE_MAX))
    done.set()
    await asyncio.gather(*coming)
    assert inside == list(range(2 * AT_ONCE_MAX))
    assert admission.load.inside == 0


async def test_who_gives_up_in_the_line_is_not_served() -> None:
    """P28: no work is done for callers that do not wait any more."""
    admission = RegistrationAdmission(SystemClock())
    served: list[int] = []
    done = asyncio.Event()

    async def come(number: int) -> None:
        async with admission.turn():
            served.append(number)
            await done.wait()

    coming = [asyncio.create_task(come(number)) for number in range(AT_ONCE_MAX + 2)]
    for _ in range(5):
        await asyncio.sleep(0)
    coming[AT_ONCE_MAX].cancel()
    done.set()
    await asyncio.gather(*coming, return_exceptions=True)
    assert served == [*range(AT_ONCE_MAX), AT_ONCE_MAX + 1]
    assert admission.load.inside == 0


async def test_a_slow_sender_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmanager.registration_admission.PATIENCE_S", 0.0)
    admission = RegistrationAdmission(SystemClock())
    never = asyncio.Event()

    async def come(forever: bool) -> None:
        async with admission.turn():
            if forever:
                await never.wait()

    slow = [asyncio.create_task(come(True)) for _ in range(AT_ONCE_MAX)]
    async with asyncio.timeout(60):
        await come(False)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert admission.load.inside == 0
