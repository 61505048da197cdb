"""How an operator ends early, told apart by what the scheduler does about it.

JobError         the job is wrong; it fails at once, without restarts (FAILURE_KIND_JOB)
TaskCancelled    the TaskManager asked for the end of the attempt

Any other exception that leaves an operator is a failure of its task (FAILURE_KIND_TASK), or one of
`shuffle.errors`.
"""

from __future__ import annotations

from holdover.errors import InvalidJob


class JobError(InvalidJob):
    """Running the attempt again cannot help: its message says what to change in the job."""


class TaskCancelled(BaseException):
    """Raised in the main thread where the task happens to be, so that it ends.

    Not an Exception: user code that handles `Exception` does not stop it by accident.
    """
