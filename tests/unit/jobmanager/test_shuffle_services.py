"""Shuffle services are workers without slots: they register, tell their load, copy, and leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

from holdover.client import Client, ClientTimeouts
from holdover.ids import AttemptKey
from holdover.runtime.real import real_runtime
from holdover.v1 import common_pb2, shuffle_service_pb2, shuffle_service_pb2_grpc, taskmanager_pb2
from holdover.v1.jobmanager_pb2_grpc import add_JobManagerServicer_to_server
from jobmanager.client_service import ClientService
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.worker_connection import ReleaseJobOrder, ReleaseOrder
from jobmanager.worker_orders import WorkerOrders
from jobmanager.worker_service import Context
from tests.unit.jobmanager.resources import NOWHERE, Resources, resources, until
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import finished, initialized, replayed
from tests.unit.jobmanager.test_worker_service import EPOCH, ListeningMaster, Served, end, serving

ROOM = taskmanager_pb2.ShuffleServiceLoad(room_bytes=100, open_puts=2)
LEAVING = taskmanager_pb2.ShuffleServiceLoad(room_bytes=100, draining=True)
KEYS = tuple(AttemptKey("job", "v", subtask, 0, EPOCH) for subtask in range(3))


def service_header(
    address: str = NOWHERE,
    *,
    slots: int = 0,
    load: taskmanager_pb2.ShuffleServiceLoad | None = ROOM,
) -> taskmanager_pb2.RegisterHeader:
    return taskmanager_pb2.RegisterHeader(
        resource_id="ss-0",
        incarnation="a",
        address=address,
        data_address=NOWHERE,
        slots=slots,
        kind=common_pb2.WORKER_KIND_SHUFFLE_SERVICE,
        shuffle=load,
    )


@dataclass
class Job(ListeningMaster):
    """A job that writes to shuffle services, or not, and needs what they hold, or not."""

    external: bool = True
    needs: bool = False
    scheduler: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = SimpleNamespace(
            core=SimpleNamespace(shuffle=SimpleNamespace(external=self.external)),
            needs_worker=lambda _: self.needs,
        )


async def registered(it: Served) -> str:
    """The registration of a shuffle service."""
    header = taskmanager_pb2.RegisterRequest(header=service_header())
    answers = await it.register(header, end())
    return answers[0].accepted.registration_id


async def beat(
    it: Served, registration_id: str, load: taskmanager_pb2.ShuffleServiceLoad, *job_ids: str
) -> taskmanager_pb2.HeartbeatResponse:
    return await it.stub.Heartbeat(
        taskmanager_pb2.HeartbeatRequest(
            leader_epoch=EPOCH,
            resource_id="ss-0",
            registration_id=registration_id,
            job_ids=job_ids,
            shuffle=load,
        ),
        timeout=5,
    )


async def test_a_service_registers_without_slots_and_jobs_hear_its_load() -> None:
    async with serving("a") as it:
        await registered(it)
        heard = it.jobs.running["a"].registered[0]
        assert heard.shuffle == sig.ShuffleLoad(room_bytes=100, open_puts=2)
        manager = it.resources.manager
        assert manager.slot_counts() == (0, 0)
        assert [worker.worker_id for worker in manager.shuffle_services()] == ["ss-0"]
        assert manager.taskmanagers() == []


@pytest.mark.parametrize(("slots", "load"), [(1, ROOM), (0, None)])
async def test_a_service_with_slots_or_without_a_load_is_refused(
    slots: int, load: taskmanager_pb2.ShuffleServiceLoad | None
) -> None:
    async with serving("a") as it:
        header = service_header(slots=slots, load=load)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            # Workers send no more before they are admitted: a write to an ended call hides why.
            await it.register(taskmanager_pb2.RegisterRequest(header=header))
        assert "a shuffle service has no slots" in str(refused.value.details())


async def test_heartbeats_tell_the_load_to_the_jobs_that_write_to_services() -> None:
    async with serving() as it:
        it.jobs.running = {"a": Job("a"), "b": Job("b", external=False)}
        registration_id = await registered(it)
        await beat(it, registration_id, taskmanager_pb2.ShuffleServiceLoad(room_bytes=7), "a")
        assert it.jobs.running["a"].posted == [
            sig.ShuffleLoadTold("ss-0", sig.ShuffleLoad(room_bytes=7))
        ]
        assert it.jobs.running["b"].posted == []


@pytest.mark.parametrize(
    ("load", "needs", "drained"),
    [(LEAVING, False, True), (LEAVING, True, False), (ROOM, False, False)],
)
async def test_a_leaving_service_may_leave_when_no_job_needs_what_it_holds(
    load: taskmanager_pb2.ShuffleServiceLoad, needs: bool, drained: bool
) -> None:
    async with serving() as it:
        it.jobs.running = {"a": Job("a"), "b": Job("b", external=False, needs=needs)}
        registration_id = await registered(it)
        answer = await beat(it, registration_id, load, "a", "b", "ended")
        assert answer.drained is drained
        assert list(answer.ended_job_ids) == ["ended"]


async def test_a_leaving_service_stays_while_a_parked_job_may_need_it() -> None:
    async with serving() as it:
        it.jobs.running = {"a": Job("a")}
        registration_id = await registered(it)
        masters = it.jobs.running
        it.jobs.knows = lambda job_id: job_id in (*masters, "parked")  # type: ignore[method-assign]
        answer = await beat(it, registration_id, LEAVING, "a", "parked")
        assert not answer.drained


async def test_a_client_sees_services_apart_from_taskmanagers_with_what_they_hold() -> None:
    async with serving() as it:
        job = Job("job")
        job.scheduler.graph = replayed(
            chain(1),
            [initialized("s", 1, splits=1), finished("s", 0, worker_id="ss-0", splits=[0])],
        )
        job.scheduler.graph.set_available(job.scheduler.graph.vertex_at("s", 0), True)
        it.jobs.running = {"job": job}
        await registered(it)
        it.resources.register("tm-0")
        server = real_runtime().network.server("127.0.0.1:0")
        server.add(add_JobManagerServicer_to_server, ClientService(it.state))
        it.state.known_address = it.state.address = f"127.0.0.1:{await server.start()}"
        it.state.known_epoch = EPOCH
        async with Client(it.state.address, timeouts=ClientTimeouts(20, 60, 60)) as client:
            (service,) = await client.shuffle_services()
            taskmanagers = await client.taskmanagers()
            cluster = await client.cluster()
        await server.stop(0)
    assert (service.resource_id, service.partitions, service.draining) == ("ss-0", 1, False)
    assert (service.room_bytes, service.open_puts) == (100, 2)
    assert [each.resource_id for each in taskmanagers] == ["tm-0"]
    assert (cluster.taskmanagers, cluster.shuffle_services) == (1, 1)


# ---------------------------------------------------------------------- what it is ordered to do


class ServiceDouble(shuffle_service_pb2_grpc.ShuffleServiceServicer):
    """A shuffle service that answers for as many attempts as it is told."""

    def __init__(self, answers: int = 3, obstacle: str = "", *, hangs: bool = False) -> None:
        self.answers = answers
        self.obstacle = obstacle
        self.hangs = hangs
        self.released: list[str] = []
        self.targets: list[common_pb2.PartitionLocation] = []

    async def ReleasePartitions(  # noqa: N802
        self, request: taskmanager_pb2.ReleasePartitionsRequest, context: Context
    ) -> taskmanager_pb2.ReleasePartitionsResponse:
        self.released.extend(f"{each.vertex_id}/{each.subtask}" for each in request.attempts)
        return taskmanager_pb2.ReleasePartitionsResponse(leader_epoch=request.leader_epoch)

    async def ReleaseJob(  # noqa: N802
        self, request: taskmanager_pb2.ReleaseJobRequest, context: Context
    ) -> taskmanager_pb2.ReleaseJobResponse:
        self.released.append(request.job_id)
        return taskmanager_pb2.ReleaseJobResponse(leader_epoch=request.leader_epoch)

    async def Ping(  # noqa: N802
        self, request: taskmanager_pb2.PingRequest, context: Context
    ) -> taskmanager_pb2.PingResponse:
        return taskmanager_pb2.PingResponse(leader_epoch=request.leader_epoch, registered=True)

    async def CopyPartitions(  # noqa: N802
        self, request: shuffle_service_pb2.CopyPartitionsRequest, context: Context
    ) -> AsyncIterator[shuffle_service_pb2.CopyPartitionsResponse]:
        self.targets.append(request.target)
        for attempt in request.attempts[: self.answers]:
            yield shuffle_service_pb2.CopyPartitionsResponse(
                leader_epoch=request.leader_epoch, attempt=attempt, obstacle=self.obstacle
            )
        if self.hangs:
            await asyncio.Event().wait()

    async def Drain(  # noqa: N802
        self, request: shuffle_service_pb2.DrainRequest, context: Context
    ) -> shuffle_service_pb2.DrainResponse:
        return shuffle_service_pb2.DrainResponse()


@asynccontextmanager
async def ordering(double: ServiceDouble) -> AsyncIterator[tuple[Resources, list[sig.Signal]]]:
    """A ResourceManager with that service, and what a job that orders it about hears."""
    server = real_runtime().network.server("127.0.0.1:0")
    server.add(shuffle_service_pb2_grpc.add_ShuffleServiceServicer_to_server, double)
    port = await server.start()
    try:
        async with resources() as it:
            it.manager.register(service_header(f"127.0.0.1:{port}"))
            yield it, []
    finally:
        await server.stop(0)


COPY = act.CopyPartitions("ss-0", "ss-1", "host:7", KEYS)


async def test_releases_go_to_a_service_as_they_go_to_a_taskmanager() -> None:
    double = ServiceDouble()
    async with ordering(double) as (it, _):
        it.manager.order("ss-0", ReleaseOrder(KEYS[:2]))
        it.manager.order("ss-0", ReleaseJobOrder("job"))
        await until(lambda: double.released == ["v/0", "v/1", "job"], "both have come")


async def test_each_copy_is_answered_as_it_is_whole() -> None:
    double = ServiceDouble()
    async with ordering(double) as (it, heard):
        await WorkerOrders(it.manager, heard.append).copy(COPY)
    assert heard == [sig.PartitionsCopied("ss-0", "ss-1", key) for key in KEYS]
    assert [(t.worker_id, t.data_address) for t in double.targets] == [("ss-1", "host:7")]


async def test_what_a_call_leaves_unanswered_is_answered_when_it_ends() -> None:
    async with ordering(ServiceDouble(answers=1)) as (it, heard):
        await WorkerOrders(it.manager, heard.append).copy(COPY)
    why = "the shuffle service ended the call"
    assert heard == [
        sig.PartitionsCopied("ss-0", "ss-1", KEYS[0]),
        *(sig.PartitionsCopied("ss-0", "ss-1", key, why) for key in KEYS[1:]),
    ]


async def test_the_loss_of_the_service_ends_its_copying() -> None:
    async with ordering(ServiceDouble(answers=1, hangs=True)) as (it, heard):
        copying = asyncio.ensure_future(WorkerOrders(it.manager, heard.append).copy(COPY))
        await until(lambda: heard, "the first copy is answered")
        worker = it.manager.worker("ss-0")
        assert worker is not None
        it.manager.lose(worker, "killed")
        async with asyncio.timeout(60):
            await copying
    assert [s.key for s in heard if isinstance(s, sig.PartitionsCopied) and s.obstacle] == [
        *KEYS[1:]
    ]


async def test_a_service_that_is_not_there_copies_nothing() -> None:
    async with resources() as it:
        heard: list[sig.Signal] = []
        await WorkerOrders(it.manager, heard.append).copy(COPY)
    assert heard == [
        sig.PartitionsCopied("ss-0", "ss-1", key, "the shuffle service is gone") for key in KEYS
    ]
