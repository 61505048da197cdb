"""What the scheduler is told about a task that did not finish."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from holdover.errors import InvalidId, InvalidJob
from holdover.v1.common_pb2 import (
    FAILURE_KIND_CANCELED,
    FAILURE_KIND_JOB,
    FAILURE_KIND_OUTPUT_REFUSED,
    FAILURE_KIND_PARTITION_LOST,
    FAILURE_KIND_TASK,
    Failure,
)
from shuffle.errors import OutputRefused, PartitionLost, PartitionUnreachable, ShuffleUsageError
from taskmanager.operators.errors import TaskCancelled

TRACEBACK_BYTES_MAX = 64 << 10
_MESSAGE_BYTES_MAX = 8 << 10
#: Errors whose text is a sentence by itself.
_SPOKEN = (InvalidJob, OutputRefused, PartitionLost, PartitionUnreachable, ShuffleUsageError)
_OMITTED = "\n... (left out) ...\n"


def failure_of(error: BaseException, where: str, lost_partitions: Sequence[str] = ()) -> Failure:
    """The failure that an exception means; `where` names the vertex for people.

    `lost_partitions` are further partitions that were found lost beside the error's own.

    | exception | kind |
    |---|---|
    | InvalidJob, ShuffleUsageError | JOB: no rerun can help; the message says all there is |
    | PartitionLost, PartitionUnreachable | PARTITION_LOST: its producer is reset (P34, P41) |
    | OutputRefused | OUTPUT_REFUSED: it runs again with another target |
    | TaskCancelled | CANCELED |
    | any other, SystemExit and MemoryError included | TASK, with the traceback |
    """
    if isinstance(error, TaskCancelled):
        return Failure(kind=FAILURE_KIND_CANCELED, message=f"{where} was cancelled")
    message = _bounded(f"{where}: {_described(error)}", _MESSAGE_BYTES_MAX)
    if isinstance(error, PartitionLost | PartitionUnreachable):
        return Failure(
            kind=FAILURE_KIND_PARTITION_LOST,
            message=message,
            lost_partitions=dict.fromkeys((error.name, *lost_partitions)),
        )
    if isinstance(error, OutputRefused):
        return Failure(kind=FAILURE_KIND_OUTPUT_REFUSED, message=message)
    if isinstance(error, InvalidJob | InvalidId | ShuffleUsageError):
        return Failure(kind=FAILURE_KIND_JOB, message=message)
    return Failure(kind=FAILURE_KIND_TASK, message=message, traceback=_traceback(error))


def _described(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the task's code ended its process with exit code {error.code}"
    if isinstance(error, MemoryError):
        return f"the task ran out of memory: {error}"
    if isinstance(error, _SPOKEN):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001  a user's exception may not even print
        text = f"{type(error).__name__} (its traceback cannot be shown: {type(broken).__name__})"
    return _bounded(text, TRACEBACK_BYTES_MAX)


def _bounded(text: str, bytes_max: int) -> str:
    """The beginning and the end of a text that is too long; valid UTF-8 in any case."""
    data = text.encode("utf-8", "replace")
    if len(data) > bytes_max:
        half = (bytes_max - len(_OMITTED)) // 2
        data = data[:half] + _OMITTED.encode() + data[-half:]
        data = data.decode("utf-8", "ignore").encode()
    return data.decode("utf-8")
