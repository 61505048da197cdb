"""Names that may become part of a path, a message or a log line, and the key of an attempt.

A name is validated where it enters a process, so that everything behind can build paths from it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from holdover.errors import InvalidId

if TYPE_CHECKING:
    from holdover.v1.common_pb2 import ExecutionAttempt

JOB_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
VERTEX_ID = re.compile(r"[a-z0-9]{1,32}")
RESOURCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Largest number that the proto field behind `subtask`, `attempt` and `output` holds.
_INT32_MAX = 2**31 - 1
#: Names that were found good and are not looked at again: messages name the same few all the time.
_GOOD_NAMES_KEPT_MAX = 1_024


def _validated(field: str, value: str, pattern: re.Pattern[str]) -> str:
    if pattern.fullmatch(value) is None:
        raise InvalidId(field, value, pattern.pattern)
    return value


@lru_cache(_GOOD_NAMES_KEPT_MAX)
def job_id(value: str) -> str:
    """`value`, when it can name a job; raises InvalidId."""
    return _validated("job id", value, JOB_ID)


@lru_cache(_GOOD_NAMES_KEPT_MAX)
def vertex_id(value: str) -> str:
    """`value`, when it can name a vertex of a job; raises InvalidId."""
    return _validated("vertex id", value, VERTEX_ID)


def resource_id(value: str) -> str:
    """`value`, when it can name a TaskManager or shuffle service; raises InvalidId."""
    return _validated("resource id", value, RESOURCE_ID)


class AttemptKey(NamedTuple):
    """One attempt of one subtask: by it everything durable or remote is named.

    A late answer of an older attempt, or of an attempt that an older leader deployed, differs in
    its key and is dropped. Ordered by job, vertex, subtask, attempt, epoch. A tuple, because keys
    are made and compared more often than anything else.

    Attributes:
        job_id: the job.
        vertex_id: the vertex within the job.
        subtask: 0 <= subtask < parallelism of the vertex.
        attempt: counts the attempts of the subtask over the whole life of the job, from 0.
        epoch: the epoch of the leader that deployed the attempt, from 1; 0 means none.
    """

    job_id: str
    vertex_id: str
    subtask: int
    attempt: int
    epoch: int

    @classmethod
    def from_proto(cls, attempt: ExecutionAttempt) -> AttemptKey:
        """The key in a message from outside; raises InvalidId naming the wrong field."""
        subtask, number, epoch = attempt.subtask, attempt.attempt, attempt.leader_epoch
        if subtask < 0:
            raise InvalidId("subtask", str(subtask), "[0-9]+")
        if number < 0:
            raise InvalidId("attempt", str(number), "[0-9]+")
        if epoch < 0:
            raise InvalidId("leader epoch", str(epoch), "[0-9]+")
        fields = (job_id(attempt.job_id), vertex_id(attempt.vertex_id), subtask, number, epoch)
        return tuple.__new__(cls, fields)  # as `cls(*fields)` does, by one call less

    def to_proto(self) -> ExecutionAttempt:
        """The key as a message."""
        from holdover.v1.common_pb2 import ExecutionAttempt  # the stubs are slow to import

        return ExecutionAttempt(
            job_id=self.job_id,
            vertex_id=self.vertex_id,
            subtask=self.subtask,
            attempt=self.attempt,
            leader_epoch=self.epoch,
        )

    def __str__(self) -> str:
        """For logs and messages: `job/vertex[subtask]#attempt@epoch`."""
        return f"{self.job_id}/{self.vertex_id}[{self.subtask}]#{self.attempt}@{self.epoch}"


def partition_name(key: AttemptKey, output: int) -> str:
    """Name of the attempt's result partition for the vertex's output data set `output`."""
    if not 0 <= output <= _INT32_MAX:
        raise InvalidId("output", str(output), "[0-9]+")
    stem = f"{key.vertex_id}-{output}-{key.subtask}-{key.attempt}-{key.epoch}"
    return f"{key.job_id}/{stem}"
