"""The process that makes task processes, by forking itself after all imports are done.

A worker starts it once by exec (`python -m holdover.runtime.zygote`), because a process that uses
gRPC must not be forked (case P52). It imports what tasks need, stays single-threaded, and then
makes a ready task process in milliseconds. It never outlives its worker, and no task process
outlives it:

- its control socket ends when the worker dies, however that happens; it then kills all its children
  with the processes they started, and exits;
- as a second belt the kernel signals it at the worker's death, and kills the children at its own.

The conversation on the control socket: the worker sends `COMMAND` records (`START` carries the
child's end of a message socket), the zygote sends lines of JSON: `{"ready": true}` or
`{"failed": reason}` once, then `{"started": id, "pid": pid}` or `{"refused": id, "reason": text}`,
and `{"exited": id, "status": waitpid status}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from holdover.runtime.task_socket import TaskSocket

# Operation, process id as chosen by the worker, signal number (SIGNAL only).
COMMAND: Final = struct.Struct(">BII")
START: Final = 1
SIGNAL: Final = 2

_PR_SET_PDEATHSIG: Final = 1
_EXIT_CODE_EXCEPTION: Final = 1
_EXIT_CODE_INTERRUPTED: Final = 128 + signal.SIGINT
# Of -1000 (never) to 1000 (first): before any service, after what asked for it even more.
_OOM_SCORE_ADJUSTMENT: Final = 500

Entry = Callable[[TaskSocket, list[str]], int | None]


@dataclass(frozen=True, slots=True)
class ZygoteSpec:
    """What the zygote is told on its command line; see `TaskProcessSpec` for the meanings."""

    entry: str
    preload: tuple[str, ...]
    argv: tuple[str, ...]
    log_path: str
    nice: int
    control_descriptor: int
    worker_pid: int

    def to_json(self) -> str:
        """One command line argument."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def from_json(text: str) -> ZygoteSpec:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        for name in ("preload", "argv"):
            fields[name] = tuple(fields[name])
        return ZygoteSpec(**fields)


class NotForkable(RuntimeError):
    """After the imports this process may not be forked."""


def main() -> int:
    """Run a zygote until its worker is gone."""
    spec = ZygoteSpec.from_json(sys.argv[1])
    control = socket.socket(fileno=spec.control_descriptor)
    control.set_inheritable(False)
    # SIGTERM at the worker's death, not SIGKILL: the children's own processes must be killed too.
    die_with_parent(signal.SIGTERM, spec.worker_pid)
    try:
        _redirect_output(spec.log_path)
        entry = load_entry(spec.entry, spec.preload)
        check_forkable()
    except Exception as error:  # noqa: BLE001  an import can raise anything; the worker is told
        traceback.print_exc()
        _report(control, {"failed": f"{type(error).__name__}: {error}"})
        return 1
    gc.collect()
    gc.freeze()  # shared pages stay shared: the children's collections do not touch these objects
    zygote = Zygote(spec, control, entry)
    _report(control, {"ready": True})
    zygote.serve()
    return 0


def load_entry(entry: str, preload: tuple[str, ...]) -> Entry:
    """Import the preloads and the entry's module; return the entry function."""
    for module in preload:
        importlib.import_module(module)
    module, separator, function = entry.partition(":")
    if not separator:
        raise ValueError(f"task process entry must be 'module:function', not {entry!r}")
    loaded: Entry = getattr(importlib.import_module(module), function)
    return loaded


def check_forkable() -> None:
    """Raise `NotForkable` when gRPC is loaded or another thread runs (case P52)."""
    if "grpc" in sys.modules:
        raise NotForkable(
            "the task process's entry or preload imports grpc; import it nowhere on that path"
        )
    directory = "/proc/self/task"
    if not os.path.isdir(directory):
        return
    threads = sorted(int(thread) for thread in os.listdir(directory))
    if len(threads) > 1:
        names = [_thread_name(directory, thread) for thread in threads if thread != os.getpid()]
        raise NotForkable(
            f"the task process's entry or preload starts threads: {', '.join(names)};"
            " turn them off by the environment of the task process spec"
        )


