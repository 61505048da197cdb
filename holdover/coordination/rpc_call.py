"""One way to await an answer of the JobManager, with one kind of failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import grpc.aio

AnswerT = TypeVar("AnswerT")

#: Trailing metadata in which a JobManager that does not lead names the one that does.
LEADER_METADATA = "holdover-leader"

_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,  # nobody there, or "not ready, retry"
        grpc.StatusCode.FAILED_PRECONDITION,  # it does not lead, or not any more
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,  # how a broken HTTP/2 stream shows
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


class CallFailed(Exception):
    """A call got no answer, or a refusal.

    `transient` says that the same call may succeed later; `leader_hint` is the address of the
    leader as a JobManager that does not lead gave it, or empty.
    """

    def __init__(
        self,
        reason: str,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        leader_hint: str = "",
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.leader_hint = leader_hint

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed later."""
        return self.code in _TRANSIENT

    @property
    def silent(self) -> bool:
        """Whether the peer merely did not answer in time."""
        return self.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def answer(call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """Make the call and await its answer; raises `CallFailed`.

    A channel that is closed under a call looks like a cancellation of the caller; the two are told
    apart here.
    """
    try:
        return await call()
    except grpc.aio.AioRpcError as error:
        code = error.code()
        reason = f"{code.name}: {error.details()}"
        raise CallFailed(reason, code, _leader_hint(error.trailing_metadata())) from error
    except grpc.aio.UsageError as error:
        raise CallFailed(f"the channel is closed: {error}") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallFailed("the channel was closed during the call") from error


def _leader_hint(metadata: grpc.aio.Metadata | None) -> str:
    for key, value in metadata or ():
        if key == LEADER_METADATA and isinstance(value, str):
            return value
    return ""
