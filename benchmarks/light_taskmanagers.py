"""Many TaskManagers in one process: they register, offer what they hold, live, and run nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from holdover.config import Configuration
from holdover.coordination.jobmanager_connection import JobManagerConnection
from holdover.coordination.leader import LeaderRecord, LeaderRetrieval
from holdover.coordination.leader_finder import LeaderFinder
from holdover.coordination.registration import Inventory, RegistrationAnswer
from holdover.runtime import Runtime
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.taskmanager_pb2 import (
    CancelTasksRequest,
    CancelTasksResponse,
    DeployTasksRequest,
    DeployTasksResponse,
    HeartbeatRequest,
    PingRequest,
    PingResponse,
    RegisterHeader,
    ReleaseJobRequest,
    ReleaseJobResponse,
    ReleasePartitionsRequest,
    ReleasePartitionsResponse,
)
from holdover.v1.taskmanager_pb2_grpc import (
    TaskExecutorServicer,
    add_TaskExecutorServicer_to_server,
)

_HOST = "127.0.0.1"
_SLOTS = 2
_GRACE_S = 0.2


class LightTaskManagers:
    """TaskManagers with the real connection to a JobManager, behind one gRPC server.

    As an async context manager it runs them.
    """

    def __init__(
        self,
        runtime: Runtime,
        held: Mapping[str, Sequence[FinishedExecution]],
        retrieval: LeaderRetrieval,
    ) -> None:
        """`held`: by the name of each TaskManager what it offers."""
        self._server = runtime.network.server(f"{_HOST}:0")
        self._server.add(add_TaskExecutorServicer_to_server, _Tasks(self))
        self._shared = _SharedRetrieval(retrieval)
        self._supervisor = Supervisor("light taskmanagers", self._on_fatal)
        self._failure: BaseException | None = None
        self.workers = [
            _LightTaskManager(runtime, name, finished, self._shared)
            for name, finished in held.items()
        ]

    async def __aenter__(self) -> LightTaskManagers:
        port = await self._server.start()
        self._supervisor.run("leader record", self._shared.follow, RestartPolicy())
        for worker in self.workers:
            worker.address = f"{_HOST}:{port}"
            for what, loop in (
                ("watches", worker.connection.watch_leader),
                ("registers", worker.connection.run),
            ):
                self._supervisor.run(f"{worker.name} {what}", loop, RestartPolicy())
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._supervisor.close()
        for worker in self.workers:
            await worker.connection.close()
        await self._server.stop(_GRACE_S)

    def check(self) -> None:
        """Raises RuntimeError when a leader did not want what was offered, or a loop has ended."""
        refused = sum(worker.rejected for worker in self.workers)
        if self._failure is not None or refused:
            raise RuntimeError(f"{refused} offers were rejected") from self._failure

    @property
    def attempts(self) -> int:
        """How often one of them has tried to register, since the start."""
        return sum(worker.attempts for worker in self.workers)

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        self._failure = exception


class _LightTaskManager:
    """One of them. Implements `JobManagerListener`."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        finished: Sequence[FinishedExecution],
        retrieval: LeaderRetrieval,
    ) -> None:
        self.name = name
        self.address = ""
        self.attempts = 0
        self.rejected = 0
        self._finished = finished
        self.connection = JobManagerConnection(
            runtime, Configuration.of({}), name, LeaderFinder("", retrieval), self, retrieval
        )

    def header(self) -> RegisterHeader:
        """See `JobManagerListener`."""
        return RegisterHeader(
            resource_id=self.name,
            incarnation=self.name,
            address=self.address,
            data_address=self.address,
            slots=_SLOTS,
        )

    def inventory(self) -> Inventory:
        """See `JobManagerListener`. What was deployed here is forgotten with its leader."""
        self.attempts += 1
        return Inventory(self._finished, ())

    def registration_failed(self) -> None:
        """See `JobManagerListener`."""

    def registered_with(self, answer: RegistrationAnswer) -> None:
        """See `JobManagerListener`."""
        self.rejected += len(answer.rejected)

    def jobmanager_lost(self, reason: str) -> None:
        """See `JobManagerListener`."""

    def job_ended(self, job_id: str) -> None:
        """See `JobManagerListener`."""

    def heartbeat(self) -> HeartbeatRequest:
        """See `JobManagerListener`."""
        return HeartbeatRequest(job_ids=list({e.attempt.job_id: None for e in self._finished[:1]}))


class _SharedRetrieval:
    """One look at the leader record for all."""

    def __init__(self, retrieval: LeaderRetrieval) -> None:
        self._retrieval = retrieval
        self._record: LeaderRecord | None = None
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        """For ever."""
        async for record in self._retrieval.changes():
            async with self._changed:
                self._record = record
                self._changed.notify_all()

    async def current(self) -> LeaderRecord | None:
        """See `LeaderRetrieval.current`."""
        return self._record

    async def changes(self) -> AsyncIterator[LeaderRecord]:
        """See `LeaderRetrieval.changes`."""
        told: LeaderRecord | None = None
        while True:
            async with self._changed:
                while self._record is None or self._record == told:
                    await self._changed.wait()
                told = self._record
            yield told


class _Tasks(TaskExecutorServicer):
    """Takes all orders and carries out none."""

    def __init__(self, owner: LightTaskManagers) -> None:
        self._owner = owner

    async def DeployTasks(  # noqa: N802
        self, request: DeployTasksRequest, context: object
    ) -> DeployTasksResponse:
        """See the proto."""
        return DeployTasksResponse(leader_epoch=request.leader_epoch)

    async def CancelTasks(  # noqa: N802
        self, request: CancelTasksRequest, context: object
    ) -> CancelTasksResponse:
        """See the proto."""
        return CancelTasksResponse(leader_epoch=request.leader_epoch, unknown=request.attempts)

    async def ReleasePartitions(  # noqa: N802
        self, request: ReleasePartitionsRequest, context: object
    ) -> ReleasePartitionsResponse:
        """See the proto."""
        return ReleasePartitionsResponse(leader_epoch=request.leader_epoch)

    async def ReleaseJob(  # noqa: N802
        self, request: ReleaseJobRequest, context: object
    ) -> ReleaseJobResponse:
        """See the proto."""
        return ReleaseJobResponse(leader_epoch=request.leader_epoch)

    async def Ping(  # noqa: N802
        self, request: PingRequest, context: object
    ) -> PingResponse:
        """See the proto."""
        registered = any(
            worker.connection.current is not None
            and worker.connection.current.registration_id == request.registration_id
            for worker in self._owner.workers
        )
        return PingResponse(leader_epoch=request.leader_epoch, registered=registered)
