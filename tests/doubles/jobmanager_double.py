"""A JobManager for clients' tests: real gRPC on loopback, scripted answers, no cluster behind it.

State (jobs, submissions) lives in `Jobs`, which outlasts the servers, as durable storage does.
"""

# ruff: noqa: N802  (methods are named by the service)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from holdover.client import is_terminal
from holdover.runtime import Runtime, Server
from holdover.v1.common_pb2 import ExecutionAttempt, JobState
from holdover.v1.events_pb2 import JobEventRecord
from holdover.v1.job_pb2 import JobGraph
from holdover.v1.jobmanager_pb2 import (
    CancelJobRequest,
    CancelJobResponse,
    DescribeJobRequest,
    DescribeJobResponse,
    FetchResultRequest,
    FetchResultResponse,
    GetClusterRequest,
    GetClusterResponse,
    JobStateEntry,
    JobStatus,
    ListJobsRequest,
    ListJobsResponse,
    ListRecoveryReportsRequest,
    ListRecoveryReportsResponse,
    ListResultsRequest,
    ListResultsResponse,
    ListShuffleServicesRequest,
    ListShuffleServicesResponse,
    ListTaskManagersRequest,
    ListTaskManagersResponse,
    ReadJobEventsRequest,
    ReadJobEventsResponse,
    RecoveryReport,
    ResultFile,
    RetryJobRequest,
    RetryJobResponse,
    ShuffleServiceStatus,
    SubmitJobRequest,
    SubmitJobResponse,
    SubtaskStatus,
    TaskManagerStatus,
    WatchJobRequest,
    WatchJobResponse,
)
from holdover.v1.jobmanager_pb2_grpc import (
    JobManagerServicer,
    add_JobManagerServicer_to_server,
)

Context = grpc.aio.ServicerContext[Any, Any]


def status(job_id: str, *states: JobState.ValueType, epoch: int = 1) -> JobStatus:
    """A job that went through these states."""
    history = [JobStateEntry(state=s, leader_epoch=epoch, wall_ms=i) for i, s in enumerate(states)]
    return JobStatus(job_id=job_id, name=job_id, state=states[-1], history=history)


