"""A cluster of processes on this machine: what `holdover cluster`, the demo and tests start.

Everything lives in one directory: `cluster.json` (which processes run, and the address that stays
the same over restarts), `logs/`, `storage/` (jobs and their events) and `tmp/` (partitions).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import holdover
from holdover.cli.local_processes import (
    ProcessIdentity,
    processes_with_environment,
    start_process,
)
from holdover.client import Client, LeaderLookup, LeaderObserver
from holdover.config import HIGH_AVAILABILITY_STORAGE_DIR, SHUFFLE_MODE, Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.errors import ClusterError, HoldoverError
from holdover.runtime import ExitStatus, Runtime
from holdover.runtime.real import real_runtime
from holdover.runtime.transport_security import credential_files

JOBMANAGER = "jobmanager"
# Modules that are run as processes.
_JOBMANAGER_MODULE = "jobmanager"
_TASKMANAGER_MODULE = "taskmanager"
_SHUFFLE_SERVICE_MODULE = "shuffle"
#: Marks the processes of a cluster and all that descend from them; the value is its directory.
#: The underscore keeps it apart from the variables that set options.
_MARK = "_HOLDOVER_LOCAL_CLUSTER"
_RECORD_VERSION = 1
_HOST = "127.0.0.1"
# Below the ports that systems give to outgoing connections: one of those could take the
# JobManager's port while it is down, and a TaskManager that looks for it could even meet itself.
_PORTS = range(20_000, 32_000)
_PORT_ATTEMPTS_MAX = 100
_POLL_INTERVAL_S = 0.05
_LOG_TAIL_LINES = 15


class LocalClusterError(HoldoverError):
    """The local cluster cannot be started or stopped; the message says why and what to do."""


class DirectoryNotEmpty(LocalClusterError):
    """A cluster that is to start from nothing was given a directory that holds something."""


class LocalCluster:
    """One JobManager, some TaskManagers and perhaps shuffle services as processes, under one
    directory.

    The processes outlive this object, which can be made anew for the same directory. As an async
    context manager it starts the cluster and stops it at the end.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        taskmanagers: int = 3,
        slots: int = 2,
        shuffle_services: int = 0,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            directory: of the cluster; made when missing.
            taskmanagers: their number; they are named `tm-0`, `tm-1`, ...
            slots: of each TaskManager.
            shuffle_services: their number; they are named `ss-0`, `ss-1`, ... Where there are any,
                `shuffle.mode` is external unless the options say otherwise.
            options: of all processes, as after `-D`; those of the last start when None. They may
                move storage and partitions out of `directory`; each TaskManager still has a place
                of its own.
            environment: of the processes; this one's when None.
            runtime: for the connections to the cluster; this machine when None.
        """
        self.directory = Path(directory).absolute()
        self.taskmanagers = taskmanagers
        self.slots = slots
        self.shuffle_services = shuffle_services
        self.options: dict[str, str] = {}
        self._environment = dict(os.environ if environment is None else environment)
        self._processes: dict[str, ProcessIdentity] = {}
        # Those whose unexpected end is an error while we wait for the cluster.
        self._expected: list[str] = []
        self._address = ""
        self._read_record()
        if options is not None:
            self.options = dict(options)
        if shuffle_services:
            self.options.setdefault(SHUFFLE_MODE.key, "external")
        self._runtime = runtime or _runtime_with(self.options)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        """`host:port` of the JobManager; the same over its restarts. Empty before the first."""
        return self._address

    @property
    def storage(self) -> str:
        """Path or URL where jobs and their events are kept (`high-availability.storageDir`)."""
        return self.options.get("high-availability.storageDir", str(self.directory / "storage"))

    @property
    def storage_directory(self) -> Path:
        """`storage`, where that is on this machine."""
        return Path(self.storage)

    def taskmanager_name(self, index: int) -> str:
        """Resource id of a TaskManager, and the name of its log."""
        return f"tm-{index}"

    def shuffle_service_name(self, index: int) -> str:
        """Resource id of a shuffle service, and the name of its log."""
        return f"ss-{index}"

    def log_path(self, name: str = JOBMANAGER) -> Path:
        """The log of `jobmanager`, `tm-0`, ...; it goes on over restarts."""
        return self.directory / "logs" / f"{name}.log"

    def log_text(self, name: str = JOBMANAGER) -> str:
        """What the process has logged so far."""
        path = self.log_path(name)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def log_tail(self, name: str = JOBMANAGER) -> str:
        """The last lines of it."""
        return "\n".join(self.log_text(name).splitlines()[-_LOG_TAIL_LINES:])

    def processes(self) -> dict[str, int]:
        """Pids of the recorded processes that live, by name."""
        return {name: p.pid for name, p in self._processes.items() if p.is_alive()}

    def all_processes(self) -> list[int]:
        """Pids of all that live, those that only descend from a recorded one among them."""
        found = processes_with_environment(_MARK, str(self.directory))
        return [process.pid for process in found]

    def recorded(self) -> list[str]:
        """Names of the processes that were started and not stopped; some may have died since."""
        return list(self._processes)

    @property
    def runtime(self) -> Runtime:
        """The world with what it takes to speak to the cluster."""
        return self._runtime

    def client(self, observer: LeaderObserver | None = None) -> Client:
        """A client that finds the leader by its record."""
        return Client(
            self._address or (),
            Configuration.of(
                {k: v for k, v in self.options.items() if k.startswith(("client.", "rpc."))}
            ),
            self._runtime,
            leader_lookup=self.leader_lookup(),
            observer=observer,
        )

    def leader_lookup(self) -> LeaderLookup:
        """Finds the leader by its record, for a client of one's own making."""
        own = {k: v for k, v in self.options.items() if k.startswith("high-availability.")}
        storage = {HIGH_AVAILABILITY_STORAGE_DIR.key: self.storage}
        return leader_lookup(self._runtime, Configuration.of({**own, **storage}))

    async def start(self, timeout_s: float = 60.0) -> None:
        """Start all processes and wait until the leader is ready and all others are registered.

        Raises LocalClusterError, with the end of the log, when one of them ends or time is up;
        everything is stopped again then.
        """
        living = self.processes()
        if living:
            names = ", ".join(f"{name} (pid {pid})" for name, pid in living.items())
            raise LocalClusterError(
                f"a cluster runs already in {self.directory}: {names};"
                " stop it first (holdover cluster stop), or choose another --directory"
            )
        try:
            self.start_jobmanager()
            for index in range(self.taskmanagers):
                self.start_taskmanager(index)
            for index in range(self.shuffle_services):
                self.start_shuffle_service(index)
            await self.wait_until_ready(self.taskmanagers, timeout_s, self.shuffle_services)
        except BaseException:
            await self.stop()
            raise

    def start_jobmanager(self) -> int:
        """Start the JobManager, at the address it had before, and return its pid at once."""
        if not self._address:
            host = self.options.get("jobmanager.rpc.address", _HOST)
            self._address = f"{host}:{self.options.get('jobmanager.rpc.port') or _free_port()}"
        return self._start_process(JOBMANAGER, _JOBMANAGER_MODULE, {})

    def start_standby(self, index: int) -> int:
        """Start one more JobManager, `jobmanager-<index>`, at any port, and return its pid at once.

        Whoever of all JobManagers gets the leadership leads; the others wait for it. TaskManagers
        and clients find the leader by its record.
        """
        return self._start_process(f"{JOBMANAGER}-{index}", _JOBMANAGER_MODULE, {}, port="0")

    def start_taskmanager(self, index: int) -> int:
        """Start a TaskManager, under the name it had before, and return its pid at once."""
        name = self.taskmanager_name(index)
        own = {
            "taskmanager.numberOfTaskSlots": str(self.slots),
            "taskmanager.resource-id": name,
            "io.tmp.dirs": self._place(name),
        }
        return self._start_process(name, _TASKMANAGER_MODULE, own)

    def start_shuffle_service(self, index: int, options: Mapping[str, str] | None = None) -> int:
        """Start a shuffle service, under the name it had before, and return its pid at once.

        `options` are its own, before those of the cluster.
        """
        name = self.shuffle_service_name(index)
        own = {"shuffle.service.resource-id": name, "io.tmp.dirs": self._place(name)}
        return self._start_process(name, _SHUFFLE_SERVICE_MODULE, {**own, **(options or {})})

    async def kill_jobmanager(self, signal_number: int = signal.SIGKILL) -> ExitStatus | None:
        """Send the JobManager a signal that ends it, and wait until it has ended."""
        return await self._kill(JOBMANAGER, signal_number)

    async def kill_taskmanager(
        self, index: int, signal_number: int = signal.SIGKILL
    ) -> ExitStatus | None:
        """Send a TaskManager a signal that ends it, and wait until it has ended."""
        return await self._kill(self.taskmanager_name(index), signal_number)

    async def kill_shuffle_service(
        self, index: int, signal_number: int = signal.SIGKILL
    ) -> ExitStatus | None:
        """Send a shuffle service a signal that ends it, and wait until it has ended."""
        return await self._kill(self.shuffle_service_name(index), signal_number)

    def send_signal(self, name: str, signal_number: int) -> bool:
        """Send any signal, such as SIGSTOP; False when the process is gone."""
        return name in self._processes and self._processes[name].send(signal_number)

    async def wait_for_end(self, name: str, timeout_s: float) -> ExitStatus | None:
        """Wait until a process has ended, however it came to that. Raises TimeoutError.

        None when somebody else has collected its status, or it never ran.
        """
        process = self._processes.get(name)
        return None if process is None else await process.wait(timeout_s)

    async def wait_until_ready(
        self, taskmanagers: int, timeout_s: float = 60.0, shuffle_services: int = 0
    ) -> None:
        """Wait until the leader is ready and so many TaskManagers and shuffle services registered.

        Raises LocalClusterError when time is up, or as soon as a process that was started by this
        object has ended by itself.
        """
        waiter = asyncio.create_task(self._until_ready(taskmanagers, shuffle_services))
        guards = {
            asyncio.create_task(self._processes[name].wait(2 * timeout_s)): name
            for name in self._expected
        }
        try:
            done, _ = await asyncio.wait(
                [waiter, *guards], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            for guard, name in guards.items():
                if guard in done and not waiter.done():
                    status = guard.result() if guard.exception() is None else None
                    ended = status.text if status is not None else "has ended"
                    raise self._failed(name, f"{name} {ended} while the cluster started")
            if not waiter.done():
                raise self._failed(JOBMANAGER, f"the cluster was not ready after {timeout_s:g} s")
            waiter.result()
        finally:
            await _cancel(waiter, *guards)

    async def stop(self, timeout_s: float = 10.0) -> None:
        """End all processes of the cluster, also those that only descend from one.

        JobManagers go first, so that they do not take the others' end for a loss. Each gets
        SIGTERM and `timeout_s`, then SIGKILL. Nothing to stop is fine.
        """
        jobmanagers = [name for name in self._processes if name.startswith(JOBMANAGER)]
        workers = [name for name in self._processes if name not in jobmanagers]
        for names in (jobmanagers, workers):
            ending = [self._processes[name] for name in names]
            await _end(ending, signal.SIGTERM, timeout_s)
            await _end(ending, signal.SIGKILL, timeout_s)
        # Task processes end with their TaskManager; whatever remains is found by its mark.
        deadline_s = time.monotonic() + timeout_s
        while left := processes_with_environment(_MARK, str(self.directory)):
            if time.monotonic() > deadline_s:
                pids = ", ".join(str(process.pid) for process in left)
                raise LocalClusterError(f"processes {pids} of {self.directory} do not end")
            await _end(left, signal.SIGKILL, timeout_s)
        self._processes.clear()
        self._expected.clear()
        if self.directory.exists():
            self._write_record()

    def _start_process(
        self, name: str, module: str, own: Mapping[str, str], port: str | None = None
    ) -> int:
        recorded = self._processes.get(name)
        if recorded is not None and recorded.is_alive():
            raise LocalClusterError(f"{name} runs already (pid {recorded.pid})")
        self.log_path(name).parent.mkdir(parents=True, exist_ok=True)
        host, _, own_port = self._address.rpartition(":")
        options = {
            **self.options,
            "high-availability.storageDir": self.storage,
            **own,
            "jobmanager.rpc.address": host,
            "jobmanager.rpc.port": port or own_port,
        }
        arguments = [sys.executable, "-P", "-m", module]
        for key, value in options.items():
            arguments += ["-D", f"{key}={value}"]
        process = start_process(arguments, self._process_environment(), self.log_path(name))
        self._processes[name] = process
        self._expected = [*(n for n in self._expected if n != name), name]
        self._write_record()
        return process.pid

    def _process_environment(self) -> dict[str, str]:
        """This environment, with the mark, and a module path that holds in any directory."""
        inherited = [p for p in self._environment.get("PYTHONPATH", "").split(os.pathsep) if p]
        packages = str(Path(holdover.__file__).resolve().parents[1])
        paths = [packages, *(os.path.abspath(path) for path in inherited)]
        return {
            **self._environment,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            _MARK: str(self.directory),
        }

    def _place(self, name: str) -> str:
        """Where a worker keeps its partitions."""
        return str(Path(self.options.get("io.tmp.dirs", self.directory / "tmp")) / name)

    async def _kill(self, name: str, signal_number: int) -> ExitStatus | None:
        process = self._processes.get(name)
        self._expected = [expected for expected in self._expected if expected != name]
        if process is None or not process.send(signal_number):
            return None
        return await process.wait(timeout_s=30.0)

    async def _until_ready(self, taskmanagers: int, shuffle_services: int) -> None:
        async with self.client() as client:
            while True:
                try:
                    cluster = await client.cluster()
                except ClusterError:
                    continue  # it starts; how long that may take is the caller's affair
                served = cluster.shuffle_services >= shuffle_services
                if cluster.ready and cluster.taskmanagers >= taskmanagers and served:
                    return
                await asyncio.sleep(_POLL_INTERVAL_S)

    def _failed(self, name: str, what: str) -> LocalClusterError:
        return LocalClusterError(
            f"{what}; the end of {self.log_path(name)}:\n{self.log_tail(name)}"
        )

    @property
    def _record_path(self) -> Path:
        return self.directory / "cluster.json"

    def _read_record(self) -> None:
        if not self._record_path.exists():
            return
        try:
            record: dict[str, Any] = json.loads(self._record_path.read_text(encoding="utf-8"))
            self._address = record["address"]
            self.options = record["options"]
            self._processes = {
                p["name"]: ProcessIdentity(p["pid"], p["start_ticks"], p["boot_id"])
                for p in record["processes"]
            }
        except (ValueError, KeyError, TypeError) as error:
            raise LocalClusterError(
                f"{self._record_path} cannot be read ({error}): remove it when no cluster runs"
                f" in {self.directory}"
            ) from error

    def _write_record(self) -> None:
        record = {
            "version": _RECORD_VERSION,
            "address": self._address,
            "options": self.options,
            "processes": [
                {"name": name, **dataclasses.asdict(process)}
                for name, process in self._processes.items()
            ],
        }
        new = self._record_path.with_suffix(".json.new")
        new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        new.replace(self._record_path)


def _runtime_with(options: Mapping[str, str]) -> Runtime:
    """This machine, as far as a process with these options is let into the cluster."""
    secured = {key: text for key, text in options.items() if key.startswith("security.")}
    return real_runtime(credentials=credential_files(Configuration.of(secured)))


def leader_lookup(runtime: Runtime, configuration: Configuration) -> LeaderLookup:
    """Finds the leader by its record, where the options say that it keeps one."""
    retrieval = configured_leader_service(runtime, configuration).retrieval()

    async def lookup() -> str | None:
        try:
            record = await retrieval.current()
        except OSError:
            return None  # unreadable just now; the known addresses are tried anyway
        return record.address if record is not None else None

    return lookup


def _free_port() -> int:
    for _ in range(_PORT_ATTEMPTS_MAX):
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return port
    raise LocalClusterError(
        f"no free port found from {_PORTS.start} to {_PORTS.stop - 1}: give one with"
        " -D jobmanager.rpc.port=..."
    )


async def _end(processes: list[ProcessIdentity], signal_number: int, timeout_s: float) -> None:
    """Send a signal to each and wait; one that does not end in time is the caller's next step."""
    signalled = [process for process in processes if process.send(signal_number)]
    await asyncio.gather(
        *(process.wait(timeout_s) for process in signalled), return_exceptions=True
    )


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
