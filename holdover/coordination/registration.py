"""One attempt to register: all that is held, or nothing (case P23)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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
    stub: ResourceManagerAsyncStub,
    header: RegisterHeader,
    inventory: Callable[[], Inventory],
    timeout_s: float,
) -> RegistrationAnswer:
    """Register, and read the answer to its end. Raises `CallFailed`.

    The inventory is asked for when the leader has admitted the header: one that is busy has then
    refused without being sent more, and gRPC does not lose its refusal in a write that fails.

    An answer that breaks off counts as none: the TaskManager registers again, which is idempotent.
    """
    admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def call() -> RegistrationAnswer:
        accepted: RegisterAccepted | None = None
        rejected: list[tuple[AttemptKey, str]] = []
        messages = _messages(header, inventory, admitted)
        async for response in stub.Register(messages, timeout=timeout_s):
            if response.HasField("admitted") and not admitted.done():
                admitted.set_result(True)
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
    finally:
        if not admitted.done():
            # gRPC does not end the iterator of a call that is over.
            admitted.set_result(False)


async def _messages(
    header: RegisterHeader, ask: Callable[[], Inventory], admitted: asyncio.Future[bool]
) -> AsyncIterator[RegisterRequest]:
    yield RegisterRequest(header=header)
    if not await admitted:
        return
    inventory = ask()
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
