"""One attempt to register: all that is held, or nothing (case P23)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from holdover.coordination.rpc_call import CallFailed, answer
from holdover.errors import InvalidId
from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.taskmanager_pb2 import (
    InventoryChunk,
    RegisterAccepted,
    RegisterEnd,
    RegisterHeader,
    RegisterRequest,
)

if TYPE_CHECKING:
    from holdover.v1.taskmanager_pb2_grpc import ResourceManagerAsyncStub

# Bounds of one message, far below the largest that gRPC carries (P53).
CHUNK_COUNT_MAX = 500
CHUNK_BYTES_MAX = 4 * 1024 * 1024

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a TaskManager tells a leader that it holds, at one moment."""

    finished: Sequence[FinishedExecution]
    running: Sequence[AttemptKey]


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """The leader's complete answer. `rejected` is what it does not want, each with its reason."""

    accepted: RegisterAccepted
    rejected: Sequence[tuple[AttemptKey, str]]


async def register(
    stub: ResourceManagerAsyncStub, header: RegisterHeader, inventory: Inventory, timeout_s: float
) -> RegistrationAnswer:
    """Register, and read the answer to its end. Raises `CallFailed`.

    An answer that breaks off counts as none: the TaskManager registers again, which is idempotent.
    """

    async def call() -> RegistrationAnswer:
        accepted: RegisterAccepted | None = None
        rejected: list[tuple[AttemptKey, str]] = []
        async for response in stub.Register(_messages(header, inventory), timeout=timeout_s):
            if response.HasField("accepted"):
                accepted = response.accepted
            reason = response.rejected.reason
            rejected += [(AttemptKey.from_proto(a), reason) for a in response.rejected.attempts]
        if accepted is None:
            raise CallFailed("the JobManager ended the registration without an answer")
        return RegistrationAnswer(accepted, rejected)

    try:
        return await answer(call)
    except InvalidId as error:
        raise CallFailed(f"the JobManager's answer names no attempt: {error}") from error


async def _messages(header: RegisterHeader, inventory: Inventory) -> AsyncIterator[RegisterRequest]:
    yield RegisterRequest(header=header)
    for finished in _chunks(inventory.finished):
        yield RegisterRequest(inventory=InventoryChunk(finished=finished))
    running = [key.to_proto() for key in inventory.running]
    for attempts in _chunks(running):
        yield RegisterRequest(inventory=InventoryChunk(running=attempts))
    yield RegisterRequest(
        end=RegisterEnd(finished_count=len(inventory.finished), running_count=len(running))
    )


def _chunks(items: Sequence[MessageT]) -> Iterator[list[MessageT]]:
    chunk: list[MessageT] = []
    size = 0
    for item in items:
        size += item.ByteSize()
        if chunk and (len(chunk) == CHUNK_COUNT_MAX or size > CHUNK_BYTES_MAX):
            yield chunk
            chunk, size = [], item.ByteSize()
        chunk.append(item)
    if chunk:
        yield chunk
