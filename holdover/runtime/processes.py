"""Task processes: where user code runs, and dies alone."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

# The largest message between a worker and one of its task processes.
TASK_MESSAGE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskProcessSpec:
    """How a pool's task processes are made.

    `entry` is `"module:function"`, called in each new process as `function(socket, argv)` with a
    `TaskSocket` and a list of strings; what it returns (an int, or None for 0) is the exit code.
    `preload` names modules that are imported once, before the first process is made, so that
    processes start in milliseconds; none of them may import grpc or leave a thread running.
    `log_path` gets standard output and error of all processes, appended. `spare` processes are
    kept ready; `nice` is added to their niceness, so that heartbeats go first (case P55).
    """

    entry: str
    log_path: str
    preload: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    nice: int = 5
    spare: int = 0


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: by itself with `code`, or by `signal`, or (both None) unknown."""

    code: int | None
    signal: int | None

    @property
    def text(self) -> str:
        """For people: "exited with code 3", "died by signal 9 (SIGKILL)"."""
        if self.signal is not None:
            try:
                name = signals.Signals(self.signal).name
            except ValueError:  # real-time signals have no name
                return f"died by signal {self.signal}"
            return f"died by signal {self.signal} ({name})"
        if self.code is not None:
            return f"exited with code {self.code}"
        return "was lost together with the process that starts task processes"


class TaskProcess(Protocol):
    """One process, spoken to in whole messages."""

    @property
    def pid(self) -> int:
        """The operating system's number for it."""
        ...

    async def send(self, message: bytes) -> None:
        """Send one message of at most `TASK_MESSAGE_BYTES_MAX`.

        Raises `TaskProcessGone` when the process has ended.
        """
        ...

    async def receive(self) -> bytes | None:
        """The next message, or None when the process is gone and all it sent has been received.

        May be cancelled without losing a message. One caller at a time.
        """
        ...

    def interrupt(self) -> None:
        """Ask it to stop what it does (SIGINT, a KeyboardInterrupt in Python). No-op when gone.

        It may arrive just after the work has ended, so the entry must expect it at any moment.
        """
        ...

    def kill(self) -> None:
        """End it and the processes it started, at once (SIGKILL). No-op when gone."""
        ...

    async def wait(self) -> ExitStatus:
        """Wait for its end. Any number of callers, before or after."""
        ...


class TaskProcessPool(Protocol):
    """Task processes of one spec, reused."""

    async def acquire(self) -> TaskProcess:
        """An idle process, or a new one. Raises `TaskProcessesUnavailable`."""
        ...

    def release(self, process: TaskProcess) -> None:
        """Give back a healthy process that waits for its next message; a dead one is forgotten.

        A process in doubt is killed instead of released.
        """
        ...

    async def close(self) -> None:
        """Kill all processes and wait until they are gone."""
        ...


class TaskProcesses(Protocol):
    """The way to start task processes."""

    async def open(self, spec: TaskProcessSpec) -> TaskProcessPool:
        """Prepare to make processes of this spec.

        Raises `TaskProcessesUnavailable` with the reason, e.g. a preload that cannot be imported.
        """
        ...
