"""A JobManager for TaskManagers' tests: gRPC on loopback, scripted answers, no jobs behind it."""

# ruff: noqa: N802  (methods are named by the service)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from holdover.ids import AttemptKey
from holdover.runtime import Runtime, Server
from holdover.v1.common_pb2 import ExecutionState, FinishedExecution
from holdover.v1.job_pb2 import JobGraph, Split
from holdover.v1.taskmanager_pb2 import (
    DeployTasksRequest,
    DeployTasksResponse,
    ExecutionReport,
    FetchJobGraphRequest,
    FetchJobGraphResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterAccepted,
    RegisterAdmitted,
    RegisterHeader,
    RegisterRequest,
    RegisterResponse,
    RejectedChunk,
    ReportExecutionsRequest,
    ReportExecutionsResponse,
    RequestSplitRequest,
    RequestSplitResponse,
    SessionPulse,
    SessionRequest,
    TaskDeployment,
    UnregisterRequest,
    UnregisterResponse,
)
from holdover.v1.taskmanager_pb2_grpc import (
    ResourceManagerServicer,
    TaskExecutorStub,
    add_ResourceManagerServicer_to_server,
)

if TYPE_CHECKING:
    from holdover.v1.taskmanager_pb2_grpc import TaskExecutorAsyncStub

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass
class SeenRegistration:
    """What a TaskManager said when it registered."""

    header: RegisterHeader
    registration_id: str
    finished: list[FinishedExecution]
    running: list[AttemptKey]

    @property
    def finished_keys(self) -> list[AttemptKey]:
        """The attempts that are offered, sorted."""
        return sorted(AttemptKey.from_proto(execution.attempt) for execution in self.finished)


