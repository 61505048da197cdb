"""No background task vanishes (P56)."""

from __future__ import annotations

import asyncio
import gc

import pytest

from holdover.runtime.supervisor import RestartPolicy, Supervisor, UnexpectedEnd

QUICK = RestartPolicy(delay_first_s=0.001, delay_max_s=0.002)


class Fatal:
    """Notes what was reported."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, BaseException]] = []
        self.reported = asyncio.Event()

    def __call__(self, name: str, exception: BaseException) -> None:
        self.reports.append((name, exception))
        self.reported.set()


async def forever() -> None:
    await asyncio.Event().wait()


async def returns() -> None:
    await asyncio.sleep(0)


async def raises() -> None:
    raise OSError("broken")


async def test_a_loop_that_raises_is_fatal_with_its_name() -> None:
    fatal = Fatal()
    supervisor = Supervisor("jm", fatal)
    supervisor.run("flush", raises)
    async with asyncio.timeout(60):
        await fatal.reported.wait()
    [(name, exception)] = fatal.reports
    assert (name, str(exception)) == ("flush", "broken")
    await supervisor.close()


async def test_a_loop_that_returns_is_fatal_too() -> None:
    fatal = Fatal()
    supervisor = Supervisor("jm", fatal)
    supervisor.run("flush", returns)
    async with asyncio.timeout(60):
        await fatal.reported.wait()
    assert isinstance(fatal.reports[0][1], UnexpectedEnd)
    await supervisor.close()


async def test_a_loop_with_a_policy_is_restarted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fatal = Fatal()
    supervisor = Supervisor("jm", fatal)
    runs = 0
    steady = asyncio.Event()

    async def fails_twice() -> None:
        nonlocal runs
        runs += 1
        if runs <= 2:
            raise OSError("broken")
        steady.set()
        await forever()

    supervisor.run("flush", fails_twice, restart=QUICK)
    async with asyncio.timeout(60):
        await steady.wait()
    await supervisor.close()
    assert (runs, fatal.reports) == (3, [])
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert caplog.records[0].holdover_fields["loop"] == "flush"  # type: ignore[attr-defined]


async def test_restarts_have_a_bound() -> None:
    fatal = Fatal()
    supervisor = Supervisor("jm", fatal)
    runs = 0

    async def counts_and_fails() -> None:
        nonlocal runs
        runs += 1
        raise OSError("broken")

    policy = RestartPolicy(delay_first_s=0.001, delay_max_s=0.001, restarts_max=3)
    supervisor.run("flush", counts_and_fails, restart=policy)
    async with asyncio.timeout(60):
        await fatal.reported.wait()
    assert runs == 4
    await supervisor.close()


async def test_close_cancels_and_waits_for_clean_up() -> None:
    supervisor = Supervisor("jm", Fatal())
    cleaned = asyncio.Event()

    async def cleans_up() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    supervisor.run("serve", cleans_up)
    await asyncio.sleep(0)
    await supervisor.close()
    assert cleaned.is_set()
    assert supervisor.names() == []


async def test_nothing_starts_after_close_and_no_name_runs_twice() -> None:
    supervisor = Supervisor("jm", Fatal())
    supervisor.run("serve", forever)
    with pytest.raises(ValueError, match=r"'serve'.*runs it already"):
        supervisor.run("serve", forever)
    await supervisor.close()
    with pytest.raises(ValueError, match="is closed"):
        supervisor.run("other", forever)


async def test_work_that_is_cancelled_before_it_began_is_let_go() -> None:
    """Python warns of a coroutine that nobody has awaited, which fails the test."""
    supervisor = Supervisor("s", Fatal())
    supervisor.start("work", forever())
    await supervisor.close()
    with pytest.raises(ValueError, match="closed"):
        supervisor.start("work", forever())
    gc.collect()


async def test_one_loop_can_be_cancelled_and_its_name_used_again() -> None:
    supervisor = Supervisor("jm", Fatal())
    supervisor.run("serve", forever)
    await supervisor.cancel("serve")
    await supervisor.cancel("serve")
    supervisor.run("serve", forever)
    assert supervisor.names() == ["serve"]
    await supervisor.close()


async def test_work_may_end_by_itself_but_not_by_an_exception() -> None:
    fatal = Fatal()
    supervisor = Supervisor("jm", fatal)
    supervisor.start("deploy", returns())
    supervisor.start("deploy", raises())
    async with asyncio.timeout(60):
        await fatal.reported.wait()
    assert [name for name, _ in fatal.reports] == ["deploy"]
    await supervisor.close()


async def test_work_that_is_cancelled_before_it_has_begun_is_not_complained_of() -> None:
    """A coroutine that was never awaited is a RuntimeWarning, which fails the test."""
    supervisor = Supervisor("jm", Fatal())
    supervisor.start("deploy", returns())
    await supervisor.close()
    with pytest.raises(ValueError, match="is closed"):
        supervisor.start("deploy", returns())
    gc.collect()


async def test_a_supervised_loop_survives_garbage_collection() -> None:
    supervisor = Supervisor("jm", Fatal())
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    supervisor.run("tick", tick)
    for _ in range(20):
        gc.collect()
        await asyncio.sleep(0)
    assert ticks >= 10
    await supervisor.close()
