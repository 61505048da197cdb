"""What clients are told, by the real client over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from holdover.client.leader import ClientTimeouts
from holdover.errors import InvalidJob, JobNotFound, NotReady, RequestRefused
from holdover.runtime import GRPC_MESSAGE_BYTES_MAX
from holdover.runtime.real import real_runtime
from holdover.v1 import archive_pb2, common_pb2, job_pb2, jobmanager_pb2
from holdover.v1.jobmanager_pb2_grpc import JobManagerStub
from jobmanager.client_service import ClientService, Context
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.leader_lives import InstantTaskManager, three_sinks
from tests.unit.jobmanager.leader_server import serving
from tests.unit.jobmanager.scheduler.job_graphs import HASH, connect, source, stage

FINISHED, FAILED = common_pb2.JOB_STATE_FINISHED, common_pb2.JOB_STATE_FAILED
LONG_TRACEBACK = "x" * 60_000


class AcknowledgesTooLate(ClientService):
    """Takes every submission, and lets the first two clients wait until they give up."""

    waiting = 0

    async def SubmitJob(  # noqa: N802
        self, request_iterator: AsyncIterator[jobmanager_pb2.SubmitJobRequest], context: Context
    ) -> jobmanager_pb2.SubmitJobResponse:
        answer = await super().SubmitJob(request_iterator, context)
        self.waiting += 1
        if self.waiting <= 2:
            await asyncio.Event().wait()
        return answer


async def test_a_submission_that_was_acknowledged_too_late_is_one_job_though_it_is_over() -> None:
    """P43: the client's retries meet a job that runs, or that has ended meanwhile."""
    taskmanager = InstantTaskManager(SimulatedStorage())
    hasty = ClientTimeouts(call_s=1, search_s=60, failover_s=60)
    async with serving(taskmanager, AcknowledgesTooLate, timeouts=hasty) as it:
        assert await it.client.submit(three_sinks()) == "job"
        assert (await it.client.wait("job")).state == FINISHED
    assert len(set(taskmanager.ran)) == len(taskmanager.ran) == 10


async def test_a_job_that_is_over_is_refused_in_words_to_who_submits_it_anew() -> None:
    """P44: it must not look as if it had run again."""
    async with serving(InstantTaskManager(SimulatedStorage())) as it:
        await it.client.submit(three_sinks())
        await it.client.wait("job")
        with pytest.raises(RequestRefused, match=r"already ended \(FINISHED\).*another job id"):
            await it.client.submit(three_sinks())


async def test_a_leader_that_loads_its_jobs_never_says_that_one_is_unknown() -> None:
    """P46: also not to a client that polls from its first moment; afterwards it may."""
    async with serving(InstantTaskManager(SimulatedStorage()), in_office=False) as it:
        async with real_runtime().network.channel(it.state.address) as channel:
            request = jobmanager_pb2.DescribeJobRequest(job_id="job")
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await JobManagerStub(channel).DescribeJob(request, timeout=60)
                assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
                assert (refusal.value.details() or "").startswith("not ready, retry")
        assert (await it.client.cluster()).ready is False
        waiting = asyncio.ensure_future(it.client.describe("job"))
        await it.leader.take_office()
        with pytest.raises(JobNotFound):
            await waiting


async def test_a_graph_with_a_cycle_is_refused() -> None:
    """A graph made by hand, not by the API."""
    graph = job_pb2.JobGraph(
        job_id="job", name="job", vertices=[source("s", 1), stage("a", 1), stage("b", 1)]
    )
    for producer, consumer in (("s", "a"), ("b", "a"), ("a", "b")):
        connect(graph, producer, consumer, HASH, 1)
    async with serving(InstantTaskManager(SimulatedStorage())) as it:
        with pytest.raises(InvalidJob, match="cycle"):
            await it.client.submit(graph)


async def send(address: str, *messages: jobmanager_pb2.SubmitJobRequest) -> str:
    """Submit by hand; what the refusal says."""
    async with real_runtime().network.channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await JobManagerStub(channel).SubmitJob(iter(messages), timeout=60)
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        return refusal.value.details() or ""


