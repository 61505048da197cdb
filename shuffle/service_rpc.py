"""The gRPC face of a shuffle service: checks what comes in, and passes it on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from holdover.ids import AttemptKey
from holdover.v1.shuffle_service_pb2 import (
    CopyPartitionsRequest,
    CopyPartitionsResponse,
    DrainRequest,
    DrainResponse,
)
from holdover.v1.shuffle_service_pb2_grpc import ShuffleServiceServicer
from shuffle.errors import PartitionLost, ShuffleError
from shuffle.holder_service import HolderCalls, HolderService, keys_of

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


class ShuffleCalls(HolderCalls, Protocol):
    """What the service passes calls to."""

    async def copy(self, key: AttemptKey, address: str) -> None:
        """Put a finished attempt to the shuffle service at the data address `address`.

        Raises `PartitionLost` when it cannot be had here, `OutputRefused` when not there.
        """
        ...

    def drain(self) -> tuple[int, int]:
        """Take nothing from now on; the executions that are held, and their bytes."""
        ...


class ShuffleRpcService(HolderService, ShuffleServiceServicer):
    """See the proto. Every call of a leader below the highest epoch seen is refused."""

    kind = "shuffle service"

    def __init__(self, calls: ShuffleCalls) -> None:
        super().__init__(calls)
        self._calls = calls

    async def CopyPartitions(  # noqa: N802
        self, request: CopyPartitionsRequest, context: Context
    ) -> AsyncIterator[CopyPartitionsResponse]:
        """Copies attempts one after another, and says of each what became of it."""
        await self.admit(request.leader_epoch, context)
        if not self._calls.registered(request.registration_id):
            text = f"registration {request.registration_id!r} does not hold here"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        for key in await keys_of(request.attempts, context):
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
