"""Task processes of a world: children of their TaskManager, with modelled programs in them.

MODEL: a task process is a process of its own on the TaskManager's host. It can die alone (its
TaskManager then sees its socket close, and how it died), and it dies with its TaskManager, as the
real one does (PDEATHSIG). Messages between the two take no time and are never lost; what was sent
before a death still arrives. A new process takes `process_start_s`, a spare one none. Not modelled:
the zygote, niceness, memory, what user code prints.

What runs in a process is named by the spec's entry, and is a coroutine here: the entry of the real
task process stands for the modelled task, others are told to `ModelledTaskProcesses`.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from holdover.runtime import (
    TASK_MESSAGE_BYTES_MAX,
    ExitStatus,
    TaskProcess,
    TaskProcessesUnavailable,
    TaskProcessGone,
    TaskProcessPool,
    TaskProcessSpec,
)
from simulator.world.modelled_task import run_modelled_tasks
from simulator.world.process import Process
from simulator.world.promise import Promise

if TYPE_CHECKING:
    from simulator.world.loop import VirtualLoop
    from simulator.world.world import World

ModelledEntry = Callable[["ModelledTaskSocket", list[str]], Coroutine[Any, Any, int]]

TASK_ENTRY = "taskmanager.task:main"
# Released processes that are kept for the next task, as in the real pool; more are killed.
_IDLE_MAX = 64


class DiedBySignal(Exception):
    """Raised by a modelled program where its process dies by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class _Pipe:
    """One direction of a socket. One reader at a time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        # Empty, a list takes a tenth of a deque's room: there are two of these for each task
        # process, and hardly ever two messages in one.
        self._messages: list[bytes] = []
        self._waiting: Promise[None] | None = None
        self._closed = False

    def put(self, message: bytes) -> None:
        if len(message) > TASK_MESSAGE_BYTES_MAX:
            raise ValueError(
                f"a message of {len(message)} bytes is over the limit of {TASK_MESSAGE_BYTES_MAX}"
            )
        if not self._closed:
            self._messages.append(message)
            self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def get(self) -> bytes | None:
        """The next message; None when it is closed and empty."""
        while not self._messages:
            if self._closed:
                return None
            self._waiting = Promise(loop=self._loop)
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self._messages.pop(0)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class ModelledTaskSocket:
    """What a modelled program has: its process, and the messages to and from its TaskManager."""

    def __init__(self, process: Process, host: str) -> None:
        self.process = process
        #: The TaskManager's host.
        self.worker = host
        self.to_task = _Pipe(process.loop)
        self.to_worker = _Pipe(process.loop)
        #: What SIGINT does: by default it ends the process.
        self.on_interrupt: Callable[[], None] | None = None

    def send(self, message: bytes) -> None:
        """See `TaskSocket.send`; never blocks."""
        self.to_worker.put(message)

    def receive(self) -> Coroutine[Any, Any, bytes | None]:
        """See `TaskSocket.receive`."""
        return self.to_task.get()

    def close(self) -> None:
        """See `TaskSocket.close`."""
        self.to_worker.close()


class ModelledTaskProcess:
    """A task process as its TaskManager has it. See `TaskProcess`."""

    def __init__(
        self,
        world: World,
        process: Process,
        pid: int,
        worker: str,
        entry: ModelledEntry,
        argv: list[str],
    ) -> None:
        #: The process in the world, for who wants to kill it alone.
        self.process = process
        self._world = world
        self._pid = pid
        self._socket = ModelledTaskSocket(process, worker)
        self._status: ExitStatus | None = None
        #: Made for who waits for the end: next to nobody does.
        self._ended: asyncio.Event | None = None
        process.on_end(self._on_end)
        process.spawn(self._run(entry, argv))

    @property
    def pid(self) -> int:
        """See `TaskProcess.pid`."""
        return self._pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.alive

    async def send(self, message: bytes) -> None:
        """See `TaskProcess.send`."""
        if not self.process.alive:
            raise TaskProcessGone(self._pid)
        self._socket.to_task.put(message)

    def receive(self) -> Coroutine[Any, Any, bytes | None]:
        """See `TaskProcess.receive`."""
        return self._socket.to_worker.get()

    def interrupt(self) -> None:
        """See `TaskProcess.interrupt`."""
        loop = self.process.loop
        loop.call_soon(self._interrupted, context=self.process.context)

    def kill(self) -> None:
        """See `TaskProcess.kill`."""
        self.process.end()

    async def wait(self) -> ExitStatus:
        """See `TaskProcess.wait`."""
        if self.process.alive:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()
        return self._status or ExitStatus(None, None)

    def _interrupted(self) -> None:
        if self._socket.on_interrupt is not None:
            self._socket.on_interrupt()
        else:
            self._end(ExitStatus(None, signal.SIGINT))

    async def _run(self, entry: ModelledEntry, argv: list[str]) -> None:
        try:
            status = ExitStatus(await entry(self._socket, argv), None)
        except DiedBySignal as death:
            status = ExitStatus(None, death.number)
        except Exception as error:  # noqa: BLE001  whatever a program raises ends its process alone
            self._world.trace.note(self.process.name, "traceback", repr(error))
            status = ExitStatus(1, None)
        self._end(status)

    def _end(self, status: ExitStatus) -> None:
        self._status = status
        self.process.end()

    def _on_end(self) -> None:
        if self._status is None:
            self._status = ExitStatus(None, signal.SIGKILL)
        self._socket.to_worker.close()
        if self._ended is not None:
            self._ended.set()


class ModelledTaskProcessPool:
    """Task processes of one spec. See `TaskProcessPool`."""

    def __init__(
        self, world: World, parent: Process, spec: TaskProcessSpec, entry: ModelledEntry
    ) -> None:
        self._world = world
        self._parent = parent
        self._spec = spec
        self._entry = entry
        self._idle: deque[ModelledTaskProcess] = deque()
        self._processes: dict[int, ModelledTaskProcess] = {}
        self._closed = False
        parent.on_end(self._end_all)
        self._add_spares()

    async def acquire(self) -> TaskProcess:
        """See `TaskProcessPool.acquire`."""
        while self._idle:
            process = self._idle.popleft()
            if process.process.alive:
                self._add_spares()
                return process
        self._check_open()
        await asyncio.sleep(self._world.task_model.settings.process_start_s)
        self._check_open()
        process = self._start()
        self._add_spares()
        return process

    def release(self, process: TaskProcess) -> None:
        """See `TaskProcessPool.release`."""
        assert isinstance(process, ModelledTaskProcess)
        if self._closed or not process.process.alive or len(self._idle) >= _IDLE_MAX:
            process.kill()
        else:
            self._idle.append(process)

    async def close(self) -> None:
        """See `TaskProcessPool.close`."""
        self._closed = True
        self._idle.clear()
        for process in list(self._processes.values()):
            process.kill()

    def _check_open(self) -> None:
        if self._closed:
            raise TaskProcessesUnavailable("the pool is closed")

    def _add_spares(self) -> None:
        """Spare processes are ready by the time that one is wanted."""
        while len(self._idle) < self._spec.spare and not self._closed:
            self._idle.append(self._start())

    def _start(self) -> ModelledTaskProcess:
        pid = self._world.task_model.next_pid()
        child = self._world.process(self._parent.host, f"{self._parent.name}/task-{pid}")
        process = ModelledTaskProcess(
            self._world, child, pid, self._parent.host.name, self._entry, list(self._spec.argv)
        )
        self._processes[pid] = process
        child.on_end(lambda: self._forget(pid))
        return process

    def _end_all(self) -> None:
        """With their TaskManager, the oldest first."""
        for process in list(self._processes.values()):
            process.process.end()

    def _forget(self, pid: int) -> None:
        self._processes.pop(pid, None)


class ModelledTaskProcesses:
    """The way to start task processes in a world. See `TaskProcesses`."""

    def __init__(
        self, world: World, process: Process, entries: Mapping[str, ModelledEntry] | None = None
    ) -> None:
        """`entries` are modelled programs beside the task itself, by the name in their spec."""
        self._world = world
        self._process = process
        self._entries: dict[str, ModelledEntry] = {
            TASK_ENTRY: lambda socket, _argv: run_modelled_tasks(world, socket),
            **(entries or {}),
        }

    async def open(self, spec: TaskProcessSpec) -> TaskProcessPool:
        """See `TaskProcesses.open`."""
        entry = self._entries.get(spec.entry)
        if entry is None:
            module = spec.entry.partition(":")[0]
            raise TaskProcessesUnavailable(f"No module named {module!r} is modelled")
        return ModelledTaskProcessPool(self._world, self._process, spec, entry)
