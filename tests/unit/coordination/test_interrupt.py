"""What is awaited is cut short when something else happens."""

from __future__ import annotations

import asyncio

import pytest

from holdover.coordination.interrupt import Interrupt, Interrupted


async def _answer() -> str:
    await asyncio.sleep(0)
    return "answer"


async def test_work_that_nothing_cuts_short_has_its_result() -> None:
    interrupt = Interrupt()
    assert await interrupt.over(_answer) == "answer"
    assert not interrupt.happened


async def test_what_is_awaited_is_cancelled() -> None:
    interrupt = Interrupt()
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    asyncio.get_running_loop().call_soon(interrupt.happen)
    with pytest.raises(Interrupted):
        await interrupt.over(wait)
    assert ended == ["cancelled"]
    assert interrupt.happened
    # Nothing of it is left behind.
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    interrupt.clear()
    assert await interrupt.over(_answer) == "answer"


async def test_work_does_not_begin_after_it_has_happened() -> None:
    interrupt = Interrupt()
    interrupt.happen()
    begun: list[str] = []

    async def begin() -> None:
        begun.append("begun")

    with pytest.raises(Interrupted):
        await interrupt.over(begin)
    assert begun == []


async def test_it_may_happen_twice_at_once() -> None:
    interrupt = Interrupt()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            interrupt.happen()

    loop = asyncio.get_running_loop()
    loop.call_soon(interrupt.happen)
    loop.call_soon(interrupt.happen)
    with pytest.raises(Interrupted):
        await interrupt.over(wait)


async def test_work_that_has_ended_when_it_happens_has_its_result() -> None:
    interrupt = Interrupt()

    async def work() -> str:
        interrupt.happen()
        return "answer"

    assert await interrupt.over(work) == "answer"
    assert interrupt.happened
    await asyncio.sleep(0)  # nothing is cancelled later


async def test_a_timeout_of_the_work_itself_is_not_an_interrupt() -> None:
    async def work() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await Interrupt().over(work)


async def test_the_caller_can_be_cancelled() -> None:
    interrupt = Interrupt()
    waiting = asyncio.ensure_future(interrupt.over(asyncio.Event().wait))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    interrupt.happen()  # nobody is concerned
