"""The gRPC face of a shuffle service: checks what comes in, and passes it on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import grpc
import grpc.aio

from holdover.coordination.jobmanager_connection import EpochOver
from holdover.errors import InvalidId
from holdover.ids import AttemptKey, job_id
from holdover.v1.common_pb2 import ExecutionAttempt
from holdover.v1.shuffle_service_pb2 import (
    CopyPartitionsRequest,
    CopyPartitionsResponse,
    DrainRequest,
    DrainResponse,
)
from holdover.v1.shuffle_service_pb2_grpc import ShuffleServiceServicer
from holdover.v1.taskmanager_pb2 import (
    PingRequest,
    PingResponse,
    ReleaseJobRequest,
    ReleaseJobResponse,
    ReleasePartitionsRequest,
    ReleasePartitionsResponse,
)
from shuffle.errors import PartitionLost, ShuffleError

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

#: Trailing metadata that tells a refused JobManager the epoch that leads.
EPOCH_METADATA = "holdover-epoch"


class ShuffleCalls(Protocol):
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
        """Serve and take the attempts' partitions no longer, and delete them."""
        ...

    async def release_job(self, job_id: str, reason: str) -> None:
        """Delete all of a job; done when nothing is left."""
        ...

    async def copy(self, key: AttemptKey, address: str) -> None:
        """Put a finished attempt to the shuffle service at the data address `address`.

        Raises `PartitionLost` when it cannot be had here, `OutputRefused` when not there.
        """
        ...

    def drain(self) -> tuple[int, int]:
        """Take nothing from now on; the executions that are held, and their bytes."""
        ...


class ShuffleRpcService(ShuffleServiceServicer):
    """See the proto. Every call of a leader below the highest epoch seen is refused."""

    def __init__(self, calls: ShuffleCalls) -> None:
        self._calls = calls

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

    async def CopyPartitions(  # noqa: N802
        self, request: CopyPartitionsRequest, context: Context
    ) -> AsyncIterator[CopyPartitionsResponse]:
        """Copies attempts one after another, and says of each what became of it."""
        await self._admit(request.leader_epoch, context)
        if not self._calls.registered(request.registration_id):
            text = f"registration {request.registration_id!r} does not hold here"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        for key in await _keys(request.attempts, context):
            obstacle, lost = "", False
            try:
                await self._calls.copy(key, request.target.data_address)
            except ShuffleError as error:
                obstacle, lost = str(error), isinstance(error, PartitionLost)
            yield CopyPartitionsResponse(
                leader_epoch=self._calls.epoch_seen,
                attempt=key.to_proto(),
                obstacle=obstacle,
                lost=lost,
            )

    async def Drain(self, _request: DrainRequest, _context: Context) -> DrainResponse:  # noqa: N802
        """Begins to leave."""
        executions, partition_bytes = self._calls.drain()
        return DrainResponse(executions=executions, partition_bytes=partition_bytes)

    async def _admit(self, epoch: int, context: Context) -> None:
        if self._calls.leaving:
            text = "this shuffle service leaves the cluster"
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
