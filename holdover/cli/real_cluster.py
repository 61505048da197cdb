"""The processes of a scenario on this machine: their lives, as the scenario wants them."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdover.cli.draining import ask_to_leave
from holdover.cli.local_cluster import JOBMANAGER, LocalCluster
from holdover.cli.real_record import Chronicle, LogFollower, LogLine
from holdover.client import Client
from holdover.config import HEARTBEAT_INTERVAL, SHUFFLE_MODE, Configuration
from holdover.coordination.rpc_call import CallFailed
from simulator.scenario import Scenario

#: Partitions are finished when they have their index, which is published last.
INDEX_SUFFIX = ".index"
DATA_SUFFIX = ".data"
#: What a JobManager logs when it is elected.
LEADS = "leadership won"
#: What a shuffle service logs when it can be asked.
SERVES = "shuffle service ready"
_LOG_LOOK_S = 0.02
_START_TIMEOUT_S = 60.0
#: A process that is told to end, or killed, must be gone by then.
_END_TIMEOUT_S = 10.0


class RealCluster:
    """Starts processes, sees them end, and starts them again when the scenario says so.

    JobManagers are named `jm-1`, `jm-2`, ..., TaskManagers `tm-1`, ..., shuffle services `ss-1`,
    ... as in the simulation.
    """

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        chronicle: Chronicle,
        on_line: Callable[[str, LogLine], None],
    ) -> None:
        """Nothing is started yet.

        Args:
            scenario: whose cluster it is.
            directory: for everything; made when missing.
            chronicle: is told of lives and log lines.
            on_line: called with each log line, soon after it was written.
        """
        spec = scenario.cluster
        self.scenario = scenario
        self.jobmanagers = [f"jm-{i}" for i in range(1, spec.jobmanagers + 1)]
        self.taskmanagers = [f"tm-{i}" for i in range(1, spec.taskmanagers + 1)]
        self.shuffle_services = [f"ss-{i}" for i in range(1, spec.shuffle_services + 1)]
        failover_s = math.ceil(scenario.duration_max_s) + 1
        self.local = LocalCluster(
            directory,
            taskmanagers=spec.taskmanagers,
            slots=spec.slots,
            shuffle_services=spec.shuffle_services,
            options={
                SHUFFLE_MODE.key: SHUFFLE_MODE.default,
                **scenario.options,
                "client.failover-timeout": f"{failover_s} s",
            },
        )
        self.heartbeat_interval_s = Configuration.of(scenario.options).get(HEARTBEAT_INTERVAL)
        #: Who was started again, and when (wall clock).
        self.restarts: list[tuple[str, float]] = []
        self._chronicle = chronicle
        self._on_line = on_line
        self._logs = {
            name: LogFollower(self.local.log_path(self._local_name(name)))
            for name in (*self.jobmanagers, *self.workers)
        }
        self._restart_s: dict[str, float] = {}
        self._paused: dict[str, None] = {}
        self._epochs: dict[str, int] = {}
        #: Where living shuffle services are asked (host:port).
        self._addresses: dict[str, str] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}

    @property
    def workers(self) -> list[str]:
        """TaskManagers, then shuffle services."""
        return [*self.taskmanagers, *self.shuffle_services]

    # ------------------------------------------------------------------ lives

    async def start(self) -> None:
        """Start everything, and wait until all are registered. Raises LocalClusterError."""
        for name in (*self.jobmanagers, *self.workers):
            self._start(name)
        await self.local.wait_until_ready(
            len(self.taskmanagers), _START_TIMEOUT_S, len(self.shuffle_services)
        )
        for name in self._logs:
            self._lives[name] = asyncio.create_task(self._live(name), name=f"life of {name}")

    async def stop(self) -> None:
        """End all processes, whatever state they are in."""
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        for name in list(self._paused):
            self.resume(name)
        await self.local.stop(_END_TIMEOUT_S)
        self._look_at_logs()

    def failures(self) -> list[BaseException]:
        """Why lives could not be watched or renewed, if that has happened."""
        ended = [life for life in self._lives.values() if life.done() and not life.cancelled()]
        return [error for life in ended if (error := life.exception()) is not None]

    def signal(self, name: str, number: int, restart_after_s: float | None = None) -> bool:
        """Send a process a signal that ends it; False when it does not run.

        `restart_after_s` is until it is started again, infinite for never, None for as the cluster
        says.
        """
        if restart_after_s is not None:
            self._restart_s[name] = restart_after_s
        return self.local.send_signal(self._local_name(name), number)

    def pause(self, name: str) -> bool:
        """Let nothing of a process run; False when there is none."""
        self._paused[name] = None
        return self.local.send_signal(self._local_name(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        self._paused.pop(name, None)
        self.local.send_signal(self._local_name(name), signal.SIGCONT)

    async def drain(self, name: str) -> bool:
        """Ask a shuffle service to leave; False when it does not serve, or does not answer."""
        address = self._addresses.get(name)
        if address is None:
            return False
        try:
            await ask_to_leave(self.local.runtime, address)
        except CallFailed:
            return False
        return True

    def _start(self, name: str) -> None:
        role, _, number = name.partition("-")
        index = int(number)
        wall_s = time.time()
        if role == "jm":
            if index == 1:
                self.local.start_jobmanager()
            else:
                self.local.start_standby(index - 1)
            return
        if role == "ss":
            self.local.start_shuffle_service(index)
            return
        self.local.start_taskmanager(index)
        rack, slots = f"rack-{self.scenario.cluster.rack_of(index)}", self.local.slots
        self._chronicle.note(
            wall_s,
            lambda recorder, at_s: recorder.worker_started(at_s, name, rack=rack, slots=slots),
        )

    async def _live(self, name: str) -> None:
        """See a process end, and begin the next life of it; for ever."""
        spec = self.scenario.cluster
        usual_s = {
            "jm": spec.jobmanager_restart_s,
            "tm": spec.taskmanager_restart_s,
            "ss": spec.shuffle_service_restart_s,
        }[name.partition("-")[0]]
        while True:
            try:
                await self.local.wait_for_end(self._local_name(name), _START_TIMEOUT_S)
            except TimeoutError:
                continue
            if name in self.jobmanagers:
                self._chronicle.note(
                    time.time(), lambda recorder, at_s: recorder.jobmanager_ended(at_s, name)
                )
            elif name in self.taskmanagers:
                self._chronicle.note(
                    time.time(), lambda recorder, at_s: recorder.worker_ended(at_s, name)
                )
            self._epochs.pop(name, None)
            self._addresses.pop(name, None)
            self._paused.pop(name, None)
            delay_s = self._restart_s.pop(name, usual_s)
            if math.isinf(delay_s):
                return
            await asyncio.sleep(delay_s)
            self._start(name)
            self.restarts.append((name, time.time()))

    def _local_name(self, name: str) -> str:
        role, _, number = name.partition("-")
        if role != "jm":
            return name
        return JOBMANAGER if number == "1" else f"{JOBMANAGER}-{int(number) - 1}"

    # ------------------------------------------------------------------ looking

    async def follow_logs(self) -> None:
        """Hand on new log lines, for ever."""
        while True:
            self._look_at_logs()
            await asyncio.sleep(_LOG_LOOK_S)

    def _look_at_logs(self) -> None:
        for name, log in self._logs.items():
            for line in log.new_lines():
                if line.event == LEADS:
                    self._epochs[name] = int(line.fields["epoch"])
                elif line.event == SERVES:
                    self._addresses[name] = line.fields["address"]
                self._chronicle.note_log_line(name, line)
                self._on_line(name, line)

    def leader(self) -> str | None:
        """The living JobManager that was elected last."""
        living = [name for name in self._epochs if self.is_alive(name)]
        return max(living, key=lambda name: self._epochs[name], default=None)

    def is_alive(self, name: str) -> bool:
        """Whether the process runs, or is paused."""
        return self._local_name(name) in self.local.processes()

    def living(self, workers: Sequence[str]) -> list[str]:
        """Those of them whose processes run, or are paused."""
        living = self.local.processes()
        return [name for name in workers if name in living]

    def partitions(self, worker: str) -> list[tuple[Path, int]]:
        """The finished partitions on a worker's disk: path of the index, and bytes in all."""
        found = []
        for index in sorted(self.place(worker).glob(f"shuffle/*/*{INDEX_SUFFIX}")):
            try:
                size = index.stat().st_size + index.with_suffix(DATA_SUFFIX).stat().st_size
            except FileNotFoundError:
                continue  # it is being deleted
            found.append((index, size))
        return found

    def place(self, worker: str) -> Path:
        """The directory of a TaskManager or a shuffle service."""
        return self.local.directory / "tmp" / worker / worker

    def client(self) -> Client:
        """A client that follows the leader."""
        return self.local.client()
