"""The gRPC face of a TaskManager: checks what comes in, and passes it on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import grpc
import grpc.aio

from holdover.coordination.jobmanager_connection import EpochOver
from holdover.errors import InvalidId
from holdover.ids import AttemptKey, job_id
from holdover.v1.common_pb2 import ExecutionAttempt
from holdover.v1.taskmanager_pb2 import (
    CancelTasksRequest,
    CancelTasksResponse,
    DeployRefusal,
    DeployTasksRequest,
    DeployTasksResponse,
    PingRequest,
    PingResponse,
    ReleaseJobRequest,
    ReleaseJobResponse,
    ReleasePartitionsRequest,
    ReleasePartitionsResponse,
    TaskDeployment,
)
from holdover.v1.taskmanager_pb2_grpc import TaskExecutorServicer

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

#: Trailing metadata that tells a refused JobManager the epoch that leads.
EPOCH_METADATA = "holdover-epoch"


class ExecutorCalls(Protocol):
    """What the service passes calls to."""

    @property
    def epoch_seen(self) -> int:
        """The highest epoch seen so far."""
        ...

    @property
    def leaving(self) -> bool:
        """Whether it is about to end: nothing can be ordered any more."""
        ...

    def admit(self, epoch: int) -> None:
        """Raises `EpochOver` for a leader whose time is over."""
        ...

    def registered(self, registration_id: str) -> bool:
        """Whether this registration holds."""
        ...

    async def deploy(
        self, epoch: int, registration_id: str, tasks: list[tuple[AttemptKey, TaskDeployment]]
    ) -> list[tuple[AttemptKey, str]]:
        """Start attempts; those that are refused, each with the reason."""
        ...

    def cancel(self, key: AttemptKey) -> bool:
        """Begin to cancel; false when the attempt does not run here."""
        ...

    def release_attempts(self, keys: list[AttemptKey]) -> None:
        """Serve the attempts' partitions no longer, and delete them."""
        ...

    async def release_job(self, job_id: str, reason: str) -> None:
        """Delete all of a job; done when nothing is left."""
        ...


class TaskExecutorService(TaskExecutorServicer):
    """See the proto. Every call of a leader below the highest epoch seen is refused."""

    def __init__(self, calls: ExecutorCalls) -> None:
        self._calls = calls

    async def DeployTasks(  # noqa: N802
        self, request: DeployTasksRequest, context: Context
    ) -> DeployTasksResponse:
        """Starts attempts; repeating it is allowed."""
        await self._admit(request.leader_epoch, context)
        keys = await _keys((task.attempt for task in request.tasks), context)
        refused = await self._calls.deploy(
            request.leader_epoch,
            request.registration_id,
            list(zip(keys, request.tasks, strict=True)),
        )
        return DeployTasksResponse(
            leader_epoch=self._calls.epoch_seen,
            refusals=[
                DeployRefusal(attempt=key.to_proto(), reason=reason) for key, reason in refused
            ],
        )

    async def CancelTasks(  # noqa: N802
        self, request: CancelTasksRequest, context: Context
    ) -> CancelTasksResponse:
        """Begins to cancel attempts."""
        await self._admit(request.leader_epoch, context)
        keys = await _keys(request.attempts, context)
        unknown = [key.to_proto() for key in keys if not self._calls.cancel(key)]
        return CancelTasksResponse(leader_epoch=self._calls.epoch_seen, unknown=unknown)

    async def ReleasePartitions(  # noqa: N802
        self, request: ReleasePartitionsRequest, context: Context
    ) -> ReleasePartitionsResponse:
        """Deletes partitions; unknown ones are fine."""
        await self._admit(request.leader_epoch, context)
        self._calls.release_attempts(await _keys(request.attempts, context))
        return ReleasePartitionsResponse(leader_epoch=self._calls.epoch_seen)

    async def ReleaseJob(  # noqa: N802
        self, request: ReleaseJobRequest, context: Context
    ) -> ReleaseJobResponse:
        """Deletes all of a job; an unknown one is fine."""
        await self._admit(request.leader_epoch, context)
        try:
            job_id(request.job_id)
        except InvalidId as error:
            await _refuse(context, error)
        await self._calls.release_job(request.job_id, "the JobManager released it")
        return ReleaseJobResponse(leader_epoch=self._calls.epoch_seen)

    async def Ping(self, request: PingRequest, context: Context) -> PingResponse:  # noqa: N802
        """Confirms that this process lives."""
        await self._admit(request.leader_epoch, context)
        return PingResponse(
            leader_epoch=self._calls.epoch_seen,
            registered=self._calls.registered(request.registration_id),
        )

    async def _admit(self, epoch: int, context: Context) -> None:
        if self._calls.leaving:
            text = "this TaskManager leaves the cluster"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        try:
            self._calls.admit(epoch)
        except EpochOver as over:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                str(over),
                ((EPOCH_METADATA, str(over.newest)),),
            )


async def _keys(attempts: Iterable[ExecutionAttempt], context: Context) -> list[AttemptKey]:
    try:
        return [AttemptKey.from_proto(attempt) for attempt in attempts]
    except InvalidId as error:
        await _refuse(context, error)


async def _refuse(context: Context, error: InvalidId) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    raise AssertionError("abort has raised") from error
