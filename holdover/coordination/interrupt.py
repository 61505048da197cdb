"""What is awaited is cut short when something else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")


class Interrupted(Exception):
    """It has happened."""


class Interrupt:
    """Something that happens, and ends what one task awaits under it at that time.

    It takes neither a task nor a timer of its own.
    """

    def __init__(self) -> None:
        self._happened = False
        self._scope: asyncio.Timeout | None = None

    @property
    def happened(self) -> bool:
        """Whether it has happened since `clear`."""
        return self._happened

    def clear(self) -> None:
        """From now on it has not happened yet."""
        self._happened = False

    def happen(self) -> None:
        """It happens: what is awaited under it is cancelled."""
        if self._happened:
            return
        self._happened = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def over(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Await the work, of one caller at a time; its result, when it ends first.

        Raises:
            Interrupted: it has happened, meanwhile or before the work began.
        """
        if self._happened:
            raise Interrupted
        scope = self._scope = asyncio.timeout(None)
        try:
            async with scope:
                return await work()
        except TimeoutError:
            if not scope.expired():
                raise
            raise Interrupted from None
        finally:
            self._scope = None
