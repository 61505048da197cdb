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
#: Trailing metadata in which one that is busy says when the call is to be repeated, milliseconds.
RETRY_AFTER_METADATA = "holdover-retry-after-ms"
#: No peer is believed that a call is to be repeated later than this.
RETRY_AFTER_MAX_S = 10.0

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
    leader as a JobManager that does not lead gave it, or empty; `retry_after_s` is when a leader
    that is busy wants the call again, 0 when none has said so.
    """

    def __init__(
        self,
        reason: str,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        leader_hint: str = "",
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.leader_hint = leader_hint
        self.retry_after_s = retry_after_s

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
        metadata = error.trailing_metadata()
        raise CallFailed(reason, code, _leader_hint(metadata), _retry_after_s(metadata)) from error
    except grpc.aio.UsageError as error:
        raise CallFailed(f"the channel is closed: {error}") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallFailed("the channel was closed during the call") from error


def _leader_hint(metadata: grpc.aio.Metadata | None) -> str:
    return _value_of(LEADER_METADATA, metadata)


def _retry_after_s(metadata: grpc.aio.Metadata | None) -> float:
    value = _value_of(RETRY_AFTER_METADATA, metadata)
    return min(int(value) / 1000, RETRY_AFTER_MAX_S) if value.isdecimal() else 0.0


def _value_of(name: str, metadata: grpc.aio.Metadata | None) -> str:
    if metadata is not None:
        for key, value in metadata:
            if key == name and isinstance(value, str):
                return value
    return ""