@dataclass
class ResourceManagerDouble(ResourceManagerServicer):
    """One leadership. What it does is set by its fields, what it saw is in its lists."""

    runtime: Runtime
    epoch: int
    graphs: dict[str, JobGraph] = field(default_factory=dict)
    heartbeat_interval_s: float = 0.2
    heartbeat_timeout_s: float = 2.0
    ready: bool = True
    rejects: Callable[[AttemptKey], bool] = lambda _: False
    #: Break the registration off after so many messages, once.
    break_off_after: int | None = None
    #: Answer reports with "register again", once.
    forgets: bool = False
    #: Answer no heartbeat.
    frozen: bool = False
    splits: int = 0
    ended_jobs: list[str] = field(default_factory=list)
    registrations: list[SeenRegistration] = field(default_factory=list)
    register_calls: int = 0
    largest_chunk: int = 0
    heartbeats: list[HeartbeatRequest] = field(default_factory=list)
    reports: list[ExecutionReport] = field(default_factory=list)
    graph_fetches: list[str] = field(default_factory=list)
    unregistered: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    server: Server | None = None
    port: int = 0
    _channels: list[grpc.aio.Channel] = field(default_factory=list)

    async def start(self, port: int = 0) -> int:
        """Serve on the port; returns it."""
        self.server = self.runtime.network.server(f"127.0.0.1:{port}")
        self.server.add(add_ResourceManagerServicer_to_server, self)
        self.port = await self.server.start()
        return self.port

    async def vanish(self) -> None:
        """Cut all connections at once, as a killed process does."""
        for channel in self._channels:
            await channel.close()
        self._channels.clear()
        if self.server is not None:
            await self.server.stop(0)
            self.server = None

    @property
    def current(self) -> SeenRegistration:
        """The newest registration."""
        return self.registrations[-1]

    def executor(self) -> TaskExecutorAsyncStub:
        """The way back to the TaskManager that registered last."""
        channel = self.runtime.network.channel(self.current.header.address)
        self._channels.append(channel)
        return TaskExecutorStub(channel)

    async def deploy(self, *tasks: tuple[AttemptKey, int]) -> DeployTasksResponse:
        """Deploy attempts into slots."""
        return await self.executor().DeployTasks(
            DeployTasksRequest(
                leader_epoch=self.epoch,
                registration_id=self.current.registration_id,
                tasks=[
                    TaskDeployment(attempt=key.to_proto(), slot=slot, parallelism=1)
                    for key, slot in tasks
                ],
            ),
            timeout=5,
        )

    def states(self, key: AttemptKey) -> list[str]:
        """The states that were reported of an attempt, in order, without RUNNING."""
        names = [
            ExecutionState.Name(report.state).removeprefix("EXECUTION_STATE_")
            for report in self.reports
            if AttemptKey.from_proto(report.attempt) == key
        ]
        return [name for name in names if name != "RUNNING"]

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
        """Wait for something that this JobManager sees; fails with what it saw."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise AssertionError(
                f"not within {timeout_s} s: {what}; registrations {self.registrations},"
                f" reports {self.reports}"
            ) from None

    async def until_state(self, key: AttemptKey, state: str) -> None:
        """Wait until the attempt was reported in this state, and in no other but RUNNING."""
        await self.until(lambda: self.states(key) == [state], f"{key} {state}")

    # ------------------------------------------------------------------ the service

    async def Register(
        self, request_iterator: AsyncIterator[RegisterRequest], context: Context
    ) -> AsyncIterator[RegisterResponse]:
        self.register_calls += 1
        self.changed.set()
        if not self.ready:
            # As the JobManager does: a refusal that comes while the caller still writes is lost in
            # its own failed write, and shows there as INTERNAL (grpc/grpc#36066).
            await anext(request_iterator)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not ready, retry")
        seen = SeenRegistration(RegisterHeader(), f"r{len(self.registrations)}", [], [])
        messages = 0
        async for request in request_iterator:
            messages += 1
            if messages == self.break_off_after:
                self.break_off_after = None
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
            if request.HasField("header"):
                seen.header = request.header
                yield RegisterResponse(admitted=RegisterAdmitted(leader_epoch=self.epoch))
            self.largest_chunk = max(self.largest_chunk, len(request.inventory.finished))
            seen.finished += request.inventory.finished
            seen.running += [AttemptKey.from_proto(a) for a in request.inventory.running]
            if request.HasField("end"):
                assert request.end.finished_count == len(seen.finished)
                assert request.end.running_count == len(seen.running)
                break
        self.registrations.append(seen)
        yield RegisterResponse(
            accepted=RegisterAccepted(
                leader_epoch=self.epoch,
                registration_id=seen.registration_id,
                heartbeat_interval_ms=round(self.heartbeat_interval_s * 1000),
                heartbeat_timeout_ms=round(self.heartbeat_timeout_s * 1000),
            )
        )
        rejected = [key.to_proto() for key in seen.finished_keys if self.rejects(key)]
        if rejected:
            yield RegisterResponse(rejected=RejectedChunk(attempts=rejected, reason="late"))
        self.changed.set()

    def _knows(self, registration_id: str) -> bool:
        return bool(self.registrations) and self.current.registration_id == registration_id

    async def Heartbeat(self, request: HeartbeatRequest, context: Context) -> HeartbeatResponse:
        self.heartbeats.append(request)
        self.changed.set()
        if self.frozen:
            await asyncio.Event().wait()
        return HeartbeatResponse(
            leader_epoch=self.epoch,
            register_again=not self._knows(request.registration_id),
            ended_job_ids=[job for job in request.job_ids if job in self.ended_jobs],
        )

    async def Session(
        self, request: SessionRequest, context: Context
    ) -> AsyncIterator[SessionPulse]:
        while self._knows(request.registration_id):
            yield SessionPulse(leader_epoch=self.epoch)
            await asyncio.sleep(self.heartbeat_interval_s)

    async def ReportExecutions(
        self, request: ReportExecutionsRequest, context: Context
    ) -> ReportExecutionsResponse:
        if self.forgets:
            self.forgets = False
            return ReportExecutionsResponse(leader_epoch=self.epoch, register_again=True)
        self.reports += request.reports
        self.changed.set()
        return ReportExecutionsResponse(leader_epoch=self.epoch)

    async def RequestSplit(
        self, request: RequestSplitRequest, context: Context
    ) -> RequestSplitResponse:
        if request.received >= self.splits:
            return RequestSplitResponse(leader_epoch=self.epoch)
        return RequestSplitResponse(leader_epoch=self.epoch, split=Split(index=request.received))

    async def FetchJobGraph(
        self, request: FetchJobGraphRequest, context: Context
    ) -> AsyncIterator[FetchJobGraphResponse]:
        self.graph_fetches.append(request.job_id)
        data = self.graphs[request.job_id].SerializeToString()
        half = len(data) // 2
        for chunk in (data[:half], data[half:]):
            yield FetchJobGraphResponse(chunk=chunk, leader_epoch=self.epoch)

    async def Unregister(self, request: UnregisterRequest, context: Context) -> UnregisterResponse:
        self.unregistered.append(request.resource_id)
        self.changed.set()
        return UnregisterResponse(leader_epoch=self.epoch)
