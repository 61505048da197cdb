"""What a failed call means: try again elsewhere, or tell the caller."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import grpc
import grpc.aio

from holdover.errors import (
    HoldoverError,
    InvalidJob,
    JobAlreadyExists,
    JobNotFound,
    RequestRefused,
)

_LEADER_METADATA_KEY = "holdover-leader"
#: The leader's trailing metadata when this very job was submitted before and is over by now.
_SAME_JOB_ENDED_METADATA_KEY = "holdover-same-job-ended"
_ADDRESS = re.compile(r"[\w.\-\[\]:]+:\d{1,5}")
_REASON_CHARACTERS_MAX = 200

#: Codes that mean "not now", whoever sent them (P46). RESOURCE_EXHAUSTED is a busy server.
_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
#: How gRPC reports a connection that was cut in the middle of an answer, under codes that servers
#: use for errors of their own as well.
_CUT_OFF = ("Stream removed", "RST_STREAM", "Connection reset", "Socket closed", "GOAWAY")


class Transience(enum.Enum):
    """Whether the same call may succeed later."""

    TRANSIENT = enum.auto()
    #: Final from a leader that has loaded its jobs, transient from any other (P46).
    IF_NOT_READY = enum.auto()
    FINAL = enum.auto()


#: How gRPC says that a message is over the limit, under the code of a busy server.
_TOO_LARGE = "larger than max"
_CONNECTION_REFUSED = "connection refused"
_DOES_NOT_LEAD = "it does not lead"
_NOT_TAKEN = (_CONNECTION_REFUSED, _DOES_NOT_LEAD)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a failed attempt says.

    Attributes:
        kind: whether to try again.
        reason: for people.
        leader_address: who leads, when a JobManager that does not lead said so; else empty.
        not_ready: whether a leader answered that is still loading its jobs.
    """

    kind: Transience
    reason: str
    leader_address: str = ""
    not_ready: bool = False


class SameJobEnded(RequestRefused):
    """The very job that is submitted was submitted before, and is over by now."""


def transience(error: grpc.aio.AioRpcError) -> Meaning:
    """What a failed attempt says about the next one."""
    code, details = error.code(), error.details() or ""
    leader = _leader_in_metadata(error)
    if code is grpc.StatusCode.FAILED_PRECONDITION and (
        leader is not None or details.startswith("not the leader")
    ):
        return Meaning(Transience.TRANSIENT, _DOES_NOT_LEAD, leader_address=leader or "")
    if code is grpc.StatusCode.NOT_FOUND:
        return Meaning(Transience.IF_NOT_READY, _short(details), not_ready=True)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return Meaning(Transience.FINAL, _short(details))  # the same call fails for ever (P53)
    if code in _TRANSIENT:
        not_ready = details.startswith("not ready")
        return Meaning(Transience.TRANSIENT, _reason(code, details), not_ready=not_ready)
    if any(mark in details for mark in _CUT_OFF):
        return Meaning(Transience.TRANSIENT, "the connection broke")
    return Meaning(Transience.FINAL, _short(details))


def may_have_arrived(error: grpc.aio.AioRpcError) -> bool:
    """Whether a failed attempt may have done its work all the same: nobody refused it."""
    meaning = transience(error)
    refused = meaning.not_ready or bool(meaning.leader_address) or meaning.reason in _NOT_TAKEN
    return meaning.kind is Transience.TRANSIENT and not refused


def what_the_caller_did(error: grpc.aio.AioRpcError, job_id: str) -> HoldoverError:
    """The error for a caller whose call a leader refused for good."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.NOT_FOUND:
        return JobNotFound(job_id) if job_id else RequestRefused(details)
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return JobAlreadyExists(job_id)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidJob(details)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        keys = [key for key, _ in error.trailing_metadata() or ()]
        same_job_ended = _SAME_JOB_ENDED_METADATA_KEY in keys
        return SameJobEnded(details) if same_job_ended else RequestRefused(details)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return RequestRefused(
            "the server at this address does not know the call: it is no JobManager, or one of"
            " another version"
        )
    return RequestRefused(f"the JobManager failed ({code.name}): {details}; its log says more")


def _leader_in_metadata(error: grpc.aio.AioRpcError) -> str | None:
    """The address in the trailing metadata, empty when there is none to go to; None when absent."""
    for key, value in error.trailing_metadata() or ():
        if key == _LEADER_METADATA_KEY:
            address = value if isinstance(value, str) else value.decode("ascii", "replace")
            return address if _ADDRESS.fullmatch(address) else ""
    return None


def _reason(code: grpc.StatusCode, details: str) -> str:
    if "Connection refused" in details:
        return _CONNECTION_REFUSED
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    if any(mark in details for mark in _CUT_OFF):
        return "the connection broke"
    return _short(details) or code.name


def _short(details: str) -> str:
    one_line = " ".join(details.split())
    if len(one_line) <= _REASON_CHARACTERS_MAX:
        return one_line
    return one_line[:_REASON_CHARACTERS_MAX] + " ..."
