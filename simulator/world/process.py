"""Hosts, and the processes that live and die on them.

A process is a life: what is started again after a death is another `Process` under the same name.
All code of a process runs in its `context`, which is how the loop knows whose a callback is. The
death of a process means that none of its callbacks runs again, no `finally` and no `except`; what
it had on the network and in task processes is told by `on_end`.
"""

from __future__ import annotations

import asyncio
import enum
import math
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from simulator.world.handle import ReadyHandle
    from simulator.world.loop import VirtualLoop

ResultT = TypeVar("ResultT")

CURRENT: ContextVar[Process] = ContextVar("current process")

#: Tasks of a process before those are forgotten that are no more.
_TASKS_SWEPT_MIN = 16


class ProcessState(enum.Enum):
    """What a process does."""

    RUNNING = "running"
    #: Stopped by SIGSTOP: nothing of it runs, all of it runs later.
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(eq=False)
class Host:
    """A machine. Its processes share its disk, its clock and its place in the network."""

    name: str
    rack: str = ""
    #: Seconds of this host's clocks in one second of the world; see `set_clock_rate`.
    clock_rate: float = 1.0
    #: What its wall clock shows beyond the world's, milliseconds; jumps are changes of this.
    wall_offset_ms: int = 0
    #: Those that are not dead.
    processes: list[Process] = field(default_factory=list)
    #: Whether its monotonic clock is the world's own: it never went at another rate.
    clock_is_worlds: bool = True
    #: A moment at which both clocks are known: (the world's, the host's).
    _clock_set: tuple[float, float] = (0.0, 0.0)

    def local_s(self, world_s: float) -> float:
        """What the host's monotonic clock shows at a time of the world."""
        at_world_s, at_local_s = self._clock_set
        return at_local_s + (world_s - at_world_s) * self.clock_rate

    def world_s(self, local_s: float) -> float:
        """The reverse of `local_s`: a time at which the host's clock shows that, and not less.

        One that showed less by a rounding would let a sleeper find itself too early and, with what
        remains too short to move any clock, sleep again for ever.
        """
        at_world_s, at_local_s = self._clock_set
        world_s = at_world_s + (local_s - at_local_s) / self.clock_rate
        while self.local_s(world_s) < local_s:
            world_s = math.nextafter(world_s, math.inf)
        return world_s

    def set_clock_rate(self, rate: float, now_s: float) -> None:
        """From now on its clocks run at that rate; timers that are set already keep theirs."""
        self._clock_set = (now_s, self.local_s(now_s))
        self.clock_rate = rate
        self.clock_is_worlds = False

    def living(self) -> list[Process]:
        """Its processes that are not dead, oldest first."""
        return list(self.processes)


class Process:
    """One life of a process."""

    def __init__(self, loop: VirtualLoop, host: Host, name: str, life: int = 0) -> None:
        self.loop = loop
        self.host = host
        self.name = name
        #: Counts the lives under this name, from 0.
        self.life = life
        self.state = ProcessState.RUNNING
        #: Whether it runs or is paused.
        self.alive = True
        self.started_s = loop.now_s
        self.ended_s: float | None = None
        self.ready: deque[ReadyHandle] = deque()
        #: Whether the loop has it on the list of those that can go on.
        self.listed = False
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self._sweep_tasks_at = _TASKS_SWEPT_MIN
        self._on_end: list[Callable[[], None]] = []
        self._on_pause: list[Callable[[], None]] = []
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)
        host.processes.append(self)

    def __repr__(self) -> str:
        return f"<{self.name}#{self.life} {self.state.value}>"

    def spawn(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Run a coroutine in this process."""
        return self.loop.create_task(work, context=self.context.copy())

    def remember_task(self, task: asyncio.Task[Any]) -> None:
        """It is one of this process, and ends with it."""
        tasks = self._tasks
        if len(tasks) >= self._sweep_tasks_at:
            tasks[:] = [reference for reference in tasks if reference() is not None]
            self._sweep_tasks_at = max(_TASKS_SWEPT_MIN, 2 * len(tasks))
        tasks.append(weakref.ref(task))

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call when it has ended, by whatever death; called in no process's name. At once when
        it is dead already."""
        if self.alive:
            self._on_end.append(callback)
        else:
            callback()

    def on_pause(self, callback: Callable[[], None]) -> None:
        """Call whenever it has been paused, or goes on; called in no process's name."""
        self._on_pause.append(callback)

    def end(self) -> None:
        """It is dead from now on. A second death changes nothing."""
        if not self.alive:
            return
        self.state = ProcessState.DEAD
        self.alive = False
        self.ended_s = self.loop.now_s
        self.host.processes.remove(self)
        # A task that is garbage collected runs its `finally`: kept until the world is closed.
        for reference in self._tasks:
            if (task := reference()) is not None:
                self.loop.graveyard.append(task)
                # Nobody may wait for it: not one who lists all tasks in order to end them.
                asyncio._unregister_task(task)
        self._tasks.clear()
        self.ready.clear()
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.PAUSED
            for callback in self._on_pause:
                callback()

    def resume(self) -> None:
        """SIGCONT."""
        if self.state is ProcessState.PAUSED:
            self.state = ProcessState.RUNNING
            for callback in self._on_pause:
                callback()
            self.loop.list_if_ready(self)