async def test_messages_that_are_no_submission_are_refused_by_field() -> None:
    """INVALID_ARGUMENT, and the name of what is wrong."""
    request, header = jobmanager_pb2.SubmitJobRequest, jobmanager_pb2.SubmitHeader
    graph = three_sinks().SerializeToString()
    async with serving(InstantTaskManager(SimulatedStorage())) as it:
        address = it.state.address
        assert "header:" in await send(address, request(chunk=graph))
        announced = header(job_id="job", graph_bytes=len(graph) + 1)
        told = await send(address, request(header=announced), request(chunk=graph))
        assert told == f"graph_bytes: {len(graph) + 1} announced, {len(graph)} received"
        damaged = header(job_id="job", graph_bytes=len(graph), graph_crc32c=1)
        assert "graph_crc32c: the graph was damaged on the way" in await send(
            address, request(header=damaged), request(chunk=graph)
        )


async def test_lists_of_any_size_come_in_messages_below_the_limit() -> None:
    """P53: failed jobs with long tracebacks, more than one message can carry."""
    count = 400
    async with serving(InstantTaskManager(SimulatedStorage())) as it:
        for index in range(count):
            failure = common_pb2.Failure(message="failed", traceback=LONG_TRACEBACK)
            status = jobmanager_pb2.JobStatus(
                job_id=f"job-{index}", state=FAILED, failure=failure, ended_wall_ms=index
            )
            await it.leader.store.archive(archive_pb2.ArchivedJob(status=status))
        assert count * len(LONG_TRACEBACK) > GRPC_MESSAGE_BYTES_MAX
        listed = await it.client.list_jobs()
    assert [status.job_id for status in listed] == [f"job-{i}" for i in reversed(range(count))]


async def test_an_answer_over_the_limit_is_an_error_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P53: RESOURCE_EXHAUSTED is not retried unchanged."""
    monkeypatch.setattr("jobmanager.client_service.PAGE_BYTES_MAX", 1 << 40)
    async with serving(InstantTaskManager(SimulatedStorage())) as it:
        for index in range(300):
            failure = common_pb2.Failure(traceback=LONG_TRACEBACK)
            status = jobmanager_pb2.JobStatus(job_id=f"job-{index}", state=FAILED, failure=failure)
            await it.leader.store.archive(archive_pb2.ArchivedJob(status=status))
        async with asyncio.timeout(60):
            with pytest.raises(RequestRefused, match="larger than max"):
                await it.client.list_jobs()


@pytest.mark.blocking_allowed("the loop is to be kept busy with a large job")
async def test_a_job_with_5000_tasks_is_described() -> None:
    """P53"""
    job = job_pb2.JobGraph(job_id="job", name="job", vertices=[source("s", 2500), stage("m", 2500)])
    job.vertices[0].operators[0].source.sequence.end = 2500
    connect(job, "s", "m", HASH, 2500)
    taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset({"s"}))
    async with serving(taskmanager) as it:
        await it.client.submit(job)

        async def all_there() -> bool:
            return (await it.client.describe("job")).status.subtasks_total == 5000

        await it.leader.until(all_there, "both vertices are initialized")
        described = await it.client.describe("job", subtasks=True)
    assert len(described.subtasks) == 5000
    assert described.status.ByteSize() < GRPC_MESSAGE_BYTES_MAX
    names = {(s.attempt.vertex_id, s.attempt.subtask) for s in described.subtasks}
    assert names == {(vertex, subtask) for vertex in "sm" for subtask in range(2500)}


async def test_a_client_that_finds_no_ready_leader_in_time_says_so() -> None:
    """P46: "not ready" is an answer of its own."""
    impatient = ClientTimeouts(call_s=5, search_s=5, failover_s=2)
    it = serving(InstantTaskManager(SimulatedStorage()), timeouts=impatient, in_office=False)
    async with it as leader:
        with pytest.raises(NotReady, match="does not answer yet"):
            await leader.client.list_jobs()
