"""An asyncio loop on a virtual clock, shared by all processes of a world.

When no callback is ready it jumps to the next timer; when there is none, nothing can ever wake and
the run fails with a list of the tasks that wait. Callbacks of one process run first in, first out;
which process goes on next is drawn from the seed. Nothing here may depend on memory addresses or
on garbage collection: tasks and futures hash by number, and `gc` runs at counted steps only.

What services may not use, because its order is not a function of the seed: `as_completed`, threads,
executors, real sockets, signals. They raise here.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import contextvars
import itertools
import random
import sys
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import Any, NoReturn, TypeVar

from simulator.world import garbage
from simulator.world.handle import ReadyHandle
from simulator.world.process import CURRENT, Host, Process, ProcessState

ResultT = TypeVar("ResultT")

#: By loop, the task that runs: `asyncio.current_task`, which takes longer to ask.
RUNNING_TASKS: dict[Any, Any] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]

_RUNNING = ProcessState.RUNNING
_DEAD = ProcessState.DEAD

#: Cancelled timers are swept when there are this many, and half as many as there were times of
#: timers after the last sweep.
_CANCELLED_TIMERS_MIN = 1_000
_WAITING_LISTED_MAX = 40


class NothingCanWake(Exception):
    """Every task waits, and no timer is set. The text lists who waits where."""


class VirtualTask(asyncio.Task[Any]):
    """A task whose place in sets is the same in every run: its number among all tasks."""

    __slots__ = ("_number",)
    _number: int

    def __init__(
        self,
        loop: VirtualLoop,
        coroutine: Coroutine[Any, Any, Any],
        name: str | None,
        context: contextvars.Context | None,
    ) -> None:
        # Before all else: asyncio puts it into a set.
        self._number = next(loop.numbers)
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


class VirtualFuture(asyncio.Future[Any]):
    """A future whose place in sets is the same in every run; numbered when it is first asked."""

    __slots__ = ("_number",)
    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            loop = self.get_loop()
            assert isinstance(loop, VirtualLoop)
            self._number = next(loop.numbers)
            return self._number

    __eq__ = object.__eq__


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module."""

    def __init__(self, source: random.Random) -> None:
        garbage.world_begins()
        self.now_s = 0.0
        #: Numbers of tasks and futures.
        self.numbers = itertools.count()
        #: Callbacks that have run.
        self.callbacks = 0
        self.graveyard: list[asyncio.Task[Any]] = []
        self._chance = source.random
        #: A heap of the times at which timers are due, and those of each time in the order in which
        #: they were set: bare numbers are compared several times faster than what has one.
        self._times: list[float] = []
        self._timers: dict[float, list[ReadyHandle]] = {}
        #: Of the timers, those that were cancelled; and when that many are, they are swept.
        self._cancelled_timers = 0
        self._sweep_timers_at = _CANCELLED_TIMERS_MIN
        self._listed: list[Process] = []
        self._generators: weakref.WeakKeyDictionary[AsyncGenerator[Any, Any], Process] = (
            weakref.WeakKeyDictionary()
        )
        self._exception_handler: Callable[[Process | None, dict[str, Any]], object] | None = None
        self._running = False
        #: Whether what the loop runs for has ended.
        self._over = False
        self._closed = False
        self._collect_at = garbage.CALLBACKS_PER_COLLECTION
        #: The process of the world itself: faults, checks, and whatever is nobody's.
        self.world_process = Process(self, Host("world"), "world")

    # ------------------------------------------------------------------ running

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run until the coroutine, which is the world's own, has ended."""
        with self._as_running_loop():
            return self._result_of(self.world_process.spawn(self._to_its_end(work)))

    def run_until_complete(
        self, future: Generator[Any, None, ResultT] | Awaitable[ResultT]
    ) -> ResultT:
        """See asyncio. Its `Runner` calls it, so that tests can have this loop."""
        with self._as_running_loop():
            work = self._to_its_end(future)  # type: ignore[arg-type]
            return self._result_of(asyncio.ensure_future(work, loop=self))

    async def _to_its_end(self, work: Awaitable[ResultT]) -> ResultT:
        """Await it, and leave word: there are more turns than a task could be asked in."""
        try:
            return await work
        finally:
            self._over = True

    def _result_of(self, main: asyncio.Task[ResultT]) -> ResultT:
        """One turn of one process that can go on after the other, until it is over."""
        listed, chance = self._listed, self._chance
        self._over = False
        while not self._over:
            if not listed:
                self._jump()
                continue
            count = len(listed)
            index = int(chance() * count) if count > 1 else 0
            process = listed[index]
            ready = process.ready
            count = len(ready)
            self.callbacks += count
            while count and process.state is _RUNNING:
                count -= 1
                handle = ready.popleft()
                callback = handle._callback
                if callback is not None:
                    try:
                        handle._context.run(callback, *handle._args)
                    except BaseException as error:  # noqa: BLE001  as asyncio does
                        handle.failed(error)
            self.callbacks -= count
            if not ready or process.state is not _RUNNING:
                # Not `remove`: the list may have grown, but this place is still its own.
                listed[index] = listed[-1]
                listed.pop()
                process.listed = False
            if self.callbacks >= self._collect_at:
                self._collect_at = self.callbacks + garbage.CALLBACKS_PER_COLLECTION
                garbage.collect()
        return main.result()

    def _jump(self) -> None:
        """Go on to the next time at which a timer may be due. One that is due alone runs without
        being listed: it would be the only one there."""
        if not self._times:
            raise NothingCanWake(self._who_waits())
        when_s = heappop(self._times)
        handles = self._timers[when_s]
        del self._timers[when_s]
        match handles:
            case [handle] if handle._callback is not None and handle.process.state is _RUNNING:
                self.now_s = when_s
                handle._when = 0.0
                self.callbacks += 1
                try:
                    handle._context.run(handle._callback, *handle._args)
                except BaseException as error:  # noqa: BLE001  as asyncio does
                    handle.failed(error)
            case _:
                for handle in handles:
                    if handle._callback is None:
                        self._cancelled_timers -= 1
                    else:
                        self.now_s = when_s
                        handle._when = 0.0
                        self._make_ready(handle)

    def _make_ready(self, handle: ReadyHandle) -> None:
        process = handle.process
        state = process.state
        if state is _DEAD:
            return
        process.ready.append(handle)
        if not process.listed and state is _RUNNING:
            process.listed = True
            self._listed.append(process)

    def list_if_ready(self, process: Process) -> None:
        """A process that was paused goes on."""
        if process.ready and not process.listed:
            process.listed = True
            self._listed.append(process)

    def timer_cancelled(self) -> None:
        """Count it; sweep when many timers are cancelled, as `asyncio.timeout` leaves them."""
        self._cancelled_timers += 1
        if self._cancelled_timers > self._sweep_timers_at:
            self._sweep_timers()

    def _sweep_timers(self) -> None:
        self._timers = {
            when_s: left
            for when_s, handles in self._timers.items()
            if (left := [handle for handle in handles if handle._callback is not None])
        }
        self._times = list(self._timers)
        heapify(self._times)
        self._cancelled_timers = 0
        self._sweep_timers_at = max(_CANCELLED_TIMERS_MIN, len(self._timers) // 2)

    def _who_waits(self) -> str:
        tasks = sorted((task for task in asyncio.all_tasks(self) if not task.done()), key=hash)
        lines = [f"  {task_place(task)}" for task in tasks[:_WAITING_LISTED_MAX]]
        more = len(tasks) - len(lines)
        lines += [f"  ... and {more} more"] if more > 0 else []
        return "\n".join([f"at {self.now_s:.3f} s nothing can ever wake; waiting:", *lines])

    @contextmanager
    def _as_running_loop(self) -> Generator[None, None, None]:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._generator_begins, self._generator_is_dropped)
        before = asyncio.events._get_running_loop()
        asyncio.events._set_running_loop(self)
        self._running = True
        try:
            with garbage.no_collections():
                yield
        finally:
            self._running = False
            asyncio.events._set_running_loop(before)
            sys.set_asyncgen_hooks(*hooks)

    def _generator_begins(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[generator] = CURRENT.get(self.world_process)

    def _generator_is_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = self._generators.pop(generator, self.world_process)
        if process.alive and not self._closed:
            # Its own awaitable is no coroutine to asyncio in every version of Python.
            process.spawn(_close(generator))

    def close(self) -> None:
        """The run is over: let go of all tasks without letting any of them act.

        Their `finally` blocks run now, with a loop that does nothing any more.
        """
        if self._closed:
            return
        self._closed = True
        with self._as_running_loop(), warnings.catch_warnings():
            # Work that was begun in the moment of a death, and never had a turn, is no mistake.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            for task in [*self.graveyard, *asyncio.all_tasks(self)]:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                if not task.done():
                    try:
                        coroutine.close()
                    except (RuntimeError, ValueError):
                        # It awaited in a `finally`, or is the task that closes the loop.
                        continue
        self.graveyard.clear()
        self._times.clear()
        self._timers.clear()
        self._listed.clear()
        self._exception_handler = None
        garbage.world_over(self.callbacks)

    # ------------------------------------------------------------------ asyncio's interface

    def time(self) -> float:
        """Seconds on the clock of the current process."""
        process = CURRENT.get(None)
        if process is None or process.host.clock_is_worlds:
            return self.now_s
        return process.host.local_s(self.now_s)

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> ReadyHandle:
        """See asyncio. The callback is the process's in whose context it runs."""
        if context is None:
            context = contextvars.copy_context()
        process = context.get(CURRENT, self.world_process)
        handle = ReadyHandle()
        handle.process, handle._callback, handle._args = process, callback, args
        handle._context, handle._when = context, 0.0
        state = process.state
        if state is not _DEAD and not self._closed:
            # As in `_make_ready`, which most callbacks of a run come by.
            process.ready.append(handle)
            if not process.listed and state is _RUNNING:
                process.listed = True
                self._listed.append(process)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> ReadyHandle:
        """The same: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> ReadyHandle:
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> ReadyHandle:
        """See asyncio; `when` is on the clock of the process in whose context this is called."""
        if context is None:
            context = contextvars.copy_context()
        process = context.get(CURRENT, self.world_process)
        when_s = when if process.host.clock_is_worlds else process.host.world_s(when)
        if when_s < self.now_s:
            when_s = self.now_s
        handle = ReadyHandle()
        handle.process, handle._callback, handle._args = process, callback, args
        handle._context, handle._when = context, when_s or 1e-12
        if not self._closed and process.state is not _DEAD:
            if when_s in self._timers:
                self._timers[when_s].append(handle)
            else:
                self._timers[when_s] = [handle]
                heappush(self._times, when_s)
        return handle

    def call_of(
        self, process: Process, when_s: float, callback: Callable[..., object], *args: Any
    ) -> ReadyHandle:
        """Call in the name of a process, at a time of the world."""
        if when_s < self.now_s:
            when_s = self.now_s
        handle = ReadyHandle()
        handle.process, handle._callback, handle._args = process, callback, args
        handle._context, handle._when = process.context, when_s or 1e-12
        if not self._closed and process.state is not _DEAD:
            if when_s in self._timers:
                self._timers[when_s].append(handle)
            else:
                self._timers[when_s] = [handle]
                heappush(self._times, when_s)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return VirtualFuture(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, ResultT],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[ResultT]:
        """See asyncio. After the end of the run nothing starts: the coroutine is closed unrun."""
        if self._closed:
            coro.close()
            raise RuntimeError("the world is closed")
        task: asyncio.Task[ResultT] = VirtualTask(
            self, coro, None if name is None else str(name), context
        )
        process = CURRENT.get(self.world_process) if context is None else context.get(CURRENT)
        (process or self.world_process).remember_task(task)
        return task

    def start_task(self, coro: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """A task of the current process that has gone as far as it gets without waiting.

        The last act of a callback; called by a task, it is `create_task`. See `Promise.wake`.
        """
        process = CURRENT.get(self.world_process)
        was_listed = process.listed
        task = self.create_task(coro)
        if self not in RUNNING_TASKS:
            first_step = process.ready.pop()
            if not was_listed:
                self._listed.pop()
                process.listed = False
            assert first_step._callback is not None
            first_step._context.run(first_step._callback, *first_step._args)
        return task

    #: Whether it debugs: never. Every future asks, so nothing but C answers: `bool()` is False.
    get_debug = bool

    def set_debug(self, enabled: bool) -> None:
        """Ignored: debug mode looks at the wall clock."""

    def is_running(self) -> bool:
        """Whether `run` runs."""
        return self._running

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def set_failure_handler(
        self, handler: Callable[[Process | None, dict[str, Any]], object]
    ) -> None:
        """Who is told of exceptions that nobody caught, with the process they belong to."""
        self._exception_handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See asyncio."""
        if self._exception_handler is not None and not self._closed:
            self._exception_handler(CURRENT.get(None), context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """The same as `call_exception_handler`."""
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: `close` lets go of everything."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there are no threads."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        """There are no threads in the world."""
        raise NotImplementedError(
            f"{func!r}: services start no threads; this belongs behind the Runtime"
        )


async def _close(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def task_place(task: asyncio.Task[Any]) -> str:
    """Name of the task and where it waits, for people."""
    stack = task.get_stack(limit=1)
    if not stack:
        return task.get_name()
    frame = stack[-1]
    return f"{task.get_name()} at {frame.f_code.co_filename}:{frame.f_lineno}"
