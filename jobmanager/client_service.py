"""The JobManager service: what clients call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import TypeVar

import google_crc32c
import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from holdover.config import HIGH_AVAILABILITY_CLUSTER_ID
from holdover.errors import JobAlreadyExists, JobGraphError, JobNotFound, StorageError
from holdover.jobgraph import GRAPH_BYTES_MAX
from holdover.v1 import common_pb2, job_pb2, jobmanager_pb2, jobmanager_pb2_grpc
from jobmanager.dispatcher import JobEndedAlready, LeaderEnds, TooLateToCancel
from jobmanager.event_store import EventStoreDegraded, LogUnreadable, stream_log
from jobmanager.job_master import JobMaster
from jobmanager.job_status import held_by_workers, subtask_status
from jobmanager.job_store import JobAlreadyEnded
from jobmanager.leader_state import LeadershipServices, LeaderState
from jobmanager.scheduler.states import JobState

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000
#: Bytes of the entries of one page or message, far below the largest that gRPC carries (P53).
PAGE_BYTES_MAX = 4 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
EVENTS_PER_MESSAGE = 200
WATCH_INTERVAL_S = 0.1
WATCH_SILENCE_S_MAX = 2.0
SAME_JOB_ENDED_METADATA = "holdover-same-job-ended"

Context = grpc.aio.ServicerContext[object, object]
MessageT = TypeVar("MessageT", bound=Message)


class ClientService(jobmanager_pb2_grpc.JobManagerServicer):
    """Serves clients; while this process does not lead, it says who does."""

    def __init__(self, state: LeaderState) -> None:
        self._state = state

    async def GetCluster(  # noqa: N802
        self, request: jobmanager_pb2.GetClusterRequest, context: Context
    ) -> jobmanager_pb2.GetClusterResponse:
        """See the proto; answered whether this process leads or not."""
        state = self._state
        services = state.services
        answer = jobmanager_pb2.GetClusterResponse(
            leader_epoch=state.known_epoch,
            leader_address=state.known_address,
            version=state.version,
            cluster_id=state.config.get(HIGH_AVAILABILITY_CLUSTER_ID),
            loop_lag_max_ms=round(state.lag.max_lag_s * 1000),
        )
        if services is None:
            return answer
        slots, slots_free = services.resources.slot_counts()
        answer.is_leader = True
        answer.ready = services.dispatcher.ready.is_set()
        answer.shuffle_services = services.resources.shuffle_service_count
        answer.taskmanagers = services.resources.worker_count - answer.shuffle_services
        answer.slots, answer.slots_free = slots, slots_free
        answer.leader_since_wall_ms = services.since_wall_ms
        answer.reconciling_job_ids.extend(
            master.job_id
            for master in services.dispatcher.masters()
            if master.scheduler.graph.state is JobState.RECONCILING
        )
        return answer

    async def SubmitJob(  # noqa: N802
        self,
        request_iterator: AsyncIterator[jobmanager_pb2.SubmitJobRequest],
        context: Context,
    ) -> jobmanager_pb2.SubmitJobResponse:
        """See the proto."""
        header, graph = await _receive_graph(request_iterator, context)
        services = await self._state.leading(context, header.leader_epoch)
        try:
            known = await services.dispatcher.submit(graph)
        except JobGraphError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except JobAlreadyExists as error:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
        except JobAlreadyEnded as error:
            # A client whose earlier attempt was not answered knows by this that it was taken.
            same = ((SAME_JOB_ENDED_METADATA, ""),) if error.same_graph else ()
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), same)
        except StorageError as error:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"the job cannot be stored: {error}"
            )
        except (OSError, LeaderEnds) as error:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, f"the job cannot be stored at present: {error}"
            )
        return jobmanager_pb2.SubmitJobResponse(
            leader_epoch=services.epoch, job_id=graph.job_id, already_submitted=known
        )

    async def ListJobs(  # noqa: N802
        self, request: jobmanager_pb2.ListJobsRequest, context: Context
    ) -> jobmanager_pb2.ListJobsResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        statuses = await services.dispatcher.list_statuses()
        start, size = await _page(request.page_size, request.page_token, context)
        page, token = _slice(statuses, start, size)
        return jobmanager_pb2.ListJobsResponse(
            leader_epoch=services.epoch, jobs=page, next_page_token=token
        )

    async def DescribeJob(  # noqa: N802
        self, request: jobmanager_pb2.DescribeJobRequest, context: Context
    ) -> jobmanager_pb2.DescribeJobResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        status = await self._status(services, request.job_id, context)
        answer = jobmanager_pb2.DescribeJobResponse(leader_epoch=services.epoch, job=status)
        master = services.dispatcher.master(request.job_id)
        if request.subtask_page_size and master is not None:
            size_wanted, token = request.subtask_page_size, request.page_token
            start, size = await _page(size_wanted, token, context)
            graph = master.scheduler.graph
            page = list(islice(graph.all_subtasks(), start, start + size + 1))
            answer.subtasks.extend(subtask_status(graph, vertex) for vertex in page[:size])
            answer.next_page_token = str(start + size) if len(page) > size else ""
        return answer

    async def _status(
        self, services: LeadershipServices, job_id: str, context: Context
    ) -> jobmanager_pb2.JobStatus:
        try:
            return await services.dispatcher.status(job_id)
        except (JobNotFound, ValueError) as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise AssertionError("abort raises") from error
        except StorageError as error:
            await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
            raise AssertionError("abort raises") from error
        except OSError as error:  # it passes, and is not the end of the job (P46)
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"storage does not answer: {error}")
            raise AssertionError("abort raises") from error

    async def WatchJob(  # noqa: N802
        self, request: jobmanager_pb2.WatchJobRequest, context: Context
    ) -> AsyncIterator[jobmanager_pb2.WatchJobResponse]:
        """See the proto. A change is told within 100 ms, and silence never lasts longer than 2
        s.
        """
        services = await self._state.leading(context, request.leader_epoch)
        while self._state.services is services:
            master = services.dispatcher.master(request.job_id)
            version = master.version if master else 0
            status = await self._status(services, request.job_id, context)
            yield jobmanager_pb2.WatchJobResponse(leader_epoch=services.epoch, job=status)
            if master is None:
                if status.state != common_pb2.JOB_STATE_PARKED:
                    return
                await asyncio.sleep(WATCH_SILENCE_S_MAX)
                continue
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self._change(services, master, version)
        await self._state.leading(context, services.epoch)

    async def _change(self, services: LeadershipServices, master: JobMaster, version: int) -> None:
        """Wait for a change of the job, its end, or the longest silence."""
        try:
            async with asyncio.timeout(WATCH_SILENCE_S_MAX):
                await master.changed(version)
        except TimeoutError:
            return

    async def CancelJob(  # noqa: N802
        self, request: jobmanager_pb2.CancelJobRequest, context: Context
    ) -> jobmanager_pb2.CancelJobResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        try:
            state = await services.dispatcher.cancel(request.job_id)
        except (JobNotFound, ValueError) as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except JobEndedAlready as error:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"the job has ended already: {error}"
            )
        except TooLateToCancel:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "too late to cancel: the job's output is being published",
            )
        except (EventStoreDegraded, OSError) as error:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, f"the wish is not durable yet: {error}"
            )
        return jobmanager_pb2.CancelJobResponse(leader_epoch=services.epoch, state=state)

    async def RetryJob(  # noqa: N802
        self, request: jobmanager_pb2.RetryJobRequest, context: Context
    ) -> jobmanager_pb2.RetryJobResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        try:
            await services.dispatcher.retry(request.job_id)
        except JobNotFound:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"job {request.job_id!r} is not parked"
            )
        except (StorageError, OSError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return jobmanager_pb2.RetryJobResponse(leader_epoch=services.epoch)

    async def ListResults(  # noqa: N802
        self, request: jobmanager_pb2.ListResultsRequest, context: Context
    ) -> jobmanager_pb2.ListResultsResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        files = await self._results(services, request.job_id, context)
        start, size = await _page(request.page_size or PAGE_SIZE_MAX, request.page_token, context)
        page, token = _slice(files, start, size)
        return jobmanager_pb2.ListResultsResponse(
            leader_epoch=services.epoch, files=page, next_page_token=token
        )

    async def _results(
        self, services: LeadershipServices, job_id: str, context: Context
    ) -> Sequence[jobmanager_pb2.ResultFile]:
        status = await self._status(services, job_id, context)
        if status.state != common_pb2.JOB_STATE_FINISHED:
            state = common_pb2.JobState.Name(status.state).removeprefix("JOB_STATE_")
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"job {job_id!r} has no result: it is {state}"
            )
        return (await services.dispatcher.archived(job_id)).result_files

    async def FetchResult(  # noqa: N802
        self, request: jobmanager_pb2.FetchResultRequest, context: Context
    ) -> AsyncIterator[jobmanager_pb2.FetchResultResponse]:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        files = await self._results(services, request.job_id, context)
        if not 0 <= request.index < len(files):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"index: the job has {len(files)} result files, not one of index {request.index}",
            )
        file = files[request.index]
        offset = request.offset
        try:
            while offset < file.bytes:
                chunk = await self._state.runtime.disk.read(file.path, offset, CHUNK_BYTES)
                if not chunk:
                    break
                offset += len(chunk)
                yield jobmanager_pb2.FetchResultResponse(chunk=chunk, leader_epoch=services.epoch)
        except OSError as error:
            await context.abort(
                grpc.StatusCode.DATA_LOSS, f"the output {file.path} cannot be read: {error}"
            )
        if offset != file.bytes:
            await context.abort(
                grpc.StatusCode.DATA_LOSS,
                f"the output {file.path} was changed since it was written",
            )

    async def ListTaskManagers(  # noqa: N802
        self, request: jobmanager_pb2.ListTaskManagersRequest, context: Context
    ) -> jobmanager_pb2.ListTaskManagersResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        held = held_by_workers(m.scheduler.graph for m in services.dispatcher.masters())
        statuses = [
            services.resources.describe(worker, *held.get(worker.worker_id, (0, 0)))
            for worker in services.resources.taskmanagers()
        ]
        start, size = await _page(request.page_size, request.page_token, context)
        page, token = _slice(statuses, start, size)
        return jobmanager_pb2.ListTaskManagersResponse(
            leader_epoch=services.epoch, taskmanagers=page, next_page_token=token
        )

    async def ListShuffleServices(  # noqa: N802
        self, request: jobmanager_pb2.ListShuffleServicesRequest, context: Context
    ) -> jobmanager_pb2.ListShuffleServicesResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        held = held_by_workers(m.scheduler.graph for m in services.dispatcher.masters())
        statuses = [
            services.resources.describe_shuffle_service(worker, *held.get(worker.worker_id, (0, 0)))
            for worker in services.resources.shuffle_services()
        ]
        start, size = await _page(request.page_size, request.page_token, context)
        page, token = _slice(statuses, start, size)
        return jobmanager_pb2.ListShuffleServicesResponse(
            leader_epoch=services.epoch, shuffle_services=page, next_page_token=token
        )

    async def ReadJobEvents(  # noqa: N802
        self, request: jobmanager_pb2.ReadJobEventsRequest, context: Context
    ) -> AsyncIterator[jobmanager_pb2.ReadJobEventsResponse]:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        await self._status(services, request.job_id, context)
        if not services.dispatcher.knows(request.job_id):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the job has ended; its event log was deleted (its summary is kept)",
            )
        directory = services.store.events_directory(request.job_id)
        disk = self._state.runtime.disk
        pages = stream_log(disk, directory, from_sequence=request.from_sequence)
        try:
            async with aclosing(pages):
                async for page in pages:
                    for records in _fitting(page, EVENTS_PER_MESSAGE):
                        yield jobmanager_pb2.ReadJobEventsResponse(
                            leader_epoch=services.epoch, records=records
                        )
        except (LogUnreadable, OSError) as error:
            await context.abort(grpc.StatusCode.DATA_LOSS, str(error))

    async def ListRecoveryReports(  # noqa: N802
        self, request: jobmanager_pb2.ListRecoveryReportsRequest, context: Context
    ) -> jobmanager_pb2.ListRecoveryReportsResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        await self._status(services, request.job_id, context)
        try:
            reports = await services.dispatcher.recovery_reports(request.job_id)
        except (StorageError, OSError) as error:
            await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
        start, size = await _page(request.page_size, request.page_token, context)
        page, token = _slice(reports, start, size)
        return jobmanager_pb2.ListRecoveryReportsResponse(
            leader_epoch=services.epoch, reports=page, next_page_token=token
        )


async def _receive_graph(
    messages: AsyncIterator[jobmanager_pb2.SubmitJobRequest], context: Context
) -> tuple[jobmanager_pb2.SubmitHeader, job_pb2.JobGraph]:
    """The header and the graph of a submission; ends the call when they do not fit together."""
    header: jobmanager_pb2.SubmitHeader | None = None
    received = bytearray()
    problem = ""
    async for message in messages:
        if message.HasField("header"):
            header = message.header
        else:
            received += message.chunk
        if len(received) > GRAPH_BYTES_MAX:
            problem = f"graph_bytes: a job graph has at most {GRAPH_BYTES_MAX} bytes"
            break
    graph = job_pb2.JobGraph()
    if not problem and header is None:
        problem = "header: the first message must be a header"
    elif not problem and header is not None:
        if header.graph_bytes != len(received):
            problem = f"graph_bytes: {header.graph_bytes} announced, {len(received)} received"
        elif header.graph_crc32c != google_crc32c.value(bytes(received)):
            problem = "graph_crc32c: the graph was damaged on the way; submit again"
        else:
            try:
                graph.ParseFromString(bytes(received))
            except DecodeError:
                problem = "chunk: the bytes are not a JobGraph"
            if not problem and graph.job_id != header.job_id:
                problem = f"job_id: the header says {header.job_id!r}, the graph {graph.job_id!r}"
    if problem:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
    assert header is not None
    return header, graph


async def _page(size: int, token: str, context: Context) -> tuple[int, int]:
    """(first index, number of entries) of a page."""
    if token and not token.isdigit():
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "page_token: must come from the answer before"
        )
    if size < 0:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "page_size: must not be negative")
    return int(token or 0), min(size or PAGE_SIZE, PAGE_SIZE_MAX)


def _slice(entries: Sequence[MessageT], start: int, size: int) -> tuple[list[MessageT], str]:
    """A page, and the token of the next one: at most `size` entries, and no more than fit (P53)."""
    page = next(_fitting(entries[start : start + size], size), [])
    end = start + len(page)
    return page, str(end) if len(entries) > end else ""


def _fitting(entries: Iterable[MessageT], count_max: int) -> Iterator[list[MessageT]]:
    """Groups of entries that fit into one message each; a single large one stands alone."""
    group: list[MessageT] = []
    size = 0
    for entry in entries:
        size += entry.ByteSize()
        if group and (len(group) == count_max or size > PAGE_BYTES_MAX):
            yield group
            group, size = [], entry.ByteSize()
        group.append(entry)
    if group:
        yield group
