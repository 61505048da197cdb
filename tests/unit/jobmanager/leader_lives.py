"""Leaders that live and die on a disk in memory, and the one TaskManager that outlives them.

Each life of a leader is an event loop of its own: with the power its tasks are gone, as those of a
process that was killed. The TaskManager answers orders at once, without a network; what it holds
and what it ran is kept over all lives.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from holdover.config import Configuration
from holdover.ids import AttemptKey
from holdover.runtime import Disk, Runtime
from holdover.runtime.real import NoPartitionServers, SystemClock, SystemRandomness, real_runtime
from holdover.runtime.supervisor import Supervisor
from holdover.v1 import common_pb2, job_pb2, taskmanager_pb2
from jobmanager.dispatcher import Dispatcher
from jobmanager.job_master import JobMaster, JobServices
from jobmanager.job_store import JobStore
from jobmanager.leading import Leading
from jobmanager.resource_manager import ResourceManager
from jobmanager.scheduler import signals as sig
from jobmanager.worker_connection import CancelOrder, DeployOrder, Order, ReleaseOrder
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.scheduler.job_graphs import HASH, connect, source, stage

ROOT = "/storage"
OUTPUTS = ("/out/a", "/out/b", "/out/c")
PARALLELISM = 2
LIFE_TIMEOUT_S = 120.0
TURNS_OF_A_DYING_LOOP = 30
#: Flushes are as frequent as they can be, so that a test need not wait for one.
OPTIONS = {
    "job-event.store.write-buffer.flush-interval": "1 ms",
    "restart-strategy.fixed-delay.delay": "0 ms",
}


def three_sinks(job_id: str = "job") -> job_pb2.JobGraph:
    """source -> map, and three sinks that read the map's rows, two subtasks each."""
    job = job_pb2.JobGraph(
        job_id=job_id,
        name=job_id,
        vertices=[source("s", PARALLELISM), stage("m", PARALLELISM)],
    )
    connect(job, "s", "m", HASH, PARALLELISM)
    for index, path in enumerate(OUTPUTS):
        vertex = stage(f"k{index}", PARALLELISM)
        vertex.operators.add(
            name="sink",
            determinism=job_pb2.DETERMINISM_DETERMINATE,
            sink=job_pb2.Sink(format=job_pb2.FILE_FORMAT_TEXT, path=f"{path}/{job_id}"),
        )
        job.vertices.append(vertex)
        connect(job, "m", f"k{index}", HASH, PARALLELISM)
    return job


@dataclass
class InstantTaskManager:
    """One TaskManager whose tasks take no time; it stages files for sinks, on the same disk."""

    disk: SimulatedStorage
    worker_id: str = "tm-0"
    data_address: str = "127.0.0.1:1"
    slots: int = 4
    shuffle_load: sig.ShuffleLoad | None = None
    #: Attempts in the order in which they ran, over all leaders.
    ran: list[AttemptKey] = field(default_factory=list)
    #: What it holds.
    held: dict[AttemptKey, common_pb2.FinishedExecution] = field(default_factory=dict)
    #: Subtasks of these vertices never end.
    hangs: frozenset[str] = frozenset()

    def runs_of(self, job_id: str) -> list[tuple[str, int]]:
        """(vertex, subtask) of each attempt of the job."""
        return [(key.vertex_id, key.subtask) for key in self.ran if key.job_id == job_id]

    async def run(
        self,
        job: job_pb2.JobGraph,
        task: taskmanager_pb2.TaskDeployment,
        splits: Callable[[int], tuple[bool, job_pb2.Split | None]],
    ) -> common_pb2.FinishedExecution:
        """Run an attempt; `splits(received)` hands out the splits of a source."""
        key = AttemptKey.from_proto(task.attempt)
        self.ran.append(key)
        finished = common_pb2.FinishedExecution(attempt=task.attempt)
        vertex = next(v for v in job.vertices if v.vertex_id == key.vertex_id)
        if vertex.operators[0].HasField("source"):
            while (split := splits(len(finished.splits))[1]) is not None:
                finished.splits.append(split.index)
        for output, width in enumerate(task.output_subpartitions):
            finished.partitions.add(
                output=output, subpartition_bytes=[10] * width, data_bytes=10 * width
            )
        for operator in vertex.operators:
            if operator.HasField("sink"):
                await self._stage(finished, key, operator.sink.path)
        self.held[key] = finished
        return finished

    async def _stage(
        self, finished: common_pb2.FinishedExecution, key: AttemptKey, path: str
    ) -> None:
        attempt = f"{key.vertex_id}-{key.subtask}-{key.attempt}-{key.epoch}"
        directory = f"{path}/.staging-{key.job_id}/{attempt}"
        content = f"{key.vertex_id}-{key.subtask}".encode()
        # A task makes its own directory only.
        assert await self.disk.stat(posixpath.dirname(directory)) is not None
        await self.disk.make_directories(directory)
        await self.disk.publish(f"{directory}/part", content)
        finished.staged_files.add(
            staged_path=f"{directory}/part",
            final_path=f"{path}/part-{key.vertex_id}-{key.subtask}",
            bytes=len(content),
            rows=1,
        )


