"""A cluster in one process: the real services on hosts of a world.

The model: a node is a machine with one process on it, which lives, dies and lives again. What a
real process does before its service exists (interpreter, imports) is the node's start time; what
an operator or a container engine does when a process ends is the node's restart delay. A leader
service, where there is one, has a machine of its own. Everything else is the services' own code.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from holdover import __version__
from holdover.client import Client
from holdover.config import Configuration
from holdover.coordination.etcd_leader import EtcdLeaderService
from holdover.coordination.file_leader import FileLeaderService
from holdover.coordination.leader import LeaderService
from holdover.errors import HoldoverError
from holdover.runtime import Runtime
from holdover.runtime.foreground import WorkerProcess, run_worker
from holdover.runtime.log import Log
from jobmanager.job_manager import FatalError, JobManager
from jobmanager.job_master import JobMaster
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.signals import Signal
from jobmanager.scheduler.states import JobState
from shuffle.partition_store import PartitionStore
from shuffle.service_process import ShuffleServiceProcess
from simulator.world.etcd import SimulatedEtcd
from simulator.world.leader_service import SimulatedLeaderService
from simulator.world.process import Host, Process, ProcessState
from simulator.world.world import World
from taskmanager.process import TaskManager

Role = Literal["jobmanager", "taskmanager", "shuffle-service", "leader-service"]

JOBMANAGER_PORT = 6123
STORAGE_DIRECTORY = "/shared/holdover"
_CLUSTER_ID = "default"
JOBS_DIRECTORY = f"{STORAGE_DIRECTORY}/{_CLUSTER_ID}"
LOCAL_DIRECTORY = "/local"
#: Host and process of the leader service.
LEADER_HOST = "leader-service"
#: Until what has ended by itself is started after healing, where it never was before.
_HEALED_RESTART_S = 1.0
_STATE_NAMES = {state: state.name for state in JobState}

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What a cluster is made of.

    A start time is how long a process takes until its service exists. A restart time is how long
    a process that has ended by itself stays dead; None is for ever.
    """

    taskmanagers: int
    slots: int
    racks: int = 1
    jobmanagers: int = 1
    jobmanager_start_s: float = 0.5
    taskmanager_start_s: float = 1.0
    jobmanager_restart_s: float | None = 1.0
    taskmanager_restart_s: float | None = 1.0
    shuffle_services: int = 0
    shuffle_service_start_s: float = 1.0
    shuffle_service_restart_s: float | None = 1.0
    options: Mapping[str, str] = field(default_factory=dict)
    #: None: JobManagers elect their leader by a locked file, and there is no leader service.
    lease_ttl_s: float | None = None
    #: Whether the leader service is an etcd.
    by_etcd: bool = False


@dataclass(eq=False)
class Node:
    """A machine and the process on it, whichever life it has."""

    name: str
    role: Role
    host: Host
    #: The present or last life, None before the first.
    process: Process | None = None
    jobmanager: JobManager | None = None
    taskmanager: TaskManager | None = None
    shuffle_service: ShuffleServiceProcess | None = None
    #: Orders the present life to end; None while there is none to order.
    stop_order: Callable[[], None] | None = None
    #: Faults that keep it dead, whatever the restart policy says.
    holds: int = 0
    #: Whether its machine is without power.
    dark: bool = False

    @property
    def alive(self) -> bool:
        """Whether a process runs (or is paused)."""
        return self.process is not None and self.process.alive

    @property
    def finished(self) -> PartitionStore | None:
        """What a TaskManager or a shuffle service holds; None before it serves."""
        if self.taskmanager is not None:
            return self.taskmanager.finished
        service = self.shuffle_service.service if self.shuffle_service is not None else None
        return service.finished if service is not None else None

    @property
    def runs(self) -> bool:
        """Whether a process runs and is not paused."""
        return self.process is not None and self.process.state is ProcessState.RUNNING


