"""What the JobManager asks of whoever holds partitions, a TaskManager or a shuffle service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import grpc

from holdover.coordination.jobmanager_connection import EpochOver
from holdover.errors import InvalidId
from holdover.ids import AttemptKey, job_id
from holdover.v1.common_pb2 import ExecutionAttempt
from holdover.v1.taskmanager_pb2 import (
    PingRequest,
    PingResponse,
    ReleaseJobRequest,
    ReleaseJobResponse,
    ReleasePartitionsRequest,
    ReleasePartitionsResponse,
)

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

#: Trailing metadata that tells a refused JobManager the epoch that leads.
EPOCH_METADATA = "holdover-epoch"


class HolderCalls(Protocol):
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

    def release_attempts(self, keys: list[AttemptKey]) -> None:
        """Serve the attempts' partitions no longer, take none of them, and delete them."""
        ...

    async def release_job(self, job_id: str, reason: str) -> None:
        """Delete all of a job; done when nothing is left."""
        ...


class HolderService:
    """Every call of a leader below the highest epoch seen is refused."""

    #: What this process is, for whom it refuses.
    kind: ClassVar[str]

    def __init__(self, calls: HolderCalls) -> None:
        self._held = calls

    async def ReleasePartitions(  # noqa: N802
        self, request: ReleasePartitionsRequest, context: Context
    ) -> ReleasePartitionsResponse:
        """Deletes partitions; unknown ones are fine."""
        await self.admit(request.leader_epoch, context)
        self._held.release_attempts(await keys_of(request.attempts, context))
        return ReleasePartitionsResponse(leader_epoch=self._held.epoch_seen)

    async def ReleaseJob(  # noqa: N802
        self, request: ReleaseJobRequest, context: Context
    ) -> ReleaseJobResponse:
        """Deletes all of a job; an unknown one is fine."""
        await self.admit(request.leader_epoch, context)
        try:
            job_id(request.job_id)
        except InvalidId as error:
            await _refuse(context, error)
        await self._held.release_job(request.job_id, "the JobManager released it")
        return ReleaseJobResponse(leader_epoch=self._held.epoch_seen)

    async def Ping(self, request: PingRequest, context: Context) -> PingResponse:  # noqa: N802
        """Confirms that this process lives."""
        await self.admit(request.leader_epoch, context)
        return PingResponse(
            leader_epoch=self._held.epoch_seen,
            registered=self._held.registered(request.registration_id),
        )

    async def admit(self, epoch: int, context: Context) -> None:
        """Ends the call of a leader whose time is over, and any when this process leaves."""
        if self._held.leaving:
            text = f"this {self.kind} leaves the cluster"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        try:
            self._held.admit(epoch)
        except EpochOver as over:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                str(over),
                ((EPOCH_METADATA, str(over.newest)),),
            )


async def keys_of(attempts: Iterable[ExecutionAttempt], context: Context) -> list[AttemptKey]:
    """The keys of a request; ends the call, naming the field, when one is none."""
    try:
        return [AttemptKey.from_proto(attempt) for attempt in attempts]
    except InvalidId as error:
        await _refuse(context, error)


async def _refuse(context: Context, error: InvalidId) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    raise AssertionError("abort has raised") from error
