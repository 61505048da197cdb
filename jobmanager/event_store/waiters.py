"""Those who wait until events are durable."""

from __future__ import annotations

import asyncio


class DurabilityWaiters:
    """Each waits for one sequence number."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait_for(self, sequence: int, limit_s: float) -> None:
        """Return when everything up to the sequence is durable.

        Raises `TimeoutError`, and what `give_up` says.
        """
        waiter = (sequence, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(limit_s):
                await waiter[1]
        finally:
            self._waiting.remove(waiter)

    def reached(self, sequence: int) -> None:
        """All up to this one is durable."""
        for wanted, waiter in self._waiting:
            if wanted <= sequence and not waiter.done():
                waiter.set_result(None)

    def give_up(self, error: Exception) -> None:
        """Nothing more will be durable."""
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)
