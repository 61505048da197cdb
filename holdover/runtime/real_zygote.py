"""The worker's side of a zygote: start it, ask it for processes, hear how they end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections import deque

from holdover.runtime.errors import TaskProcessesUnavailable, TaskProcessGone
from holdover.runtime.frames import FrameProtocol
from holdover.runtime.log import Log
from holdover.runtime.processes import ExitStatus, TaskProcessSpec
from holdover.runtime.zygote import COMMAND, SIGNAL, START, ZygoteSpec

# Importing pyarrow and duckdb from a cold disk takes seconds.
_READY_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 5.0
# A dead process's last messages are in the socket already; this only waits for the loop's turn.
_QUIET_S = 1.0
_COMMANDS_PENDING_MAX = 10_000

# Thread pools that libraries would start at import, which a process to be forked must not have; a
# task owns one core anyway.
_SINGLE_THREADED = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

_log = Log(__name__)


class ForkedTaskProcess:
    """A process that a zygote forked."""

    def __init__(self, process_id: int, zygote: RunningZygote, frames: FrameProtocol) -> None:
        self._process_id = process_id
        self._zygote = zygote
        self._frames = frames
        self._pid = 0
        self._exit: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """See `TaskProcess.pid`."""
        return self._pid

    @property
    def is_alive(self) -> bool:
        """Whether, as far as is known, it can be given work."""
        return not self._exit.done() and not self._frames.ended

    async def send(self, message: bytes) -> None:
        """See `TaskProcess.send`."""
        if self._exit.done() or not await self._frames.send(message):
            raise TaskProcessGone(self._pid)

    async def receive(self) -> bytes | None:
        """See `TaskProcess.receive`."""
        message = await self._frames.receive()
        if message is None:
            self.kill()  # it may live on without its socket, which is no use to anybody
        return message

    def interrupt(self) -> None:
        """See `TaskProcess.interrupt`."""
        if not self._exit.done():
            self._zygote.signal(self._process_id, signal.SIGINT)

    def kill(self) -> None:
        """See `TaskProcess.kill`."""
        if not self._exit.done():
            self._zygote.signal(self._process_id, signal.SIGKILL)

    async def wait(self) -> ExitStatus:
        """See `TaskProcess.wait`."""
        return await asyncio.shield(self._exit)

    def on_started(self, pid: int) -> None:
        """The zygote has made it."""
        self._pid = pid

    def on_exited(self, status: ExitStatus) -> None:
        """The zygote has reaped it, or is gone."""
        if not self._exit.done():
            self._exit.set_result(status)

    async def drain(self) -> None:
        """After its end: let what it sent arrive, then end the message socket."""
        try:
            await self._frames.end_when_quiet(_QUIET_S)
        finally:
            self._frames.close()

    def close(self) -> None:
        """Drop its message socket at once."""
        self._frames.close()


class RunningZygote:
    """One zygote process, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._pending: deque[tuple[bytes, socket.socket | None]] = deque()
        self._next_id = 0
        self._processes: dict[int, ForkedTaskProcess] = {}
        self._starting: dict[int, asyncio.Future[None]] = {}
        self._drains: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._reader_task: asyncio.Task[None] | None = None

    @classmethod
    async def launch(cls, spec: TaskProcessSpec) -> RunningZygote:
        """Start one and wait until it can make processes. Raises `TaskProcessesUnavailable`."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        zygote_spec = ZygoteSpec(
            entry=spec.entry,
            preload=spec.preload,
            argv=spec.argv,
            log_path=spec.log_path,
            nice=spec.nice,
            control_descriptor=theirs.fileno(),
            worker_pid=os.getpid(),
        )
        # -P: the working directory is not a place to import from.
        command = [sys.executable, "-P", "-m", "holdover.runtime.zygote", zygote_spec.to_json()]
        import_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at a terminal is the worker's to handle
                cwd=spec.cwd,
                env={**os.environ, **_SINGLE_THREADED, "PYTHONPATH": import_path, **spec.env},
            )
        except OSError as error:
            ours.close()
            raise TaskProcessesUnavailable(str(error)) from error
        finally:
            theirs.close()
        zygote = cls(process, ours)
        try:
            await zygote._await_ready(spec.log_path)
        except BaseException:
            await zygote.close()
            raise
        return zygote

    @property
    def ended(self) -> asyncio.Event:
        """Set when the zygote is gone, and all its processes with it."""
        return self._ended

    async def start_process(self) -> ForkedTaskProcess:
        """Make a task process. Raises `TaskProcessesUnavailable`."""
        if self._ended.is_set():
            raise TaskProcessesUnavailable("the process that makes them has ended")
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        _, frames = await loop.create_connection(FrameProtocol, sock=ours)
        self._next_id += 1
        process_id = self._next_id
        process = ForkedTaskProcess(process_id, self, frames)
        started = loop.create_future()
        self._processes[process_id] = process
        self._starting[process_id] = started
        self._command(COMMAND.pack(START, process_id, 0), theirs)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await started
        except BaseException as error:
            self._starting.pop(process_id, None)
            process.kill()
            process.close()
            if isinstance(error, TimeoutError):
                reason = f"no answer within {_START_TIMEOUT_S:.0f} s"
                raise TaskProcessesUnavailable(reason) from error
            raise
        return process

    def signal(self, process_id: int, signal_number: int) -> None:
        """Send a signal to a process unless it has been reaped."""
        if not self._ended.is_set():
            self._command(COMMAND.pack(SIGNAL, process_id, signal_number), None)

    async def close(self) -> None:
        """End the zygote, which kills its processes first, and wait for it."""
        self._control_gone()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()  # its children follow by the kernel's hand
            await self._process.wait()
        if self._reader_task is not None:
            await asyncio.wait([self._reader_task])
        self._end()
        drains = list(self._drains)
        for drain in drains:
            drain.cancel()
        if drains:
            await asyncio.wait(drains)
        self._control.close()

    async def _await_ready(self, log_path: str) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._control.dup())
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                line = await reader.readline()
        except TimeoutError as error:
            writer.close()
            raise TaskProcessesUnavailable(
                f"the imports took more than {_READY_TIMEOUT_S:.0f} s; see {log_path}"
            ) from error
        message = json.loads(line) if line else {"failed": "it ended before it was ready"}
        if "failed" in message:
            writer.close()
            raise TaskProcessesUnavailable(f"{message['failed']} (see {log_path})")
        self._reader_task = asyncio.create_task(self._read_reports(reader, writer))

    async def _read_reports(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while line := await reader.readline():
                self._on_report(json.loads(line))
        except ConnectionError as error:
            _log.warning("the task process maker's socket broke", error=error)
        finally:
            writer.close()
            self._end()

    def _on_report(self, message: dict[str, int | str]) -> None:
        if "started" in message:
            process_id = int(message["started"])
            self._processes[process_id].on_started(int(message["pid"]))
            started = self._starting.pop(process_id, None)
            if started is not None and not started.done():
                started.set_result(None)
        elif "refused" in message:
            process_id = int(message["refused"])
            self._exited(process_id, ExitStatus(None, None))
            started = self._starting.pop(process_id, None)
            if started is not None and not started.done():
                started.set_exception(TaskProcessesUnavailable(str(message["reason"])))
        else:
            code = os.waitstatus_to_exitcode(int(message["status"]))
            status = ExitStatus(code, None) if code >= 0 else ExitStatus(None, -code)
            self._exited(int(message["exited"]), status)

    def _exited(self, process_id: int, status: ExitStatus) -> None:
        process = self._processes.pop(process_id)
        process.on_exited(status)
        drain = asyncio.create_task(process.drain())
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)

    def _end(self) -> None:
        """The zygote is gone, and the kernel has killed its children."""
        self._ended.set()
        for process_id in list(self._processes):
            self._exited(process_id, ExitStatus(None, None))
        for started in self._starting.values():
            if not started.done():
                started.set_exception(
                    TaskProcessesUnavailable("the process that makes them has ended")
                )
        self._starting.clear()

    def _command(self, record: bytes, child_socket: socket.socket | None) -> None:
        """Send in order, without blocking; what the socket does not take now is sent later."""
        if len(self._pending) >= _COMMANDS_PENDING_MAX:
            raise TaskProcessesUnavailable(f"{len(self._pending)} commands wait for an answer")
        self._pending.append((record, child_socket))
        if len(self._pending) == 1:
            self._send_pending()

    def _send_pending(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                record, child_socket = self._pending[0]
                descriptors = [] if child_socket is None else [child_socket.fileno()]
                # A record of nine bytes is taken whole or not at all.
                socket.send_fds(self._control, [record], descriptors)
                self._pending.popleft()
                if child_socket is not None:
                    child_socket.close()
        except BlockingIOError:
            loop.add_writer(self._control.fileno(), self._send_pending)
            return
        except OSError as error:
            _log.warning("the task process maker is gone", error=error)
            self._control_gone()
            return
        loop.remove_writer(self._control.fileno())

    def _control_gone(self) -> None:
        asyncio.get_running_loop().remove_writer(self._control.fileno())
        for _, child_socket in self._pending:
            if child_socket is not None:
                child_socket.close()
        self._pending.clear()
        try:
            # Only this direction: how its processes end is still to be heard.
            self._control.shutdown(socket.SHUT_WR)
        except OSError as error:
            _log.debug("the task process maker's socket was closed before", error=error)
