"""`holdover.Client`: what programs and the command say to a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc.aio

from holdover import ids
from holdover.client.leader import ClientTimeouts, LeaderConnection, LeaderLookup, LeaderObserver
from holdover.client.refusals import SameJobEnded, may_have_arrived
from holdover.client.results import table_of
from holdover.client.submission import BuildsJobGraph, Submission, graph_to_submit
from holdover.client.watching import StateFeed, is_terminal
from holdover.config import (
    CLIENT_FAILOVER_TIMEOUT,
    CLIENT_TIMEOUT,
    JOBMANAGER_RPC_ADDRESS,
    JOBMANAGER_RPC_PORT,
    RPC_CALL_TIMEOUT,
    Configuration,
)
from holdover.errors import JobCanceled, JobFailed, RequestRefused
from holdover.runtime import Runtime
from holdover.v1.common_pb2 import Failure, JobState
from holdover.v1.events_pb2 import JobEventRecord
from holdover.v1.job_pb2 import FileFormat, JobGraph
from holdover.v1.jobmanager_pb2 import (
    CancelJobRequest,
    DescribeJobRequest,
    FetchResultRequest,
    GetClusterResponse,
    JobStatus,
    ListJobsRequest,
    ListRecoveryReportsRequest,
    ListResultsRequest,
    ListShuffleServicesRequest,
    ListTaskManagersRequest,
    ReadJobEventsRequest,
    RecoveryReport,
    ResultFile,
    RetryJobRequest,
    RetryJobResponse,
    ShuffleServiceStatus,
    SubmitJobResponse,
    SubtaskStatus,
    TaskManagerStatus,
    WatchJobRequest,
)

if TYPE_CHECKING:
    import pyarrow as pa

    # A name that only the stub's types know.
    from holdover.v1.jobmanager_pb2_grpc import JobManagerAsyncStub

_PAGE_SIZE_MAX = 1000


@dataclass(frozen=True, slots=True)
class JobDescription:
    """A job with its vertices, and its subtasks when they were asked for."""

    status: JobStatus
    subtasks: tuple[SubtaskStatus, ...]


class Client:
    """Speaks to the leading JobManager of a cluster, whichever it is at the time.

    Use it as an async context manager. Calls survive the loss of a JobManager: they wait for the
    next leader, up to `client.failover-timeout`, and go on (P46). A cluster that was never reached
    is given up after `client.timeout`. All calls raise `ClusterUnreachable` or `NotReady` when that
    time is over, `JobNotFound` when a leader that has loaded its jobs does not know the job, and
    `RequestRefused` when the leader refuses; other errors are named at each method.
    """

    def __init__(
        self,
        address: str | Sequence[str] = (),
        config: Configuration | None = None,
        runtime: Runtime | None = None,
        *,
        leader_lookup: LeaderLookup | None = None,
        observer: LeaderObserver | None = None,
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        """No connection is made yet.

        Args:
            address: `host:port` of a JobManager, or of several that may lead. None at all means
                `jobmanager.rpc.address` and `.port`, unless there is a `leader_lookup`.
            config: options; their defaults when None. Those of `security.ssl` are for this
                machine: raises ConfigurationError when their files cannot work.
            runtime: the world; this machine when None.
            leader_lookup: finds the leader's address outside, for example in the record that
                leaders keep in their storage directory.
            observer: told when the leader is lost and found.
            timeouts: instead of those in `config`.
        """
        config = config or Configuration()
        addresses = [address] if isinstance(address, str) else list(address)
        if not addresses and leader_lookup is None:
            host, port = config.get(JOBMANAGER_RPC_ADDRESS), config.get(JOBMANAGER_RPC_PORT)
            addresses = [f"{host}:{port}"]
        self._runtime = runtime or _this_machine(config)
        self._leader = LeaderConnection(
            self._runtime, addresses, timeouts or timeouts_of(config), leader_lookup, observer
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; running calls end."""
        await self._leader.close()

    async def cluster(self) -> GetClusterResponse:
        """Who leads, and how large the cluster is; also while the leader loads its jobs."""
        return await self._leader.cluster()

    async def submit(
        self,
        job: BuildsJobGraph | JobGraph,
        job_id: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> str:
        """Submit a `Job`, or a graph, and return the job's id once the cluster has stored it.

        The id is chosen once, before the first attempt, and makes repeated attempts one submission,
        over failovers too (P42, P43). `options` win over the job's own. Raises InvalidJob (also
        JobGraphError), InvalidId, ConfigurationError, JobAlreadyExists, and RequestRefused for a
        job that is over already (P44).
        """
        graph = graph_to_submit(job, job_id, options or {}, self._runtime.randomness)
        submission = Submission(graph)
        arrived = False

        async def attempt(stub: JobManagerAsyncStub, timeout_s: float) -> SubmitJobResponse:
            nonlocal arrived
            requests = submission.requests(self._leader.epoch)
            try:
                return await stub.SubmitJob(requests, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                arrived = arrived or may_have_arrived(error)
                raise

        try:
            answer = await self._leader.call(
                attempt,
                job_id=submission.job_id,
                attempt_timeout_s=self._leader.timeouts.call_s + submission.storing_s,
            )
        except SameJobEnded:
            if not arrived:
                raise
            return submission.job_id  # an attempt whose answer was lost has run it (P43)
        return answer.job_id

    async def list_jobs(self) -> list[JobStatus]:
        """All jobs that the cluster knows, newest first, without their vertices."""
        jobs: list[JobStatus] = []
        request = ListJobsRequest(page_size=_PAGE_SIZE_MAX)
        while True:
            page = await self._leader.ask(lambda stub: stub.ListJobs, request)
            jobs.extend(page.jobs)
            if not page.next_page_token:
                return jobs
            request.page_token = page.next_page_token

    async def describe(self, job_id: str, *, subtasks: bool = False) -> JobDescription:
        """One job with its vertices; with all its subtasks, by vertex and number, when asked."""
        request = DescribeJobRequest(
            job_id=ids.job_id(job_id), subtask_page_size=_PAGE_SIZE_MAX if subtasks else 0
        )
        found: list[SubtaskStatus] = []
        while True:
            page = await self._leader.ask(lambda stub: stub.DescribeJob, request, job_id=job_id)
            found.extend(page.subtasks)
            if not page.next_page_token:
                return JobDescription(page.job, tuple(found))
            request.page_token = page.next_page_token

    async def watch(self, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """The job's status now and after each change, until it has ended, over all failovers.

        Each status has one more state in its history than the one before, or the same states and
        newer figures: every state is told exactly once, also one that came and went while no
        JobManager could be reached (P46).
        """
        feed = StateFeed()
        ended = False
        stream = self._leader.listen(
            lambda stub: stub.WatchJob,
            WatchJobRequest(job_id=ids.job_id(job_id)),
            job_id=job_id,
            is_complete=lambda: ended,
        )
        async with aclosing(stream) as messages:
            async for message in messages:
                ended = is_terminal(message.job)
                for status in feed.statuses(message.job):
                    yield status
                if ended:
                    return

    async def wait(self, job_id: str) -> JobStatus:
        """The status of the job once it has finished.

        Raises JobFailed with the failure, also for a parked job, which stays as it is until
        somebody retries or cancels it; JobCanceled.
        """
        async with aclosing(self.watch(job_id)) as statuses:
            async for status in statuses:
                raise_for_end(status)
                if status.state == JobState.JOB_STATE_FINISHED:
                    return status
        raise AssertionError("a watch ends with the job's end")

    async def cancel(self, job_id: str) -> JobState.ValueType:
        """Cancel the job; returns its state once the wish is durable."""
        request = CancelJobRequest(job_id=ids.job_id(job_id))
        answer = await self._leader.ask(lambda stub: stub.CancelJob, request, job_id=job_id)
        return answer.state

    async def retry(self, job_id: str) -> None:
        """Take up a parked job again. Raises RequestRefused for a job that is not parked.

        The leader may die of the answer: a job that an attempt of this call has taken up already is
        no mistake.
        """
        request = RetryJobRequest(job_id=ids.job_id(job_id))
        arrived = False

        async def attempt(stub: JobManagerAsyncStub, timeout_s: float) -> RetryJobResponse:
            nonlocal arrived
            request.leader_epoch = self._leader.epoch
            try:
                return await stub.RetryJob(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                arrived = arrived or may_have_arrived(error)
                raise

        try:
            await self._leader.call(attempt, job_id=job_id)
        except RequestRefused:
            if not arrived:
                raise
            described = await self.describe(job_id)
            if described.status.state == JobState.JOB_STATE_PARKED:
                raise

    async def results(self, job_id: str) -> list[ResultFile]:
        """The committed output files of a finished job, in order.

        Raises RequestRefused for a job that has not finished.
        """
        request = ListResultsRequest(job_id=ids.job_id(job_id), page_size=_PAGE_SIZE_MAX)
        files: list[ResultFile] = []
        while True:
            page = await self._leader.ask(lambda stub: stub.ListResults, request, job_id=job_id)
            files.extend(page.files)
            if not page.next_page_token:
                return files
            request.page_token = page.next_page_token

    async def fetch(self, job_id: str, file: ResultFile) -> AsyncGenerator[bytes, None]:
        """The bytes of one output file, in order, in chunks of at most 1 MiB."""
        request = FetchResultRequest(job_id=ids.job_id(job_id), index=file.index)
        stream = self._leader.listen(
            lambda stub: stub.FetchResult,
            request,
            job_id=job_id,
            is_complete=lambda: request.offset >= file.bytes,
        )
        async with aclosing(stream) as messages:
            async for message in messages:
                request.offset += len(message.chunk)  # where to go on after a break
                yield message.chunk

    async def result_table(self, job_id: str, rows_max: int | None = None) -> pa.Table:
        """The output of a finished job as one table, held in memory.

        With `rows_max`, only as many files are fetched as are needed for so many rows. The files
        of a job with several sinks must have one format. Raises RequestRefused otherwise, and for
        a job that has not finished.
        """
        contents: list[bytes] = []
        rows = 0
        files = await self.results(job_id)
        for file in files:
            if rows_max is not None and rows >= rows_max:
                break
            if file.format != files[0].format:
                raise RequestRefused(
                    f"the job's output {file.path} has another format than {files[0].path}:"
                    " read the files one by one"
                )
            contents.append(b"".join([chunk async for chunk in self.fetch(job_id, file)]))
            rows += file.rows
        table = table_of(contents, files[0].format if files else FileFormat.FILE_FORMAT_PARQUET)
        return table if rows_max is None else table.slice(0, rows_max)

    async def taskmanagers(self) -> list[TaskManagerStatus]:
        """The registered TaskManagers, by resource id."""
        request = ListTaskManagersRequest(page_size=_PAGE_SIZE_MAX)
        taskmanagers: list[TaskManagerStatus] = []
        while True:
            page = await self._leader.ask(lambda stub: stub.ListTaskManagers, request)
            taskmanagers.extend(page.taskmanagers)
            if not page.next_page_token:
                return taskmanagers
            request.page_token = page.next_page_token

    async def shuffle_services(self) -> list[ShuffleServiceStatus]:
        """The registered shuffle services, by resource id."""
        request = ListShuffleServicesRequest(page_size=_PAGE_SIZE_MAX)
        services: list[ShuffleServiceStatus] = []
        while True:
            page = await self._leader.ask(lambda stub: stub.ListShuffleServices, request)
            services.extend(page.shuffle_services)
            if not page.next_page_token:
                return services
            request.page_token = page.next_page_token

    async def events(
        self, job_id: str, from_sequence: int = 1
    ) -> AsyncGenerator[JobEventRecord, None]:
        """The job's event log as it stands, decoded, oldest first, from that sequence number."""
        request = ReadJobEventsRequest(job_id=ids.job_id(job_id), from_sequence=from_sequence)
        stream = self._leader.listen(lambda stub: stub.ReadJobEvents, request, job_id=job_id)
        async with aclosing(stream) as messages:
            async for message in messages:
                for record in message.records:
                    request.from_sequence = record.sequence + 1  # where to go on after a break
                    yield record

    async def recovery_reports(self, job_id: str) -> list[RecoveryReport]:
        """What each failover cost the job, oldest first."""
        request = ListRecoveryReportsRequest(job_id=ids.job_id(job_id))
        reports: list[RecoveryReport] = []
        while True:
            page = await self._leader.ask(
                lambda stub: stub.ListRecoveryReports, request, job_id=job_id
            )
            reports.extend(page.reports)
            if not page.next_page_token:
                return reports
            request.page_token = page.next_page_token


def raise_for_end(status: JobStatus) -> None:
    """Raise JobFailed or JobCanceled when the job has ended so, or is parked; else do nothing."""
    if status.state == JobState.JOB_STATE_FAILED:
        raise JobFailed(status.job_id, status.failure)
    if status.state == JobState.JOB_STATE_CANCELED:
        raise JobCanceled(status.job_id)
    if status.state == JobState.JOB_STATE_PARKED:
        parked = Failure()
        parked.CopyFrom(status.failure)
        parked.message = f"parked, retry or cancel it: {status.failure.message}"
        raise JobFailed(status.job_id, parked)


def timeouts_of(config: Configuration) -> ClientTimeouts:
    """The client's timeouts as configured."""
    return ClientTimeouts(
        call_s=min(config.get(RPC_CALL_TIMEOUT), config.get(CLIENT_TIMEOUT)),
        search_s=config.get(CLIENT_TIMEOUT),
        failover_s=config.get(CLIENT_FAILOVER_TIMEOUT),
    )


def _this_machine(config: Configuration) -> Runtime:
    # Only where no other world is given.
    from holdover.runtime.real import real_runtime
    from holdover.runtime.transport_security import credential_files

    return real_runtime(credentials=credential_files(config))
