"""After healing every job ends, and no service has made a mistake that it hides.

A line of level error says that a person is needed. Where a fault explains it, it is no mistake of
a service: storage that fails, a task process that does not die, a port that is taken for a moment.
"""

from __future__ import annotations

from holdover.v1 import common_pb2
from simulator.invariants.stored import archived
from simulator.invariants.view import ErrorLogged, Invariant, LeaderView

#: Errors that a fault explains, by the event of the log line, if there has been one lately.
EXPLAINED = (
    "a killed task process does not end",
    "cannot delete a partition",
    "cannot delete all of a job",
    "cannot delete the output of an attempt",
    "job cannot be loaded",
    "job cannot be recovered",
    "job parked",
    "leadership lost",
)
#: Of these, what a network that loses packets explains as well, where leases are short.
FLAPPING = ("job parked", "leadership lost")
#: Of a process or a loop that ends: explained by an exception of one of these.
EXPLAINED_EXCEPTIONS = (
    "OSError",
    "StorageError",
    "StorageNotWritable",
    "AddressInUse",
    "FileNotFoundError",
    "PermissionError",
)
#: A job begins anew: explained by a fault that has taken synced bytes from its log, or all of it.
BEGINNINGS = (
    "event log is damaged, the job starts anew",
    "event log is missing, the job starts anew",
)
_ENDINGS = (
    "background loop ended, restarting it",
    "jobmanager ends",
    "worker ends",
    "the end of the job cannot be recorded, will retry",
)


class JobsEnd(Invariant):
    """See the module."""

    name = "every job ends after healing"

    def at_end(self) -> list[str]:
        """Jobs that have not ended, each with what it waits for."""
        waiting = []
        for job_id, job in self.view.jobs.items():
            ended = archived(self.view, job_id)
            if ended is None and job.acknowledged:
                waiting.append(f"job {job_id} has not ended: {self._why(job_id)}")
        return waiting

    def _why(self, job_id: str) -> str:
        leaders = self.view.leaders()
        if not leaders:
            return "nobody leads"
        return "; ".join(f"{leader.name}: {_state(leader, job_id)}" for leader in leaders)


#: What a leader says of a job whose log somebody has harmed.
LOG_IS_LOST = (
    "event log is damaged, the job starts anew",
    "event log is missing, the job starts anew",
)


class NoHiddenMistake(Invariant):
    """See the module."""

    name = "no service fails by itself"

    def error_logged(self, error: ErrorLogged) -> None:
        """Judge a line."""
        disturbed = not self.is_calm()
        if disturbed and error.event in EXPLAINED:
            return
        if self.view.leases_flap and error.event in FLAPPING:
            return
        if (
            disturbed
            and error.event in _ENDINGS
            and error.exception.startswith(EXPLAINED_EXCEPTIONS)
        ):
            return
        if error.event in LOG_IS_LOST:
            job = self.view.jobs.get(str(error.fields.get("job")))
            if job is not None and job.log_damaged:
                return
        fields = " ".join(f"{key}={value}" for key, value in error.fields.items())
        self.broken(f"{error.process} logs: {error.event} {fields} {error.exception}".rstrip())


def _state(leader: LeaderView, job_id: str) -> str:
    job = leader.job(job_id)
    if job is None:
        return "does not run it"
    graph = job.scheduler.graph
    counts: dict[str, int] = {}
    for vertex in graph.all_subtasks():
        counts[vertex.state.name] = counts.get(vertex.state.name, 0) + 1
    shaped = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    state = common_pb2.JobState.Name(graph.state.value)
    return f"{state} with {shaped or 'no subtasks'} {job.scheduler.waiting}".rstrip()
