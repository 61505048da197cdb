"""Processes that outlive the one that started them, found again without ever naming another.

A process is known by pid *and* start time, so that a pid which the system has given to somebody
else is not taken for ours. All signals go through a pidfd, which cannot be reused. Linux only.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdover.runtime import ExitStatus

_START_TICKS_FIELD = 22  # of /proc/<pid>/stat, counted from 1 (proc(5))


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this machine since its boot `boot_id`; `start_ticks` since that boot."""

    pid: int
    start_ticks: int
    boot_id: str

    def open(self) -> int | None:
        """A pidfd of the process; None when it has ended and been collected."""
        if self.boot_id != current_boot_id():
            return None
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # Between the two looks the pid cannot change hands without the second one noticing.
        if _start_ticks(self.pid) != self.start_ticks:
            os.close(pidfd)
            return None
        return pidfd

    def is_alive(self) -> bool:
        """Whether the process still runs; one that waits to be collected does not."""
        pidfd = self.open()
        if pidfd is None:
            return False
        try:
            return not _has_ended(pidfd)
        finally:
            os.close(pidfd)

    def send(self, signal_number: int) -> bool:
        """Send a signal; False when the process is gone."""
        pidfd = self.open()
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, signal_number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    async def wait(self, timeout_s: float) -> ExitStatus | None:
        """Wait for its end and collect it. Raises TimeoutError.

        The exit status is known to the process that started it only; None for others.
        """
        pidfd = self.open()
        if pidfd is None:
            return None
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
            return _collect(pidfd)
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)


def current_boot_id() -> str:
    """Changes with every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_process(
    arguments: Sequence[str], environment: Mapping[str, str], log_path: Path
) -> ProcessIdentity:
    """Start a process in a session of its own, so that Ctrl-C in the terminal does not reach it.

    Its output is appended to `log_path`.
    """
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        pid = os.posix_spawn(
            arguments[0],
            list(arguments),
            dict(environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(log)
    start_ticks = _start_ticks(pid)
    assert start_ticks is not None, "nobody else collects our children"
    return ProcessIdentity(pid, start_ticks, current_boot_id())


def processes_with_environment(name: str, value: str) -> list[ProcessIdentity]:
    """Living processes of this user that were started, or descend from one, with `name=value`."""
    mark = f"{name}={value}".encode()
    boot_id = current_boot_id()
    found: list[ProcessIdentity] = []
    for entry in sorted(Path("/proc").iterdir()):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or not ours
            start_ticks = _start_ticks(int(entry.name))
            if mark in (entry / "environ").read_bytes().split(b"\0") and start_ticks is not None:
                found.append(ProcessIdentity(int(entry.name), start_ticks, boot_id))
    return [process for process in found if process.is_alive()]


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold anything.
    fields_from_third = stat.rpartition(")")[2].split()
    return int(fields_from_third[_START_TICKS_FIELD - 3])


def _has_ended(pidfd: int) -> bool:
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _collect(pidfd: int) -> ExitStatus | None:
    """Collect an ended child; None when somebody else's child it is."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(code=result.si_status, signal=None)
    return ExitStatus(code=None, signal=result.si_status)
