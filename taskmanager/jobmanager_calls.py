"""What the TaskManager asks of its JobManager beside heartbeats. All of it is repeated until it is
answered or no longer wanted."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import grpc

from holdover.coordination.jobmanager_connection import JobManagerConnection, Registration
from holdover.coordination.rpc_call import CallFailed, answer
from holdover.ids import AttemptKey
from holdover.runtime.log import Log
from holdover.v1.taskmanager_pb2 import (
    FetchJobGraphRequest,
    ReportExecutionsRequest,
    RequestSplitRequest,
    RequestSplitResponse,
)
from taskmanager.report_queue import ReportQueue

if TYPE_CHECKING:
    from holdover.v1.taskmanager_pb2_grpc import ResourceManagerAsyncStub

_log = Log(__name__)

#: Bounds of one call's reports, far below the largest gRPC message (P53).
_REPORTS_MAX = 500
_REPORT_BYTES_MAX = 4 * 1024 * 1024
#: How long a RUNNING report waits for company: most tasks end soon, and are reported once.
_RUNNING_REPORT_DELAY_S = 0.02
#: Pause after a failed call, doubled up to the largest.
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
#: Bound of a fetched job graph; the JobManager accepts no larger ones.
_GRAPH_BYTES_MAX = 256 * 1024 * 1024
#: How long a job graph may take to arrive, all tries together.
_GRAPH_TIMEOUT_S = 60.0


class JobManagerCalls:
    """Calls by way of whatever connection holds."""

    def __init__(
        self, connection: JobManagerConnection, resource_id: str, call_timeout_s: float
    ) -> None:
        self._connection = connection
        self._resource_id = resource_id
        self._call_timeout_s = call_timeout_s
        #: Set when reports are to be sent, and when that is so of those that wait for company.
        self._reports_due = asyncio.Event()
        self._due_timer: asyncio.TimerHandle | None = None

    def wake_reporter(self, *, urgent: bool = True) -> None:
        """Something was added to the queue. If not urgent it waits a moment for company."""
        if urgent:
            self._reports_due.set()
        elif self._due_timer is None:
            loop = asyncio.get_running_loop()
            self._due_timer = loop.call_later(_RUNNING_REPORT_DELAY_S, self._reports_due.set)

    async def report(self, queue: ReportQueue) -> None:
        """Send what is queued, for ever; a loop for a `Supervisor`."""
        backoff = _Backoff()
        self._reports_due.set()
        while True:
            await self._reports_due.wait()
            taken = await self._report_some(queue)
            if taken:
                backoff = _Backoff()
            elif taken is False:
                await backoff.pause()
            if len(queue):
                self.wake_reporter(urgent=queue.urgent or not taken)

    async def _report_some(self, queue: ReportQueue) -> bool | None:
        """Whether the JobManager has taken the oldest reports; None when there are none any more.
        Nothing of them is kept by a TaskManager that has none."""
        registration, stub = await self._connection.connected()
        self._reports_due.clear()
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        taken = queue.take(_REPORTS_MAX, _REPORT_BYTES_MAX)
        if not taken:
            return None
        request = ReportExecutionsRequest(
            leader_epoch=registration.epoch,
            resource_id=self._resource_id,
            reports=[report for _, report in taken],
            registration_id=registration.registration_id,
        )
        if not await self._send_reports(registration, stub, request):
            return False
        queue.acknowledge(taken)
        return True

    async def _send_reports(
        self,
        registration: Registration,
        stub: ResourceManagerAsyncStub,
        request: ReportExecutionsRequest,
    ) -> bool:
        """Whether the JobManager has taken them."""
        try:
            response = await answer(
                lambda: stub.ReportExecutions(request, timeout=self._call_timeout_s)
            )
        except CallFailed as failed:
            if not failed.transient:
                _log.error("the JobManager refuses reports", reason=failed)
            self._connection.suspect()
            return False
        if response.register_again:
            self._connection.register_again(registration.registration_id)
        return not response.register_again

    async def request_split(self, key: AttemptKey, received: int) -> RequestSplitResponse:
        """See `SplitSource.request_split`. An attempt of an older leader is superseded."""
        backoff = _Backoff()
        while True:
            registration, stub = await self._connection.connected()
            if registration.epoch != key.epoch:
                return RequestSplitResponse(leader_epoch=registration.epoch, superseded=True)
            request = RequestSplitRequest(
                leader_epoch=registration.epoch, attempt=key.to_proto(), received=received
            )
            try:
                return await answer(partial(self._ask_split, stub, request))
            except CallFailed as failed:
                if not failed.transient:
                    raise
            self._connection.suspect()
            await backoff.pause()

    async def _ask_split(
        self, stub: ResourceManagerAsyncStub, request: RequestSplitRequest
    ) -> RequestSplitResponse:
        return await stub.RequestSplit(request, timeout=self._call_timeout_s)

    async def fetch_job_graph(self, job_id: str) -> bytes:
        """The serialized graph of a job. Raises `CallFailed`."""
        backoff = _Backoff()
        try:
            async with asyncio.timeout(_GRAPH_TIMEOUT_S):
                while True:
                    registration, stub = await self._connection.connected()
                    request = FetchJobGraphRequest(leader_epoch=registration.epoch, job_id=job_id)
                    try:
                        return await answer(partial(self._read_graph, stub, request))
                    except CallFailed as failed:
                        if not failed.transient:
                            raise
                    self._connection.suspect()
                    await backoff.pause()
        except TimeoutError as error:
            raise CallFailed(f"no JobManager sent it within {_GRAPH_TIMEOUT_S:g} s") from error

    async def _read_graph(
        self, stub: ResourceManagerAsyncStub, request: FetchJobGraphRequest
    ) -> bytes:
        data = bytearray()
        async for response in stub.FetchJobGraph(request, timeout=self._call_timeout_s):
            data += response.chunk
            if len(data) > _GRAPH_BYTES_MAX:
                raise CallFailed(
                    f"it is larger than {_GRAPH_BYTES_MAX} bytes", grpc.StatusCode.OUT_OF_RANGE
                )
        return bytes(data)


class _Backoff:
    """Pauses between repetitions of one call."""

    def __init__(self) -> None:
        self._pause_s = _BACKOFF_FIRST_S

    async def pause(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _BACKOFF_MAX_S)
