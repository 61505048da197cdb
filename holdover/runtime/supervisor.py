"""Background tasks that cannot vanish (case P56)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from holdover.runtime.log import Log

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How a loop that ended is started again: after a delay that doubles from the first to the
    largest, and begins anew once the loop has run for `healthy_after_s`. After `restarts_max`
    restarts without such a run its end is fatal; None restarts for ever."""

    delay_first_s: float = 0.1
    delay_max_s: float = 5.0
    healthy_after_s: float = 30.0
    restarts_max: int | None = None


class UnexpectedEnd(RuntimeError):
    """A loop that should run until it is cancelled has returned."""

    def __init__(self, name: str) -> None:
        super().__init__(f"background loop {name!r} ended although nobody stopped it")


class _Work:
    """Closes what nobody has begun when nobody will: Python would complain of it."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine

    def __del__(self) -> None:
        self.coroutine.close()


class Supervisor:
    """Holds the background tasks of one service by name, with strong references.

    A loop is expected to run until `close`. When it ends, by return or exception, it is restarted
    by its policy; without one `on_fatal(name, exception)` is called, which is expected to end the
    process with that name in the log.
    """

    def __init__(self, name: str, on_fatal: Callable[[str, BaseException], None]) -> None:
        self._name = name
        self._on_fatal = on_fatal
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._numbered = 0
        self._closed = False

    def run(
        self,
        name: str,
        loop_function: Callable[[], Awaitable[None]],
        restart: RestartPolicy | None = None,
    ) -> None:
        """Start a loop. Names are unique among those that run; raises `ValueError` otherwise."""
        self._hold(name, self._supervise(name, loop_function, restart))

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start work that ends by itself; an exception in it is fatal. Names may repeat."""
        self._numbered += 1
        held_as = f"{name} {self._numbered}"
        self._hold(held_as, self._supervise_work(name, held_as, _Work(work)))

    def names(self) -> list[str]:
        """What runs now, in the order of starting."""
        return list(self._tasks)

    async def cancel(self, name: str) -> None:
        """Cancel one loop and wait for its end; no-op when it does not run."""
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            self._tasks.pop(name, None)

    async def close(self) -> None:
        """Cancel everything, newest first, and wait until all has ended. Then nothing starts."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in reversed(self._tasks.values()) if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for name in [name for name, task in self._tasks.items() if task.done()]:
            del self._tasks[name]

    def _hold(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Whoever runs lets go of itself at its end; one that was cancelled before it began is
        let go by who cancelled it."""
        if self._closed or name in self._tasks:
            work.close()
            reason = "is closed" if self._closed else "runs it already"
            raise ValueError(f"cannot start {name!r}: supervisor {self._name!r} {reason}")
        self._tasks[name] = asyncio.create_task(work)

    async def _supervise(
        self,
        name: str,
        loop_function: Callable[[], Awaitable[None]],
        restart: RestartPolicy | None,
    ) -> None:
        """One coroutine around the loop and no more: each time that the loop goes on, Python passes
        through all that are around it.
        """
        clock = asyncio.get_running_loop()
        restarts = 0
        try:
            while True:
                started_s = clock.time()
                exception: Exception = UnexpectedEnd(name)
                try:
                    await loop_function()
                except Exception as error:  # noqa: BLE001  reported to the owner, whatever it is
                    exception = error
                if restart is not None and clock.time() - started_s >= restart.healthy_after_s:
                    restarts = 0
                if restart is None or restarts == restart.restarts_max:
                    self._report_fatal(name, exception)
                    return
                delay_s = min(restart.delay_max_s, restart.delay_first_s * 2 ** min(restarts, 30))
                restarts += 1
                _log.error(
                    "background loop ended, restarting it",
                    supervisor=self._name,
                    loop=name,
                    delay_s=delay_s,
                    restarts=restarts,
                    exception=exception,
                )
                await asyncio.sleep(delay_s)
        finally:
            self._tasks.pop(name, None)

    async def _supervise_work(self, name: str, held_as: str, work: _Work) -> None:
        try:
            await work.coroutine
        except Exception as exception:  # noqa: BLE001  reported to the owner, whatever it is
            self._report_fatal(name, exception)
        finally:
            self._tasks.pop(held_as, None)

    def _report_fatal(self, name: str, exception: Exception) -> None:
        _log.error("background loop failed", supervisor=self._name, loop=name, exception=exception)
        self._on_fatal(name, exception)
