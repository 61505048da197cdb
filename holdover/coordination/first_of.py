"""Two things of which the one that ends first counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def first_of(
    work: Coroutine[Any, Any, ResultT], other: Coroutine[Any, Any, Any]
) -> ResultT | bool:
    """The result of `work` when it ends first (or at the same time), True when the other does."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return True if tasks[0].cancelled() else tasks[0].result()
