"""What TaskManagers are told, over gRPC on loopback; the jobs behind it only listen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio
import pytest

from holdover.config import Configuration
from holdover.ids import AttemptKey
from holdover.runtime.real import real_runtime
from holdover.v1 import job_pb2, taskmanager_pb2
from holdover.v1.common_pb2 import EXECUTION_STATE_FINISHED, FinishedExecution
from holdover.v1.taskmanager_pb2_grpc import (
    ResourceManagerStub,
    add_ResourceManagerServicer_to_server,
)
from jobmanager.dispatcher import Dispatcher
from jobmanager.job_store import JobStore
from jobmanager.leader_state import LEADER_METADATA, LeadershipServices, LeaderState
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.worker_service import GRAPH_CHUNK_BYTES, WorkerService
from jobmanager.worker_service import Inventory as SentInventory
from tests.unit.jobmanager.resources import Resources, header, resources, until

if TYPE_CHECKING:
    from holdover.v1.taskmanager_pb2_grpc import ResourceManagerAsyncStub

EPOCH = 1
NEWER = 2


@dataclass
class ListeningMaster:
    """A job that takes everything, but for what it is told to reject."""

    job_id: str
    rejects: tuple[AttemptKey, ...] = ()
    registered: list[sig.WorkerRegistered] = field(default_factory=list)
    posted: list[sig.Signal] = field(default_factory=list)
    job: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(graph=job_pb2.JobGraph(name="x" * 3_000_000))
    )

    async def register_worker(self, signal: sig.WorkerRegistered) -> list[act.RejectOffers]:
        self.registered.append(signal)
        return [act.RejectOffers(signal.worker_id, self.rejects, "late")] if self.rejects else []

    async def room(self) -> None:
        pass

    def post(self, signal: sig.Signal) -> None:
        self.posted.append(signal)

    def next_split(self, key: AttemptKey, received: int) -> tuple[bool, job_pb2.Split | None]:
        return key.attempt == 1, job_pb2.Split(index=received) if received < 2 else None


@dataclass
class Jobs:
    """Stands for the Dispatcher."""

    running: dict[str, ListeningMaster]
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def masters(self) -> list[ListeningMaster]:
        return list(self.running.values())

    def master(self, job_id: str) -> ListeningMaster | None:
        return self.running.get(job_id)

    def knows(self, job_id: str) -> bool:
        return job_id in self.running


@dataclass
class Served:
    """A leader's worker service, and a TaskManager's stub of it."""

    resources: Resources
    jobs: Jobs
    state: LeaderState
    stub: ResourceManagerAsyncStub

    async def register(
        self, *messages: taskmanager_pb2.RegisterRequest
    ) -> list[taskmanager_pb2.RegisterResponse]:
        """What was answered after the admission."""
        call = self.stub.Register(sent(messages), timeout=60)
        admitted, *answers = [answer async for answer in call]
        assert admitted.admitted.leader_epoch == EPOCH
        return answers

    def heartbeat(
        self, registration_id: str, epoch: int = EPOCH
    ) -> taskmanager_pb2.HeartbeatRequest:
        return taskmanager_pb2.HeartbeatRequest(
            leader_epoch=epoch,
            resource_id="tm-0",
            registration_id=registration_id,
            job_ids=["a", "gone"],
        )


async def sent(
    messages: Sequence[taskmanager_pb2.RegisterRequest],
) -> AsyncIterator[taskmanager_pb2.RegisterRequest]:
    for message in messages:
        yield message


@asynccontextmanager
async def serving(*job_ids: str) -> AsyncIterator[Served]:
    """A leader that is ready and runs these jobs."""
    async with resources() as around:
        jobs = Jobs({job_id: ListeningMaster(job_id) for job_id in job_ids})
        jobs.ready.set()
        state = LeaderState(real_runtime(), Configuration(), "127.0.0.1", "test")
        state.known_address = "elsewhere:1"
        state.services = LeadershipServices(
            EPOCH, cast(Dispatcher, jobs), around.manager, cast(JobStore, None), 0
        )
        server = real_runtime().network.server("127.0.0.1:0")
        server.add(add_ResourceManagerServicer_to_server, WorkerService(state))
        port = await server.start()
        async with real_runtime().network.channel(f"127.0.0.1:{port}") as channel:
            yield Served(around, jobs, state, ResourceManagerStub(channel))
        await server.stop(0)


def key(job_id: str, subtask: int) -> AttemptKey:
    return AttemptKey(job_id, "v", subtask, attempt=0, epoch=EPOCH)


def inventory(
    finished: Sequence[AttemptKey] = (), running: Sequence[AttemptKey] = ()
) -> taskmanager_pb2.RegisterRequest:
    return taskmanager_pb2.RegisterRequest(
        inventory=taskmanager_pb2.InventoryChunk(
            finished=[FinishedExecution(attempt=each.to_proto()) for each in finished],
            running=[each.to_proto() for each in running],
        )
    )


def end(finished: int = 0, running: int = 0) -> taskmanager_pb2.RegisterRequest:
    return taskmanager_pb2.RegisterRequest(
        end=taskmanager_pb2.RegisterEnd(finished_count=finished, running_count=running)
    )


HEADER = taskmanager_pb2.RegisterRequest(header=header())


# ---------------------------------------------------------------------- registering


async def test_every_job_hears_its_part_of_the_whole_inventory() -> None:
    """P23: in however many messages it came."""
    async with serving("a", "b") as it:
        answers = await it.register(
            HEADER,
            inventory([key("a", 0), key("b", 0)]),
            inventory([key("a", 1)], [key("b", 7)]),
            end(3, 1),
        )
        heard = {job_id: master.registered for job_id, master in it.jobs.running.items()}
        offered = {
            job_id: [e.attempt.subtask for e in h[0].finished] for job_id, h in heard.items()
        }
        assert offered == {"a": [0, 1], "b": [0]}
        assert [list(h[0].running) for h in heard.values()] == [[], [key("b", 7)]]
        accepted = answers[0].accepted
        assert (len(answers), accepted.leader_epoch) == (1, EPOCH)
        assert it.resources.manager.registered("tm-0", accepted.registration_id) is not None


async def test_an_inventory_that_breaks_off_registers_nobody() -> None:
    """P23: all or nothing."""
    async with serving("a") as it:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.register(HEADER, inventory([key("a", 0)]))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "a registration needs a header and an end" in str(refused.value.details())
        assert it.resources.manager.workers() == []
        assert it.jobs.running["a"].registered == []


async def test_a_registration_that_comes_after_a_later_one_changes_nothing() -> None:
    """The network had held it back: what it lists as missing has long been offered."""
    async with serving("a") as it:

        def numbered(number: int) -> taskmanager_pb2.RegisterRequest:
            header = taskmanager_pb2.RegisterHeader()
            header.CopyFrom(HEADER.header)
            header.number = number
            return taskmanager_pb2.RegisterRequest(header=header)

        await it.register(numbered(2), inventory([key("a", 0)]), end(1, 0))
        newest = it.resources.manager.workers()[0].registration_id
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.register(numbered(1), end(0, 0))
        assert refused.value.code() is grpc.StatusCode.ABORTED
        assert "registration 1 of tm-0 comes after 2" in str(refused.value.details())
        assert len(it.jobs.running["a"].registered) == 1
        assert it.resources.manager.registered("tm-0", newest) is not None
        await it.register(numbered(2), end(0, 0))  # of equal number: it was sent twice


async def test_a_call_that_is_cut_registers_nobody() -> None:
    """P23: the connection breaks before the last message."""
    async with serving("a") as it:
        call = it.stub.Register(timeout=60)
        await call.write(HEADER)
        await call.write(inventory([key("a", 0)]))
        call.cancel()
        await it.register(HEADER, end())
        assert len(it.jobs.running["a"].registered) == 1
        assert list(it.jobs.running["a"].registered[0].finished) == []


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([inventory()], "unexpected part 'inventory'"),
        ([HEADER, HEADER], "unexpected part 'header'"),
        ([HEADER, end(), inventory()], "unexpected part 'inventory'"),
        ([HEADER, inventory([key("a", 0)]), end(2)], "the inventory is incomplete: 1 finished"),
        ([HEADER, end(0, 1)], "the inventory is incomplete"),
        ([taskmanager_pb2.RegisterRequest(header=header("../tm"))], "../tm"),
        ([taskmanager_pb2.RegisterRequest(header=header(incarnation=""))], "must be given"),
        ([taskmanager_pb2.RegisterRequest(header=header(slots=0))], "must be given"),
    ],
)
def test_messages_that_are_no_registration_are_refused(
    messages: list[taskmanager_pb2.RegisterRequest], what: str
) -> None:
    """Each says what is wrong."""
    gathered = SentInventory()
    for message in messages[:-1]:
        gathered.add(message)
    with pytest.raises(ValueError, match=re.escape(what)):
        gathered.add(messages[-1])


async def test_what_is_not_wanted_is_named_with_the_reason_in_bounded_messages() -> None:
    """P25, P35: late work, and work of jobs that are over."""
    async with serving("a") as it:
        late = tuple(key("a", subtask) for subtask in range(1200))
        over = key("over", 0)
        it.jobs.running["a"].rejects = late
        answers = await it.register(HEADER, inventory([*late, over]), end(1201))
        rejected = [answer.rejected for answer in answers[1:]]
        assert [len(chunk.attempts) for chunk in rejected] == [500, 500, 200, 1]
        assert [chunk.reason for chunk in rejected] == ["late"] * 3 + ["job ended"]
        assert AttemptKey.from_proto(rejected[3].attempts[0]) == over


async def test_while_jobs_are_loaded_a_taskmanager_is_told_to_come_again() -> None:
    """Not that its jobs are unknown: it would delete them."""
    async with serving("a") as it:
        it.jobs.ready.clear()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.register(HEADER)  # and no more before it is admitted
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert it.resources.manager.workers() == []


async def test_a_call_of_a_newer_epoch_proves_that_this_leader_is_over() -> None:
    """P29: it steps down, and says who leads as far as it knows."""
    async with serving("a") as it:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.stub.Heartbeat(it.heartbeat("x", NEWER), timeout=60)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (LEADER_METADATA, "elsewhere:1") in list(refused.value.trailing_metadata() or ())
        assert it.state.deposed.is_set()


# ---------------------------------------------------------------------- staying


async def test_a_heartbeat_of_a_stranger_is_answered_with_register_again() -> None:
    """P20."""
    async with serving("a") as it:
        answer = await it.stub.Heartbeat(it.heartbeat("of an earlier life"), timeout=60)
        assert answer.register_again
        assert answer.leader_epoch == EPOCH


async def test_a_heartbeat_learns_which_of_its_jobs_have_ended() -> None:
    """P35."""
    async with serving("a") as it:
        worker = it.resources.register()
        answer = await it.stub.Heartbeat(it.heartbeat(worker.registration_id), timeout=60)
        assert not answer.register_again
        assert list(answer.ended_job_ids) == ["gone"]


async def test_reports_of_a_stranger_are_not_taken() -> None:
    """They come again after the registration, whose inventory they must not overtake."""
    async with serving("a") as it:
        worker = it.resources.register()
        report = taskmanager_pb2.ExecutionReport(
            attempt=key("a", 0).to_proto(), state=EXECUTION_STATE_FINISHED
        )
        request = taskmanager_pb2.ReportExecutionsRequest(
            leader_epoch=EPOCH, resource_id="tm-0", registration_id="old", reports=[report]
        )
        assert (await it.stub.ReportExecutions(request, timeout=60)).register_again
        assert it.jobs.running["a"].posted == []
        request.registration_id = worker.registration_id
        assert not (await it.stub.ReportExecutions(request, timeout=60)).register_again
        assert len(it.jobs.running["a"].posted) == 1


async def test_a_session_pulses_and_its_end_makes_the_leader_look() -> None:
    """The TaskManager of this test serves nothing, so the look finds it lost."""
    async with serving() as it:
        job = it.resources.add_job("a", wanted=1)
        worker, _ = it.resources.manager.register(header())
        request = taskmanager_pb2.SessionRequest(
            leader_epoch=EPOCH, resource_id="tm-0", registration_id=worker.registration_id
        )
        call = it.stub.Session(request, timeout=60)
        for _ in range(2):
            assert await call.read() == taskmanager_pb2.SessionPulse(leader_epoch=EPOCH)
        assert len(job.granted()) == 1
        call.cancel()
        await until(lambda: job.lost() == ["tm-0"], "it is lost")


async def test_a_session_ends_when_the_taskmanager_registers_anew() -> None:
    """The old stream must not look like a sign of life of the new registration."""
    async with serving() as it:
        worker = it.resources.register()
        request = taskmanager_pb2.SessionRequest(
            leader_epoch=EPOCH, resource_id="tm-0", registration_id=worker.registration_id
        )
        call = it.stub.Session(request, timeout=60)
        await call.read()
        it.resources.register()
        async with asyncio.timeout(60):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert [w.worker_id for w in it.resources.manager.workers()] == ["tm-0"]


async def test_a_taskmanager_that_leaves_is_lost_at_once() -> None:
    """With its reason in the log."""
    async with serving() as it:
        job = it.resources.add_job("a", wanted=0)
        worker = it.resources.register()
        request = taskmanager_pb2.UnregisterRequest(
            leader_epoch=EPOCH,
            resource_id="tm-0",
            registration_id=worker.registration_id,
            reason="SIGTERM",
        )
        await it.stub.Unregister(request, timeout=60)
        assert job.signals == [sig.WorkerLost("tm-0", "it left: SIGTERM")]


# ---------------------------------------------------------------------- what tasks need


async def test_splits_are_for_the_current_attempt_only() -> None:
    """An older one, or one of a job that is over, should end."""
    async with serving("a") as it:

        async def ask(job_id: str, attempt: int, received: int) -> tuple[bool, int | None]:
            asking = AttemptKey(job_id, "v", 0, attempt, EPOCH).to_proto()
            request = taskmanager_pb2.RequestSplitRequest(
                leader_epoch=EPOCH, attempt=asking, received=received
            )
            answer = await it.stub.RequestSplit(request, timeout=60)
            return answer.superseded, answer.split.index if answer.HasField("split") else None

        assert await ask("a", 1, 1) == (False, 1)
        assert await ask("a", 1, 2) == (False, None)
        assert (await ask("a", 0, 0))[0]
        assert await ask("over", 1, 0) == (True, None)


async def test_a_graph_comes_in_chunks_and_one_of_a_stranger_is_not_found() -> None:
    """It carries the job's code and may be large (P53)."""
    async with serving("a") as it:
        request = taskmanager_pb2.FetchJobGraphRequest(leader_epoch=EPOCH, job_id="a")
        chunks = [m.chunk async for m in it.stub.FetchJobGraph(request, timeout=60)]
        assert len(chunks) == 3
        assert max(map(len, chunks)) == GRAPH_CHUNK_BYTES
        graph = job_pb2.JobGraph.FromString(b"".join(chunks))
        assert graph == it.jobs.running["a"].job.graph
        request.job_id = "unknown"
        with pytest.raises(grpc.aio.AioRpcError, match="no job 'unknown' runs"):
            _ = [m async for m in it.stub.FetchJobGraph(request, timeout=60)]
