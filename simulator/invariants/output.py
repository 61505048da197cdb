"""The output equals that of a run without faults; nothing of an unfinished job is visible.

A job may fail where its scenario can cause that: when its attempts fail more often than the
restart strategy allows, when no slot comes in time, or by a reason that the scenario names itself.
The whole output must be there even if the leader has died while it was published.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence

from holdover.v1 import common_pb2
from holdover.v1.job_pb2 import JobGraph
from holdover.v1.jobmanager_pb2 import JobStatus
from jobmanager.sink_commit import SUCCESS_FILE, foreign_file
from simulator.invariants.stored import archived, exists, output_directories
from simulator.invariants.view import (
    Broken,
    ClusterView,
    Invariant,
    Step,
    SubmittedJob,
    at_once,
)

#: Parts of failure messages, for `SubmittedJob.failures_allowed`: attempts fail too often,
RESTARTS_EXHAUSTED = "restarts it may have"
#: and no TaskManager has a slot for too long.
NO_SLOT_IN_TIME = "slot.request.timeout has passed"
#: Rows that a text names of those that are wrong.
_ROWS_NAMED_MAX = 5


class OutputIsComplete(Invariant):
    """See the module."""

    name = "the output equals that of a run without faults"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        #: Jobs whose commit some leader has decided.
        self._committing: dict[str, None] = {}
        self._ended: dict[str, common_pb2.JobState.ValueType] = {}

    def step(self, step: Step) -> None:
        """A commit begins when everything has finished."""
        for event in step.decision.events:
            if event.HasField("commit_started"):
                self._committing[step.job_id] = None
                if not step.scheduler.graph.all_finished:
                    self.broken(f"{step.leader} commits job {step.job_id} before it has finished")

    def check(self) -> None:
        """Nothing is visible before a commit; what has ended stays as it is."""
        for job_id, job in self.view.jobs.items():
            if job_id in self._ended:
                continue
            ended = archived(self.view, job_id)
            if ended is not None:
                self._ended[job_id] = ended.status.state
                self._judge_end(job, ended.status)
            elif job_id not in self._committing:
                self._nothing_is_visible(job)

    def at_end(self) -> list[str]:
        """The output is still what it was when the job ended; what was cancelled has none."""
        found: list[str] = []
        for job_id, job in self.view.jobs.items():
            if archived(self.view, job_id) is not None:
                state = self._ended.get(job_id, common_pb2.JOB_STATE_UNSPECIFIED)
                if state == common_pb2.JOB_STATE_FINISHED:
                    found += self._wrong_output(job)
                    if job.cancel_acknowledged and not job.log_damaged:
                        found.append(f"job {job_id} has finished, though it was cancelled before")
        return found

    def _judge_end(self, job: SubmittedJob, status: JobStatus) -> None:
        if status.state == common_pb2.JOB_STATE_FINISHED:
            for text in self._wrong_output(job):
                self.broken(text)
            return
        self._nothing_is_visible(job)
        message = status.failure.message or "no reason"
        if status.state == common_pb2.JOB_STATE_CANCELED:
            if not job.cancel_requested:
                self.broken(f"job {job.job_id} is cancelled, though nobody asked for it")
        elif not any(part in message for part in job.failures_allowed):
            self.broken(
                f"job {job.job_id} failed, which its scenario gives no cause for: {message}"
            )

    def _nothing_is_visible(self, job: SubmittedJob) -> None:
        foreign = at_once(foreign_file(self.view.shared, output_directories(job.graph)))
        if foreign is not None:
            self.broken(f"{foreign} is visible, though job {job.job_id} has not finished")

    def _wrong_output(self, job: SubmittedJob) -> list[str]:
        found = [
            f"job {job.job_id} has finished without {posixpath.join(directory, SUCCESS_FILE)}"
            for directory in output_directories(job.graph)
            if not exists(self.view.shared, posixpath.join(directory, SUCCESS_FILE))
        ]
        if _has_output(job.graph):
            difference = row_difference(self.view.expected_rows(job), self.view.committed_rows(job))
            if difference:
                found.append(f"the output of job {job.job_id} {difference}")
            found += [
                f"the output of job {job.job_id} holds rows of several attempts of"
                f" {vertex_id}[{subtask}], which is indeterminate"
                for vertex_id, subtask in self.view.mixed_subtasks(job)
            ]
        return found


def _has_output(graph: JobGraph) -> bool:
    return bool(output_directories(graph))


def row_difference(expected: Sequence[int], committed: Sequence[int]) -> str:
    """What is wrong with committed rows; empty if nothing is."""
    if list(expected) == list(committed):
        return ""
    wanted, got = Counter(expected), Counter(committed)
    lost, added = sorted((wanted - got).elements()), sorted((got - wanted).elements())
    return (
        f"has {len(committed)} rows instead of {len(expected)}:"
        f" lost {_some(lost)}, and has beyond them {_some(added)}"
    )


def _some(rows: list[int]) -> str:
    named = ", ".join(str(row) for row in rows[:_ROWS_NAMED_MAX])
    more = len(rows) - _ROWS_NAMED_MAX
    return f"[{named}{f', and {more} more' if more > 0 else ''}]"
