"""A job with many subtasks and a long log: messages stay small, and the event loop responsive."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdover.config import Configuration
from holdover.coordination.registration import Inventory, register
from holdover.ids import AttemptKey
from holdover.runtime import GRPC_MESSAGE_BYTES_MAX
from holdover.runtime.real import SystemClock, real_runtime
from holdover.runtime.real_disk import LocalDisk
from holdover.runtime.supervisor import Supervisor
from holdover.v1 import common_pb2, events_pb2, job_pb2, taskmanager_pb2
from holdover.v1.taskmanager_pb2_grpc import (
    ResourceManagerStub,
    add_ResourceManagerServicer_to_server,
)
from jobmanager.dispatcher import Dispatcher
from jobmanager.event_store import EventWriterSettings, JobEventWriter
from jobmanager.job_master import JobMaster, JobServices
from jobmanager.job_store import JobStore
from jobmanager.leader_state import LeadershipServices, LeaderState
from jobmanager.resource_manager import ResourceManager, ResourceManagerOptions
from jobmanager.scheduler.failures import RESETS_AN_EVENT
from jobmanager.scheduler.states import JobState
from jobmanager.worker_service import Context, WorkerService
from tests.unit.jobmanager.leader_lives import runtime_on
from tests.unit.jobmanager.scheduler.job_graphs import HASH, connect, source, stage

WIDTH = 4
EVENTS = 100_000
EVENTS_A_TURN = 500
#: Six times what the longest step has cost on a machine with ten times more to do than it could.
LAG_S_MAX = 1.0
CALL_TIMEOUT_S = 30.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.blocking_allowed("the lag of the loop is what is measured"),
]


def wide(subtasks: int) -> job_pb2.JobGraph:
    """A source with so many subtasks, which four others read."""
    job = job_pb2.JobGraph(
        job_id="job", name="job", vertices=[source("s", subtasks), stage("m", WIDTH)]
    )
    job.vertices[0].operators[0].source.sequence.end = subtasks
    connect(job, "s", "m", HASH, WIDTH)
    return job


def finished(subtask: int, attempt: int, job_id: str = "job") -> common_pb2.FinishedExecution:
    """A subtask of the source that has finished under the first leader."""
    return common_pb2.FinishedExecution(
        attempt=AttemptKey(job_id, "s", subtask, attempt, 1).to_proto(),
        partitions=[common_pb2.ResultPartition(subpartition_bytes=[100] * WIDTH, data_bytes=400)],
        splits=[subtask],
    )


def history(subtasks: int, rounds: int) -> list[events_pb2.JobEvent]:
    """All subtasks of the source finish, `rounds` times: in between all are reset."""
    event = events_pb2.JobEvent
    splits = [job_pb2.Split(index=i, start=i, end=i + 1) for i in range(subtasks)]
    events = [
        event(job_state_changed=events_pb2.JobStateChanged(state=common_pb2.JOB_STATE_RUNNING)),
        event(
            vertex_initialized=events_pb2.ExecutionJobVertexInitialized(
                vertex_id="s", parallelism=subtasks, splits=splits
            )
        ),
    ]
    location = common_pb2.PartitionLocation(worker_id="tm-0")
    for attempt in range(rounds):
        if attempt:
            for start in range(0, subtasks, RESETS_AN_EVENT):
                some = range(start, min(start + RESETS_AN_EVENT, subtasks))
                reset = events_pb2.ExecutionVertexReset(vertex_id="s", subtasks=some)
                events.append(event(vertex_reset=reset))
        for subtask in range(subtasks):
            done = events_pb2.ExecutionVertexFinished(
                execution=finished(subtask, attempt), location=location
            )
            events.append(event(vertex_finished=done))
    return events


async def leave_behind(root: Path, subtasks: int, rounds: int) -> int:
    """The storage as a leader has left it that died with all of the source finished; events."""
    store = JobStore(LocalDisk(), str(root))
    await store.open()
    await store.store(wide(subtasks), submitted_wall_ms=1, leader_epoch=1)
    await store.write_workers(["tm-0"])
    writer = JobEventWriter(
        LocalDisk(),
        SystemClock(),
        store.events_directory("job"),
        job_id="job",
        leader_epoch=1,
        snapshot_source=list,
        settings=EventWriterSettings(segment_bytes_max=4 * 1024 * 1024),
    )
    writer.start()
    events = history(subtasks, rounds)
    for start in range(0, len(events), EVENTS_A_TURN):
        await writer.wait_for_room()
        for event in events[start : start + EVENTS_A_TURN]:
            writer.append(event)
        await asyncio.sleep(0)
    await writer.flush()
    await writer.close()
    return len(events)


class Measured(WorkerService):
    """Notes how large the messages of registrations are."""

    largest = 0

    async def Register(  # noqa: N802
        self, request_iterator: AsyncIterator[taskmanager_pb2.RegisterRequest], context: Context
    ) -> AsyncIterator[taskmanager_pb2.RegisterResponse]:
        async def requests() -> AsyncIterator[taskmanager_pb2.RegisterRequest]:
            async for message in request_iterator:
                self.largest = max(self.largest, message.ByteSize())
                yield message

        async for answer in super().Register(requests(), context):
            self.largest = max(self.largest, answer.ByteSize())
            yield answer


@asynccontextmanager
async def leading(root: Path) -> AsyncIterator[LeadershipServices]:
    """The second leader, which loads the jobs within the block's beginning."""
    runtime = runtime_on(LocalDisk())
    failed: list[str] = []
    supervisor = Supervisor("leadership", lambda name, error: failed.append(f"{name}: {error!r}"))
    resource_options = ResourceManagerOptions(10, 50, 2, 10)
    resources = ResourceManager(runtime, 2, resource_options, supervisor, lambda: None)
    store = JobStore(runtime.disk, str(root))
    services = JobServices(runtime, 2, store, resources, lambda: 0.0, lambda: 0.0)
    dispatcher = Dispatcher(services, Configuration(), supervisor)
    try:
        await dispatcher.load()
        yield LeadershipServices(2, dispatcher, resources, store, 0)
    finally:
        await dispatcher.suspend()
        await supervisor.close()
    assert failed == []