class OneTaskManager:
    """Stands for the ResourceManager: one TaskManager, registered from the beginning."""

    def __init__(self, taskmanager: InstantTaskManager) -> None:
        self._taskmanager = taskmanager
        self._posts: dict[str, Callable[[sig.Signal], None]] = {}
        self._holders: dict[int, str] = {}
        self._wanted: dict[str, int] = {}
        self.worker_count = 1
        self.shuffle_service_count = 0
        self._registered = False
        self._running: list[asyncio.Task[None]] = []
        self.workers_changed = asyncio.Event()
        self.workers_changed.set()
        self.master: Callable[[str], JobMaster | None] = lambda _: None

    def workers(self) -> list[InstantTaskManager]:
        """The one."""
        return [self._taskmanager]

    def slot_counts(self) -> tuple[int, int]:
        """See `ResourceManager.slot_counts`."""
        return self._taskmanager.slots, self._taskmanager.slots - len(self._holders)

    def ask_to_register_again(self) -> None:
        """It never loses its registration."""

    def add_job(self, job_id: str, post: Callable[[sig.Signal], None]) -> None:
        """See `ResourceManager.add_job`."""
        self._posts[job_id] = post

    def forget_job(self, job_id: str) -> None:
        """See `ResourceManager.forget_job`."""
        self._posts.pop(job_id, None)
        self._wanted.pop(job_id, None)
        self._holders = {i: job for i, job in self._holders.items() if job != job_id}
        self._share()

    def remove_job(self, job_id: str) -> None:
        """See `ResourceManager.remove_job`."""
        self.forget_job(job_id)
        self._release(key for key in self._taskmanager.held if key.job_id == job_id)

    def declare(self, job_id: str, count: int) -> None:
        """See `ResourceManager.declare`."""
        self._wanted[job_id] = count
        self._share()

    def return_slots(self, job_id: str, slots: Iterable[sig.SlotId]) -> None:
        """See `ResourceManager.return_slots`."""
        for slot in slots:
            self._holders.pop(slot.index, None)
        self._share()

    def order(self, worker_id: str, order: Order) -> bool:
        """Carry an order out, in a task of its own."""
        if isinstance(order, DeployOrder):
            if order.task.attempt.vertex_id not in self._taskmanager.hangs:
                self._running.append(asyncio.ensure_future(self._run(order)))
        elif isinstance(order, CancelOrder):
            order.unknown()
        elif isinstance(order, ReleaseOrder):
            self._release(order.keys)
        return True

    async def offer_all(self) -> None:
        """Register with every job, as a TaskManager does that has found a new leader."""
        for job_id in list(self._posts):
            master = self.master(job_id)
            if master is not None:
                held = [f for key, f in self._taskmanager.held.items() if key.job_id == job_id]
                worker = self._taskmanager
                registered = sig.WorkerRegistered(
                    worker.worker_id, worker.data_address, refreshed=False, finished=held
                )
                for rejected in await master.register_worker(registered):
                    self._release(rejected.keys)
        self._registered = True
        self._share()

    def _release(self, keys: Iterable[AttemptKey]) -> None:
        for key in list(keys):
            self._taskmanager.held.pop(key, None)

    def _share(self) -> None:
        wishes = list(self._wanted.items()) if self._registered else []
        for job_id, wanted in wishes:
            missing = wanted - sum(job == job_id for job in self._holders.values())
            free = [i for i in range(self._taskmanager.slots) if i not in self._holders]
            granted = free[: max(0, missing)]
            self._holders.update((index, job_id) for index in granted)
            if granted:
                slots = tuple(sig.SlotId(self._taskmanager.worker_id, i) for i in granted)
                self._posts[job_id](sig.SlotsGranted(slots))

    async def _run(self, order: DeployOrder) -> None:
        key = AttemptKey.from_proto(order.task.attempt)
        master = self.master(key.job_id)
        if master is None:
            return

        def splits(received: int) -> tuple[bool, job_pb2.Split | None]:
            return master.next_split(key, received)

        finished = await self._taskmanager.run(master.job.graph, order.task, splits)
        state = common_pb2.EXECUTION_STATE_FINISHED
        master.post(sig.ExecutionReported(self._taskmanager.worker_id, key, state, finished))