class SimulatedCluster:
    """See the module."""

    def __init__(self, world: World, settings: ClusterSettings) -> None:
        self.world = world
        self.settings = settings
        self._lease_service: SimulatedLeaderService | SimulatedEtcd | None = None
        #: The machine of the leader service, where there is one; it runs already.
        self.leader_service: Node | None = None
        if settings.lease_ttl_s is not None:
            host = world.host(LEADER_HOST)
            self._lease_service = (
                SimulatedEtcd(world, host)
                if settings.by_etcd
                else SimulatedLeaderService(world, host, lease_ttl_s=settings.lease_ttl_s)
            )
            self.leader_service = Node(LEADER_HOST, "leader-service", host)
            self.start_node(self.leader_service)
        self.jobmanagers = [
            Node(f"jm-{i}", "jobmanager", world.host(f"jm-{i}"))
            for i in range(1, settings.jobmanagers + 1)
        ]
        self.taskmanagers = [
            Node(f"tm-{i}", "taskmanager", world.host(f"tm-{i}", rack_name(i, settings.racks)))
            for i in range(1, settings.taskmanagers + 1)
        ]
        self.shuffle_services = [
            Node(f"ss-{i}", "shuffle-service", world.host(f"ss-{i}"))
            for i in range(1, settings.shuffle_services + 1)
        ]
        self._by_name = {node.name: node for node in self.machines()}
        self._client_host = world.host("client")
        #: The last state of each job that a leader has had it in ("RUNNING").
        self.job_states: dict[str, str] = {}
        self._states_seen: dict[tuple[str, str], None] = {}
        #: Told of every step of every job, after it.
        self.on_step: list[Callable[[Node, JobMaster, Signal, Decision], None]] = []
        #: Told of a node whose process has just begun.
        self.on_start: list[Callable[[Node], None]] = []
        #: Told of a node whose process is no more, while its objects are still as they were.
        self.on_death: list[Callable[[Node], None]] = []
        #: Whether what ends by itself is started again even where the settings say never.
        self.healed = False
        #: Who waits for what to be so.
        self._awaited: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def nodes(self) -> Iterator[Node]:
        """JobManagers, then TaskManagers, then shuffle services."""
        yield from self.jobmanagers
        yield from self.taskmanagers
        yield from self.shuffle_services

    def node(self, name: str) -> Node:
        """The node of that name."""
        return self._by_name[name]

    def machines(self) -> Iterator[Node]:
        """All nodes, that of the leader service included."""
        if self.leader_service is not None:
            yield self.leader_service
        yield from self.nodes()

    # ------------------------------------------------------------------ lives

    def start(self) -> None:
        """Start all nodes."""
        for node in self.machines():
            self.start_node(node)

    def start_node(self, node: Node) -> None:
        """Start a node's process; no-op while one lives, or while a fault keeps it dead."""
        if node.alive or node.holds:
            return
        if node.dark:
            node.dark = False
            self.world.power_on(node.host)
        if node.role == "leader-service":
            assert self._lease_service is not None
            node.process = self._lease_service.start()
            return
        process = self.world.process(node.host, node.name)
        node.process = process
        self._forget_life(node)
        process.on_end(lambda: self._ended(node, process))
        for observer in self.on_start:
            observer(node)
        run = {
            "jobmanager": self._run_jobmanager,
            "taskmanager": self._run_taskmanager,
            "shuffle-service": self._run_shuffle_service,
        }[node.role]
        self._spawn(node, process, run(node, process))

    def hold_down(self, node: Node, end: Callable[[Node], None]) -> None:
        """End a node's process (by `stop_node`, `kill_node` or `power_loss`) and keep it dead
        until `release`."""
        node.holds += 1
        end(node)

    def release(self, node: Node) -> None:
        """A fault keeps the node dead no longer: start it, unless another fault still does. One
        that takes its time to end is started when it has."""
        node.holds -= 1
        if node.holds:
            return
        if node.process is not None and node.alive:
            node.process.on_end(lambda: self._later(0.0, self.start_node, node))
        else:
            self.start_node(node)

    def stop_node(self, node: Node) -> None:
        """SIGTERM: the process ends in its own order; before its service exists, at once."""
        if node.stop_order is not None:
            node.stop_order()
        else:
            self.kill_node(node)

    def drain_node(self, node: Node) -> None:
        """An operator wants a shuffle service to leave; no-op before it serves."""
        service = node.shuffle_service.service if node.shuffle_service is not None else None
        if service is not None and node.process is not None and node.alive:
            self._in(node.process, service.drain)

    def kill_node(self, node: Node) -> None:
        """SIGKILL; no-op while no process lives."""
        if node.process is not None and node.alive:
            self.world.kill(node.process)

    def power_loss(self, node: Node) -> None:
        """The machine loses its power; it has it again when it is started."""
        if not node.dark:
            node.dark = True
            self.world.power_loss(node.host)

    def _ended(self, node: Node, process: Process) -> None:
        if node.process is process:
            for observer in self.on_death:
                observer(node)
            self._forget_life(node)

    def _forget_life(self, node: Node) -> None:
        node.jobmanager = node.taskmanager = node.shuffle_service = node.stop_order = None

    def _spawn(self, node: Node, process: Process, main: Coroutine[Any, Any, None]) -> None:
        ended = functools.partial(self._main_ended, node, process)
        task = process.spawn(main)
        task.add_done_callback(ended, context=self.world.loop.world_process.context)

    def _main_ended(self, node: Node, process: Process, main: asyncio.Task[None]) -> None:
        """The process has ended by itself; whoever watches over it starts it again."""
        error = None if main.cancelled() else main.exception()
        if error is not None:
            failure = {"message": f"{node.name} ends", "exception": error}
            process.context.run(self.world.loop.call_exception_handler, failure)
        process.end()
        settings = self.settings
        delay_s = {
            "jobmanager": settings.jobmanager_restart_s,
            "taskmanager": settings.taskmanager_restart_s,
            "shuffle-service": settings.shuffle_service_restart_s,
        }[node.role]
        if delay_s is None and self.healed:
            delay_s = _HEALED_RESTART_S
        if delay_s is not None:
            self._later(delay_s, self._restart, node, process)

    def _restart(self, node: Node, ended: Process) -> None:
        if node.process is ended:
            self.start_node(node)

    def _later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        loop = self.world.loop
        loop.call_later(delay_s, callback, *args, context=loop.world_process.context)

    async def _run_jobmanager(self, node: Node, process: Process) -> None:
        """What `python -m jobmanager` does."""
        runtime = self.world.runtime(process)
        started_s = runtime.clock.monotonic_s()
        await asyncio.sleep(self.settings.jobmanager_start_s)
        config = self.jobmanager_configuration(node)
        leader = self._leader_service_of(runtime)
        jobmanager = JobManager(runtime, config, __version__, started_s, leader)
        node.jobmanager = jobmanager
        jobmanager.on_step = functools.partial(self._note_step, node)
        node.stop_order = lambda: self._in(process, jobmanager.stop)
        try:
            await jobmanager.run()
            _log.info("jobmanager ends")
        except (FatalError, HoldoverError, OSError) as error:
            _log.error("jobmanager ends", exception=error)

    async def _run_taskmanager(self, node: Node, process: Process) -> None:
        """What `python -m taskmanager` does."""
        runtime = self.world.runtime(process)
        await asyncio.sleep(self.settings.taskmanager_start_s)
        config = self.taskmanager_configuration(node)
        stop = asyncio.Event()
        node.stop_order = lambda: self._in(process, stop.set)
        taskmanager = TaskManager(runtime, config, self._leader_service_of(runtime))
        node.taskmanager = taskmanager
        await self._run_worker(taskmanager, stop)

    async def _run_shuffle_service(self, node: Node, process: Process) -> None:
        """What `python -m shuffle` does."""
        runtime = self.world.runtime(process)
        await asyncio.sleep(self.settings.shuffle_service_start_s)
        config = self.shuffle_service_configuration(node)
        stop = asyncio.Event()
        node.stop_order = lambda: self._in(process, stop.set)
        service = ShuffleServiceProcess(runtime, config, self._leader_service_of(runtime))
        node.shuffle_service = service
        await self._run_worker(service, stop)

    async def _run_worker(self, worker: WorkerProcess, stop: asyncio.Event) -> None:
        try:
            await run_worker(worker, stop)
        except OSError as error:
            _log.error("worker ends", exception=error)

    def _leader_service_of(self, runtime: Runtime) -> LeaderService:
        if self._lease_service is None:
            return FileLeaderService(runtime, JOBS_DIRECTORY)
        if isinstance(self._lease_service, SimulatedLeaderService):
            return self._lease_service.client(runtime)
        endpoints, ttl_s = [self._lease_service.endpoint], self.settings.lease_ttl_s
        assert ttl_s is not None
        return EtcdLeaderService(runtime, endpoints, _CLUSTER_ID, JOBS_DIRECTORY, ttl_s)

    def _in(self, process: Process, callback: Callable[[], object]) -> None:
        self.world.loop.call_soon(callback, context=process.context)

    def _note_step(self, node: Node, master: JobMaster, signal: Signal, decision: Decision) -> None:
        self.note_job_state(master.job_id, _STATE_NAMES[master.scheduler.graph.state])
        for observer in self.on_step:
            observer(node, master, signal, decision)

    def note_job_state(self, job_id: str, state: str) -> None:
        """A leader has a job in a state."""
        self.job_states[job_id] = state
        self._states_seen[job_id, state] = None
        for reached, holds in list(self._awaited.items()):
            if not reached.done() and holds():
                reached.set_result(None)

    def was_in(self, job_id: str, state: str) -> bool:
        """Whether a job is, or was, in a state, were it for a moment."""
        return (job_id, state) in self._states_seen

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it is so: now, or after a step of a leader for any job, or when a job has
        another state."""
        if holds():
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited[reached] = holds
        try:
            await reached
        finally:
            self._awaited.pop(reached, None)

    # ------------------------------------------------------------------ configuration

    def jobmanager_configuration(self, node: Node) -> Configuration:
        """The options of a JobManager."""
        return Configuration.of(
            {
                **self.settings.options,
                "jobmanager.rpc.address": node.host.name,
                "jobmanager.rpc.port": str(JOBMANAGER_PORT),
                "jobmanager.bind-host": "0.0.0.0",
                "high-availability.storageDir": STORAGE_DIRECTORY,
            }
        )

    def taskmanager_configuration(self, node: Node) -> Configuration:
        """The options of a TaskManager."""
        return Configuration.of(
            {
                **self.settings.options,
                "jobmanager.rpc.address": self.jobmanagers[0].host.name,
                "jobmanager.rpc.port": str(JOBMANAGER_PORT),
                "taskmanager.host": node.host.name,
                "taskmanager.bind-host": "0.0.0.0",
                "taskmanager.rpc.port": "6122",
                "taskmanager.data.port": "6121",
                "taskmanager.resource-id": node.name,
                "taskmanager.numberOfTaskSlots": str(self.settings.slots),
                "io.tmp.dirs": LOCAL_DIRECTORY,
                "high-availability.storageDir": STORAGE_DIRECTORY,
            }
        )

    def shuffle_service_configuration(self, node: Node) -> Configuration:
        """The options of a shuffle service."""
        return Configuration.of(
            {
                **self.settings.options,
                "jobmanager.rpc.address": self.jobmanagers[0].host.name,
                "jobmanager.rpc.port": str(JOBMANAGER_PORT),
                "shuffle.service.host": node.host.name,
                "shuffle.service.bind-host": "0.0.0.0",
                "shuffle.service.rpc.port": "6122",
                "shuffle.service.data.port": "6121",
                "shuffle.service.resource-id": node.name,
                "io.tmp.dirs": LOCAL_DIRECTORY,
                "high-availability.storageDir": STORAGE_DIRECTORY,
            }
        )

    # ------------------------------------------------------------------ looking in

    def leader(self) -> Node | None:
        """The node that leads; with two that believe so, the one of the newer epoch."""
        leader, newest = None, -1
        for node in self.jobmanagers:
            epoch = self.epoch_of(node)
            if epoch is not None and epoch > newest:
                leader, newest = node, epoch
        return leader

    def epoch_of(self, node: Node) -> int | None:
        """The epoch in which a JobManager leads, None while it does not."""
        services = node.jobmanager.services if node.jobmanager is not None else None
        return services.epoch if services is not None else None

    def job_master(self, job_id: str) -> JobMaster | None:
        """The job as the leader runs it."""
        leader = self.leader()
        services = leader.jobmanager.services if leader and leader.jobmanager else None
        return services.dispatcher.master(job_id) if services is not None else None

    def client(self) -> tuple[Process, Client]:
        """A client, in a process and on a machine of its own that nothing happens to."""
        process = self.world.process(self._client_host, "client")
        config = Configuration.of(
            {k: v for k, v in self.settings.options.items() if k.startswith(("client.", "rpc."))}
        )
        addresses = [f"{node.host.name}:{JOBMANAGER_PORT}" for node in self.jobmanagers]
        return process, Client(addresses, config, self.world.runtime(process))


def shuffle_directory(name: str) -> str:
    """Where a TaskManager of that name keeps its partitions, on its machine's disk."""
    return f"{LOCAL_DIRECTORY}/{name}/shuffle"


def rack_name(index: int, racks: int) -> str:
    """The rack of a TaskManager, both numbered from 1."""
    return f"rack-{1 + (index - 1) % racks}"
