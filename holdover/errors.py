"""What Holdover tells its callers, one branch for each decision that a caller can make.

HoldoverError
|-- ConfigurationError        change the configuration
|-- InvalidId                 choose another name (also a ValueError)
|-- InvalidJob                change the job; sending it again will not help
|   `-- JobGraphError         ... in the named field of its graph
|-- ClusterError              the cluster cannot answer now; the same call may work later
|   |-- ClusterUnreachable    nobody answered at the known addresses
|   `-- NotReady              a leader answered, but has not loaded its jobs yet
|-- JobNotFound               a ready leader does not know the job
|-- JobAlreadyExists          another job was submitted under this id
|-- RequestRefused            a leader refuses the call as it is; the message says why
|-- JobEnded                  the job is over and has no result
|   |-- JobFailed             ... it failed, for the reason it carries
|   `-- JobCanceled           ... somebody cancelled it
`-- StorageError              durable storage cannot be read or written
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdover.v1.common_pb2 import Failure


class HoldoverError(Exception):
    """Base of all errors that a caller of Holdover may want to catch."""


class ConfigurationError(HoldoverError):
    """An option is unknown, has an impossible value, or contradicts another (P63).

    `key` is the option's key, or empty when the error is about a whole file.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class InvalidId(HoldoverError, ValueError):
    """A name that would become part of a path, a message or a log line is not allowed.

    `field` says what the name is for, for example "job id".
    """

    def __init__(self, field: str, value: str, allowed: str) -> None:
        super().__init__(f"{field} {value!r} is not allowed: it must match {allowed}")
        self.field = field
        self.value = value


class InvalidJob(HoldoverError):
    """The cluster, or the client before it, refuses the job; the message says what to change."""


class JobGraphError(InvalidJob):
    """A JobGraph cannot run.

    `field` is the path of the wrong field, for example "vertices[2].operators[0].sink.path", or
    the user's name of an operator while the graph is being built; `message` says what to change.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


class ClusterError(HoldoverError):
    """The cluster cannot answer now; the same call may work later."""


class ClusterUnreachable(ClusterError):
    """No JobManager answered at any known address in the time that was given."""

    def __init__(self, addresses: Sequence[str], reason: str) -> None:
        tried = ", ".join(addresses) or "no address (none is known)"
        super().__init__(
            f"no JobManager answers at {tried}: {reason};"
            " check that the cluster runs, and its address (jobmanager.rpc.address)"
        )
        self.addresses = tuple(addresses)
        self.reason = reason


class NotReady(ClusterError):
    """The leader has not loaded its jobs yet: retry. It never means that a job is unknown."""


class JobNotFound(HoldoverError):
    """A ready leader has no job of this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}; list the jobs to see which there are")
        self.job_id = job_id


class JobAlreadyExists(HoldoverError):
    """A job with this id but another graph was submitted before (P42)."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job {job_id!r} exists already with another graph; submit under another job id"
        )
        self.job_id = job_id


class RequestRefused(HoldoverError):
    """A leader refuses the call as it is, for example the results of a job that still runs."""


class JobEnded(HoldoverError):
    """The job is over and has no result."""

    def __init__(self, job_id: str, message: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobEnded):
    """The job failed.

    `failure` says why, with the traceback of user code where there is one.
    """

    def __init__(self, job_id: str, failure: Failure) -> None:
        super().__init__(job_id, f"job {job_id!r} failed: {failure.message}")
        self.failure = failure

    @property
    def traceback(self) -> str:
        """The traceback of user code, or an empty string."""
        return self.failure.traceback


class JobCanceled(JobEnded):
    """Somebody cancelled the job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, f"job {job_id!r} was cancelled")


class StorageError(HoldoverError):
    """Durable storage cannot be read or written; the message names the file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