class Leader:
    """One leadership in the present event loop."""

    def __init__(self, taskmanager: InstantTaskManager, epoch: int) -> None:
        self.disk = taskmanager.disk
        self.store = JobStore(self.disk, ROOT)
        self.resources = OneTaskManager(taskmanager)
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.supervisor = Supervisor(f"leadership {epoch}", self._loop_ended)
        self.leads = True
        self.over = False
        services = JobServices(
            runtime_on(self.disk),
            epoch,
            self.store,
            cast(ResourceManager, self.resources),
            process_age_s=lambda: 0.0,
            leading_age_s=lambda: 0.0,
            leading=Leading(lambda: self.leads, lambda: self.over),
        )
        self.dispatcher = Dispatcher(services, Configuration.of(OPTIONS), self.supervisor)
        self.resources.master = self.dispatcher.master

    def _loop_ended(self, name: str, error: BaseException) -> None:
        if not self.died.done():
            self.died.set_result(f"{name}: {error!r}")

    async def take_office(self) -> None:
        """Load all jobs; the TaskManager registers with each."""
        await self.store.open()
        self.supervisor.run("remember workers", self.dispatcher.remember_workers)
        await self.dispatcher.load()
        self.supervisor.run("remove leftovers", self.dispatcher.remove_leftovers)
        await self.resources.offer_all()

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for something that comes by itself, within a bound."""
        try:
            async with asyncio.timeout(LIFE_TIMEOUT_S):
                while not await condition():
                    if self.died.done():
                        raise AssertionError(f"the leader ended: {self.died.result()}")
                    await asyncio.sleep(0.001)
        except TimeoutError:
            states = {m.job_id: m.scheduler.graph.state.name for m in self.dispatcher.masters()}
            raise AssertionError(f"{what}: not so after {LIFE_TIMEOUT_S} s; {states}") from None

    async def until_cleaned_up(self, job_id: str) -> None:
        """Wait until nothing of an ended job is left but its summary."""

        async def clean() -> bool:
            directory = await self.disk.stat(f"{ROOT}/jobs/{job_id}")
            return directory is None and await self.store.read_archive(job_id) is not None

        await self.until(clean, f"{job_id} is over and cleaned up")


def live(
    taskmanager: InstantTaskManager, epoch: int, life: Callable[[Leader], Awaitable[None]]
) -> bool:
    """One life of a leader, which always ends by a loss of power; False when that came early."""
    disk = taskmanager.disk

    async def main() -> bool:
        # What the tasks of a dying leader have to say is of no interest.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        work = asyncio.ensure_future(life(Leader(taskmanager, epoch)))
        while not work.done() and disk.is_on:
            await asyncio.wait([work], timeout=0.001)
        survived = disk.is_on
        disk.power_loss()
        for _ in range(TURNS_OF_A_DYING_LOOP):
            await asyncio.sleep(0)
        if survived:
            await work
        # What one of them begins while it ends must not be left behind by the loop.
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.wait(left)
        return survived

    try:
        return asyncio.run(main())
    finally:
        disk.power_on()


def runtime_on(disk: Disk) -> Runtime:
    """This machine, but for the disk."""
    real = real_runtime()
    return Runtime(
        clock=SystemClock(),
        randomness=SystemRandomness(),
        network=real.network,
        disk=disk,
        task_processes=real.task_processes,
        partition_servers=NoPartitionServers(),
    )