async def until(condition: Callable[[], bool], what: str, within_s: float = 120) -> None:
    """Wait for something that a double counts; fails with `what` when it does not come."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"after {within_s} s still not: {what}") from None


@dataclass
class Jobs:
    """What is durable."""

    statuses: dict[str, JobStatus] = field(default_factory=dict)
    graphs: dict[str, bytes] = field(default_factory=dict)
    submissions: list[str] = field(default_factory=list)
    files: dict[str, list[tuple[ResultFile, bytes]]] = field(default_factory=dict)
    events: dict[str, list[JobEventRecord]] = field(default_factory=dict)
    reports: dict[str, list[RecoveryReport]] = field(default_factory=dict)
    taskmanagers: list[TaskManagerStatus] = field(default_factory=list)
    shuffle_services: list[ShuffleServiceStatus] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, job: JobStatus) -> None:
        """Change a job and wake its watchers."""
        self.statuses[job.job_id] = job
        async with self.changed:
            self.changed.notify_all()


class JobManagerDouble(JobManagerServicer):
    """One JobManager process. Its attributes are the test's levers."""

    def __init__(self, runtime: Runtime, jobs: Jobs, epoch: int = 1, port: int = 0) -> None:
        self._runtime = runtime
        self.jobs = jobs
        self.epoch = epoch
        self.port = port
        self.leads = True
        self.ready = True
        self.leader_address = ""
        self.silent = False
        self.lose_acknowledgements = 0
        self.acknowledge_after_s = 0.0
        self.break_fetch_after_bytes: int | None = None
        self.not_ready_answers = 0
        self.calls: list[str] = []
        self._server: Server | None = None

    @property
    def address(self) -> str:
        """host:port"""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> JobManagerDouble:
        self._server = self._runtime.network.server(f"127.0.0.1:{self.port}")
        self._server.add(add_JobManagerServicer_to_server, self)
        self.port = await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.die()

    async def die(self) -> None:
        """Break all connections."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0)

    async def _admit(self, name: str, context: Context) -> None:
        self.calls.append(name)
        if not self.leads:
            metadata = (("holdover-leader", self.leader_address),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not the leader", metadata)
        if not self.ready:
            self.not_ready_answers += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not ready, retry")

    async def GetCluster(self, request: GetClusterRequest, context: Context) -> GetClusterResponse:
        return GetClusterResponse(
            leader_epoch=self.epoch,
            is_leader=self.leads,
            ready=self.ready,
            leader_address=self.address if self.leads else self.leader_address,
            taskmanagers=3,
            slots=6,
            slots_free=6,
            shuffle_services=len(self.jobs.shuffle_services),
        )

    async def SubmitJob(
        self, request_iterator: AsyncIterator[SubmitJobRequest], context: Context
    ) -> SubmitJobResponse:
        messages = [message async for message in request_iterator]
        await self._admit("SubmitJob", context)
        header = messages[0].header
        graph = b"".join(message.chunk for message in messages[1:])
        assert len(graph) == header.graph_bytes
        known = self.jobs.graphs.get(header.job_id)
        if known is not None and known != graph:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "another graph")
        if JobGraph.FromString(graph).name == "invalid":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "vertices[0].name: is invalid")
        if known is None:
            self.jobs.graphs[header.job_id] = graph
            self.jobs.submissions.append(header.job_id)
        await asyncio.sleep(self.acknowledge_after_s)
        if self.lose_acknowledgements:
            self.lose_acknowledgements -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return SubmitJobResponse(
            leader_epoch=self.epoch, job_id=header.job_id, already_submitted=known is not None
        )

    async def ListJobs(self, request: ListJobsRequest, context: Context) -> ListJobsResponse:
        await self._admit("ListJobs", context)
        jobs = list(self.jobs.statuses.values())
        first = int(request.page_token or 0)
        following = str(first + 2) if first + 2 < len(jobs) else ""
        return ListJobsResponse(
            leader_epoch=self.epoch, jobs=jobs[first : first + 2], next_page_token=following
        )

    async def WatchJob(
        self, request: WatchJobRequest, context: Context
    ) -> AsyncIterator[WatchJobResponse]:
        await self._admit("WatchJob", context)
        while True:
            job = self.jobs.statuses.get(request.job_id)
            if job is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, "unknown job")
            yield WatchJobResponse(leader_epoch=self.epoch, job=job)
            if is_terminal(job):
                return
            if self.silent:
                await asyncio.Event().wait()
            async with self.jobs.changed:
                await self.jobs.changed.wait()

    async def _known(self, name: str, job_id: str, context: Context) -> JobStatus:
        await self._admit(name, context)
        if job_id not in self.jobs.statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown job")
        return self.jobs.statuses[job_id]

    async def DescribeJob(
        self, request: DescribeJobRequest, context: Context
    ) -> DescribeJobResponse:
        job = await self._known("DescribeJob", request.job_id, context)
        subtasks = [
            SubtaskStatus(attempt=ExecutionAttempt(vertex_id="v0", subtask=subtask), worker_id="tm")
            for subtask in range(3)
        ]
        first = int(request.page_token or 0)
        last = first + min(2, request.subtask_page_size)
        following = str(last) if first < last < len(subtasks) else ""
        return DescribeJobResponse(
            leader_epoch=self.epoch,
            job=job,
            subtasks=subtasks[first:last],
            next_page_token=following,
        )

    async def CancelJob(self, request: CancelJobRequest, context: Context) -> CancelJobResponse:
        job = await self._known("CancelJob", request.job_id, context)
        job.state = JobState.JOB_STATE_CANCELLING
        await self.jobs.put(job)
        return CancelJobResponse(leader_epoch=self.epoch, state=job.state)

    async def RetryJob(self, request: RetryJobRequest, context: Context) -> RetryJobResponse:
        job = await self._known("RetryJob", request.job_id, context)
        if job.state != JobState.JOB_STATE_PARKED:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the job is not parked")
        await self.jobs.put(status(request.job_id, JobState.JOB_STATE_RUNNING))
        if self.lose_acknowledgements:
            self.lose_acknowledgements -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return RetryJobResponse(leader_epoch=self.epoch)

    async def ListTaskManagers(
        self, request: ListTaskManagersRequest, context: Context
    ) -> ListTaskManagersResponse:
        await self._admit("ListTaskManagers", context)
        return ListTaskManagersResponse(
            leader_epoch=self.epoch, taskmanagers=self.jobs.taskmanagers
        )

    async def ListShuffleServices(
        self, request: ListShuffleServicesRequest, context: Context
    ) -> ListShuffleServicesResponse:
        await self._admit("ListShuffleServices", context)
        return ListShuffleServicesResponse(
            leader_epoch=self.epoch, shuffle_services=self.jobs.shuffle_services
        )

    async def ReadJobEvents(
        self, request: ReadJobEventsRequest, context: Context
    ) -> AsyncIterator[ReadJobEventsResponse]:
        await self._known("ReadJobEvents", request.job_id, context)
        for record in self.jobs.events[request.job_id]:
            if record.sequence >= request.from_sequence:
                yield ReadJobEventsResponse(leader_epoch=self.epoch, records=[record])

    async def ListRecoveryReports(
        self, request: ListRecoveryReportsRequest, context: Context
    ) -> ListRecoveryReportsResponse:
        await self._known("ListRecoveryReports", request.job_id, context)
        return ListRecoveryReportsResponse(
            leader_epoch=self.epoch, reports=self.jobs.reports.get(request.job_id, [])
        )

    async def ListResults(
        self, request: ListResultsRequest, context: Context
    ) -> ListResultsResponse:
        await self._admit("ListResults", context)
        files = [file for file, _ in self.jobs.files[request.job_id]]
        return ListResultsResponse(leader_epoch=self.epoch, files=files)

    async def FetchResult(
        self, request: FetchResultRequest, context: Context
    ) -> AsyncIterator[FetchResultResponse]:
        await self._admit("FetchResult", context)
        _, content = self.jobs.files[request.job_id][request.index]
        for start in range(request.offset, len(content), 4):
            limit = self.break_fetch_after_bytes
            if limit is not None and start >= limit:
                self.break_fetch_after_bytes = None
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            chunk = content[start : start + 4]
            yield FetchResultResponse(leader_epoch=self.epoch, chunk=chunk)