def die_with_parent(signal_number: int, parent_pid: int) -> None:
    """Have the kernel send the signal when the parent dies; exit when it already has."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(_EXIT_CODE_EXCEPTION)


class Zygote:
    """Serves one control socket from one thread."""

    def __init__(self, spec: ZygoteSpec, control: socket.socket, entry: Entry) -> None:
        self._spec = spec
        self._control = control
        self._entry = entry
        self._pid_by_id: dict[int, int] = {}
        self._command = bytearray()
        self._descriptors: list[int] = []
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._terminated = False

    def serve(self) -> None:
        """Make, signal and reap children until the worker is gone; then kill them all."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the wakeup is written
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            try:
                while not self._terminated:
                    ready = [key.fileobj for key, _ in selector.select()]
                    if self._woken in ready:
                        self._drain_wakeups()
                        self._reap()
                    if self._control in ready and not self._read_command():
                        break
            except (BrokenPipeError, ConnectionResetError):
                pass  # the worker went away while it was being told something
            finally:
                self._kill_all()

    def _on_terminate(self, *_: object) -> None:
        self._terminated = True

    def _drain_wakeups(self) -> None:
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            return

    def _read_command(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(
            self._control, COMMAND.size - len(self._command), 1
        )
        if not data:
            return False
        self._command += data
        self._descriptors += descriptors
        if len(self._command) == COMMAND.size:
            operation, process_id, value = COMMAND.unpack(self._command)
            self._command.clear()
            descriptors, self._descriptors = self._descriptors, []
            if operation == START:
                self._start(process_id, descriptors)
            elif operation == SIGNAL:
                self._signal(process_id, value)
            else:
                raise ValueError(f"unknown operation {operation} on the control socket")
        return True

    def _start(self, process_id: int, descriptors: list[int]) -> None:
        if len(descriptors) != 1:
            self._report({"refused": process_id, "reason": "no message socket came with it"})
            return
        zygote_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(descriptors[0])
            self._report({"refused": process_id, "reason": f"fork: {error.strerror}"})
            return
        if pid == 0:
            _run_child(self._spec, self._entry, descriptors[0], zygote_pid)
        os.close(descriptors[0])
        os.setpgid(pid, pid)  # the child does the same: whoever is first
        self._pid_by_id[process_id] = pid
        self._report({"started": process_id, "pid": pid})

    def _signal(self, process_id: int, signal_number: int) -> None:
        pid = self._pid_by_id.get(process_id)
        if pid is None:
            return  # reaped: the number may belong to somebody else by now
        if signal_number == signal.SIGKILL:
            _kill_group(pid)
        else:
            os.kill(pid, signal_number)

    def _reap(self) -> None:
        for process_id, pid in list(self._pid_by_id.items()):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                status = self._bury(process_id, pid)
                self._report({"exited": process_id, "status": status})

    def _bury(self, process_id: int, pid: int) -> int:
        # Not reaped yet, so the group's number is still its own: what the task started goes too.
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        del self._pid_by_id[process_id]
        return status

    def _kill_all(self) -> None:
        for pid in self._pid_by_id.values():
            _kill_group(pid)
        for process_id, pid in list(self._pid_by_id.items()):
            status = self._bury(process_id, pid)
            with contextlib.suppress(OSError):  # the worker may be dead, or only closing
                self._report({"exited": process_id, "status": status})

    def _report(self, message: dict[str, object]) -> None:
        _report(self._control, message)


def _report(control: socket.socket, message: dict[str, object]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def _kill_group(pid: int) -> None:
    """Kill an unreaped child and the processes it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has moved itself to another group
        os.kill(pid, signal.SIGKILL)


def _redirect_output(log_path: str) -> None:
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)  # what was printed is in the log even after a kill


def _thread_name(directory: str, thread: int) -> str:
    try:
        with open(f"{directory}/{thread}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return f"thread {thread}, ended meanwhile"


def _run_child(spec: ZygoteSpec, entry: Entry, descriptor: int, zygote_pid: int) -> NoReturn:
    """The child, from fork to exit. Never returns into the zygote's code."""
    code = _EXIT_CODE_EXCEPTION
    try:
        _become_task_process(spec.nice, descriptor, zygote_pid)
        connection = socket.socket(fileno=descriptor)
        code = entry(TaskSocket(connection), list(spec.argv)) or 0
    except SystemExit as request:
        code = _system_exit_code(request)
    except KeyboardInterrupt:
        code = _EXIT_CODE_INTERRUPTED
    except BaseException:  # noqa: BLE001  nothing may unwind into the zygote's frames
        traceback.print_exc()
    finally:
        _flush_output()
        # Not sys.exit: the exit handlers in memory are the zygote's.
        os._exit(code & 0xFF)


def _prefer_for_the_oom_killer() -> None:
    """When memory runs out the kernel ends a task, which fails alone, and not its TaskManager."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as adjustment:
            adjustment.write(str(_OOM_SCORE_ADJUSTMENT))
    except OSError as error:
        # A kernel or sandbox without it: the task runs all the same.
        sys.stderr.write(f"cannot set oom_score_adj: {error}\n")


def _become_task_process(nice: int, descriptor: int, zygote_pid: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    die_with_parent(signal.SIGKILL, zygote_pid)
    _close_descriptors_except({0, 1, 2, descriptor})
    os.set_inheritable(descriptor, False)
    if nice:
        os.nice(nice)
    _prefer_for_the_oom_killer()


def _close_descriptors_except(kept: set[int]) -> None:
    directory = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    for name in os.listdir(directory):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # the listing's own descriptor, which is closed by now


def _system_exit_code(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code
    sys.stderr.write(f"{request.code}\n")
    return _EXIT_CODE_EXCEPTION


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # closed by user code, or the disk is full: nobody is left to be told


if __name__ == "__main__":
    sys.exit(main())