def job_of(services: LeadershipServices) -> JobMaster:
    """The job, which is there."""
    master = services.dispatcher.master("job")
    assert master is not None
    return master


class LongestStep:
    """The longest time for which the event loop did not get to others, on this thread's clock.

    That is what it costs; how much longer it takes on a busy machine is not the JobManager's doing.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0.01)
            self.cpu_s = max(self.cpu_s, time.thread_time() - before_s)


@pytest.fixture
def heap_of_other_tests_is_left_alone() -> Iterator[None]:
    """A process that has run thousands of tests holds what a JobManager does not, and to collect
    garbage in it takes longer than any step of one."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("heap_of_other_tests_is_left_alone")
async def test_a_replay_of_100000_events_keeps_the_event_loop_responsive(tmp_path: Path) -> None:
    """P55: and so does the recovery that follows, with the first snapshot of the new leader."""
    subtasks = 32_000
    written = await leave_behind(tmp_path, subtasks, rounds=3)
    inventory = Inventory([finished(i, 2) for i in range(subtasks)], [])
    await asyncio.sleep(0)
    longest = LongestStep()
    measuring = asyncio.ensure_future(longest.run())
    try:
        async with leading(tmp_path) as services:
            master = job_of(services)
            assert master.recovery_reports()[0].events_replayed == written
            await offered(services, "tm-0", inventory, Measured)
            await master.cancel()  # durable, after the snapshot that the new leader begins with
            assert master.status().subtasks_finished == subtasks
    finally:
        measuring.cancel()
    print(f"{written} events, longest step {longest.cpu_s:.3f} s")
    assert written >= EVENTS * 0.95
    assert longest.cpu_s < LAG_S_MAX


async def offered(
    services: LeadershipServices, resource_id: str, inventory: Inventory, service: type[Measured]
) -> tuple[list[tuple[AttemptKey, str]], int]:
    """Register as a TaskManager does; what was rejected, and the bytes of the largest message."""
    state = LeaderState(real_runtime(), Configuration(), "127.0.0.1", "test")
    state.services = services
    serving = service(state)
    server = real_runtime().network.server("127.0.0.1:0")
    server.add(add_ResourceManagerServicer_to_server, serving)
    address = f"127.0.0.1:{await server.start()}"
    header = taskmanager_pb2.RegisterHeader(
        resource_id=resource_id,
        incarnation="1",
        address="127.0.0.1:9",
        data_address="127.0.0.1:9",
        slots=2,
    )
    try:
        async with real_runtime().network.channel(address) as channel:
            stub = ResourceManagerStub(channel)
            answer = await register(stub, header, lambda: inventory, CALL_TIMEOUT_S)
    finally:
        await server.stop(0)
    return list(answer.rejected), serving.largest


async def test_a_taskmanager_registers_with_20000_partitions(tmp_path: Path) -> None:
    """P53: all are taken, and as many of an unknown job are rejected, in messages that fit."""
    subtasks = 20_000
    await leave_behind(tmp_path, subtasks, rounds=1)
    held = [finished(i, 0) for i in range(subtasks)]
    strange = [finished(i, 0, job_id="gone") for i in range(subtasks)]
    async with leading(tmp_path) as services:
        rejected, largest = await offered(
            services, "tm-0", Inventory([*held, *strange], []), Measured
        )
        graph = job_of(services).scheduler.graph
        available = sum(vertex.available for vertex in graph.vertices["s"].subtasks)
        state = graph.state

    assert available == subtasks
    assert state is JobState.RUNNING, "nothing more is awaited"
    assert {key.job_id for key, _ in rejected} == {"gone"}
    assert len(rejected) == subtasks
    assert largest < GRPC_MESSAGE_BYTES_MAX / 4
