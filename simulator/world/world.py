"""The world: one seed, one loop, hosts and what connects them."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from holdover.runtime import Runtime
from simulator.observer import Observer
from simulator.world.clock import HostClock, SeededRandomness
from simulator.world.disk import ProcessDisk
from simulator.world.links import LinkSettings
from simulator.world.loop import VirtualLoop
from simulator.world.modelled_task import TaskModel
from simulator.world.network import SimulatedNetwork
from simulator.world.partitions import ModelledPartitionServers
from simulator.world.process import CURRENT, Host, Process
from simulator.world.storages import DiskSettings, Storages
from simulator.world.task_processes import ModelledTaskProcesses
from simulator.world.trace import Trace

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class UncaughtFailure:
    """An exception that nobody caught."""

    at_s: float
    process: str
    text: str


class World:
    """See the module. Everything in it is a function of the seed and of what is done to it."""

    def __init__(
        self,
        seed: int,
        *,
        links: LinkSettings | None = None,
        disks: DiskSettings | None = None,
        tasks: TaskModel | None = None,
        keep_trace_lines_max: int = 0,
    ) -> None:
        self.seed = seed
        self.loop = VirtualLoop(self.random("loop"))  # type: ignore[abstract]
        self.trace = Trace(self.loop, keep_trace_lines_max)
        self.hosts: dict[str, Host] = {}
        self._lives: dict[str, int] = {}
        self.failures: list[UncaughtFailure] = []
        #: Who watches; told in this order.
        self.observers: list[Observer] = []
        self.network = SimulatedNetwork(self, links)
        self.storages = Storages(self, disks)
        #: What all modelled tasks share.
        self.task_model = tasks or TaskModel()
        self.loop.set_failure_handler(self._note_failure)
        self._began_s = time.perf_counter()

    # ------------------------------------------------------------------ making

    def random(self, purpose: str) -> random.Random:
        """A source of chance of its own for each purpose, so that a draw more in one place does
        not change all others."""
        return random.Random(f"{self.seed}/{purpose}")

    def host(self, name: str, rack: str = "") -> Host:
        """The host of that name, made when it is new."""
        if name not in self.hosts:
            self.hosts[name] = Host(name, rack)
        return self.hosts[name]

    def process(self, host: Host, name: str) -> Process:
        """A new life of the process `name`."""
        life = self._lives.get(name, -1) + 1
        self._lives[name] = life
        process = Process(self.loop, host, name, life)
        process.on_end(lambda: self.trace.note(name, "ends"))
        self.trace.note(name, "starts", str(life))
        return process

    def runtime(self, process: Process) -> Runtime:
        """What a service in that process is given."""
        return Runtime(
            clock=HostClock(process),
            randomness=SeededRandomness(self.random(f"{process.name}/{process.life}")),
            network=self.network.of(process),
            disk=ProcessDisk(self, process),
            task_processes=ModelledTaskProcesses(self, process),
            partition_servers=ModelledPartitionServers(self, process),
        )

    # ------------------------------------------------------------------ running

    @property
    def now_s(self) -> float:
        """Seconds since the world began."""
        return self.loop.now_s

    def elapsed_real_s(self) -> float:
        """Seconds of the real world since this one began: for reports, never for decisions."""
        return time.perf_counter() - self._began_s

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run until the work, which is nobody's but the world's, has ended."""
        return self.loop.run(work)

    def close(self) -> None:
        """Let go of everything."""
        for host in self.hosts.values():
            for process in host.living():
                process.end()
        self.loop.close()

    # ------------------------------------------------------------------ deaths

    def kill(self, process: Process) -> None:
        """SIGKILL: the process ends here; its host lives, so its peers see their connections
        break, and its disk keeps what was written."""
        self.trace.note(process.name, "killed")
        process.end()

    def power_loss(self, host: Host) -> None:
        """The host dies: its peers see nothing but silence, its disk forgets what was not
        synced."""
        self.trace.note(host.name, "power loss")
        self.network.silence(host)
        for process in host.living():
            process.end()
        self.storages.power_loss(host)

    def power_on(self, host: Host) -> None:
        """The host is there again, with an empty memory."""
        self.network.end_silence(host)

    def _note_failure(self, process: Process | None, context: dict[str, Any]) -> None:
        exception = context.get("exception")
        text = str(context.get("message", ""))
        if exception is not None:
            text = "".join(traceback.format_exception(exception))
        name = process.name if process is not None else "world"
        self.failures.append(UncaughtFailure(self.now_s, name, text))


def current_process_name() -> str:
    """Whose code runs now; "world" when it is nobody's."""
    process = CURRENT.get(None)
    return process.name if process is not None else "world"
