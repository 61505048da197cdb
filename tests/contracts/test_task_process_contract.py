"""What every arm's task processes keep."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdover.runtime import (
    TASK_MESSAGE_BYTES_MAX,
    ExitStatus,
    Runtime,
    TaskProcess,
    TaskProcesses,
    TaskProcessesUnavailable,
    TaskProcessGone,
    TaskProcessPool,
    TaskProcessSpec,
)
from simulator.world.process import CURRENT
from simulator.world.task_processes import ModelledTaskProcesses
from tests.contracts import modelled_echo

if TYPE_CHECKING:
    from simulator.world.world import World

WATCHDOG_S = 120.0


@pytest.fixture
def spec(tmp_path: Path) -> TaskProcessSpec:
    return TaskProcessSpec(
        entry="tests.contracts.echo_process:main",
        argv=("one", "two"),
        log_path=str(tmp_path / "tasks.log"),
    )


@pytest.fixture
async def task_processes(runtime_arm: Runtime, world: World | None) -> TaskProcesses:
    if world is None:
        return runtime_arm.task_processes
    return ModelledTaskProcesses(world, CURRENT.get(), {modelled_echo.ENTRY: modelled_echo.main})


@pytest.fixture
async def pool(
    task_processes: TaskProcesses, spec: TaskProcessSpec
) -> AsyncIterator[TaskProcessPool]:
    pool = await task_processes.open(spec)
    yield pool
    async with asyncio.timeout(WATCHDOG_S):
        await pool.close()


async def ask(process: TaskProcess, message: bytes) -> bytes | None:
    async with asyncio.timeout(WATCHDOG_S):
        await process.send(message)
        return await process.receive()


async def end_of(process: TaskProcess) -> ExitStatus:
    async with asyncio.timeout(WATCHDOG_S):
        return await process.wait()


async def test_messages_go_both_ways_whole(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    assert await ask(process, b"echo hello") == b"hello"
    assert await ask(process, b"echo ") == b""
    large = bytes(range(256)) * 20_000
    assert (await ask(process, b"echo " + large) == large) is True  # no diff of megabytes
    assert await ask(process, b"argv") == b"one two"


async def test_many_messages_arrive_in_order_at_a_slow_receiver(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    await process.send(b"burst 20000")
    await asyncio.sleep(0.2)
    received = [await process.receive() for _ in range(20_000)]
    assert received == [b"%d" % number for number in range(20_000)]


async def test_a_message_over_the_limit_is_refused(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    with pytest.raises(ValueError, match="over the limit"):
        await process.send(bytes(TASK_MESSAGE_BYTES_MAX + 1))


async def test_a_cancelled_receive_loses_nothing(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await process.receive()
    assert await ask(process, b"echo after") == b"after"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"return 0", ExitStatus(0, None)),
        (b"return 7", ExitStatus(7, None)),
        (b"exit 3", ExitStatus(3, None)),
        (b"raise oops", ExitStatus(1, None)),
        (b"die 9", ExitStatus(None, 9)),
        (b"die 11", ExitStatus(None, 11)),
        (b"die 15", ExitStatus(None, 15)),
    ],
)
async def test_how_it_ended_is_told(
    pool: TaskProcessPool, message: bytes, status: ExitStatus
) -> None:
    process = await pool.acquire()
    assert await ask(process, message) is None
    assert await end_of(process) == status
    assert await end_of(process) == status
    with pytest.raises(TaskProcessGone):
        await process.send(b"echo late")


async def test_what_was_sent_before_the_end_still_arrives(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    await process.send(b"burst 1000")
    await process.send(b"exit 0")
    await end_of(process)
    received = [await process.receive() for _ in range(1001)]
    assert received[-2:] == [b"999", None]


async def test_an_interrupt_is_a_keyboard_interrupt_and_leaves_it_usable(
    pool: TaskProcessPool,
) -> None:
    process = await pool.acquire()
    assert await ask(process, b"sleep") == b"sleeping"
    process.interrupt()
    async with asyncio.timeout(WATCHDOG_S):
        assert await process.receive() == b"interrupted"
    assert await ask(process, b"echo still here") == b"still here"


async def test_one_that_ignores_interrupts_is_killed(pool: TaskProcessPool) -> None:
    process = await pool.acquire()
    assert await ask(process, b"ignore-interrupt") == b"ignoring"
    process.interrupt()
    process.kill()
    assert (await end_of(process)).text == "died by signal 9 (SIGKILL)"
    assert await process.receive() is None
    process.kill()
    process.interrupt()


async def test_a_released_process_is_acquired_again_and_a_dead_one_is_not(
    pool: TaskProcessPool,
) -> None:
    first = await pool.acquire()
    pool.release(first)
    second = await pool.acquire()
    assert second.pid == first.pid
    pool.release(second)
    second.kill()
    await end_of(second)
    third = await pool.acquire()
    assert third.pid != second.pid
    assert await ask(third, b"echo alive") == b"alive"


async def test_closing_the_pool_ends_its_processes(
    task_processes: TaskProcesses, spec: TaskProcessSpec
) -> None:
    pool = await task_processes.open(spec)
    processes = [await pool.acquire() for _ in range(3)]
    assert await ask(processes[0], b"ignore-interrupt") == b"ignoring"
    await pool.close()
    assert [(await end_of(process)).signal for process in processes] == [9, 9, 9]
    with pytest.raises(TaskProcessesUnavailable):
        await pool.acquire()


async def test_an_entry_that_cannot_be_loaded_is_told(
    task_processes: TaskProcesses, spec: TaskProcessSpec
) -> None:
    missing = dataclasses.replace(spec, entry="tests.no_such_module:main")
    with pytest.raises(TaskProcessesUnavailable, match="No module named 'tests"):
        await task_processes.open(missing)
