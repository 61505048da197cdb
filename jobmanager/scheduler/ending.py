"""How a job ends: finished with its sinks committed, failed, or cancelled."""

from __future__ import annotations

from holdover.v1 import common_pb2, events_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.reconciliation import ADOPTION_TIMER, WAIT_TIMER
from jobmanager.scheduler.states import JobState

CANCEL_TIMER = "cancellation"

_ENDS = {JobState.CANCELLING: JobState.CANCELED, JobState.FAILING: JobState.FAILED}


class JobEnd:
    """Decides when the job is over, and what is done before."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._graph = core.graph
        #: The state that the job ends in, once that is decided.
        self.ended: JobState | None = None
        self._checking_staged_files = False
        self._committing = False

    def cancel(self) -> None:
        """A client wants the job cancelled. Too late once its output is being published."""
        if self._graph.commit is not None or self._graph.cancel_requested:
            return
        requested = events_pb2.JobCancelRequested()
        self._core.emit(events_pb2.JobEvent(cancel_requested=requested))
        if self._graph.state is not JobState.FAILING:
            self._core.change_state(JobState.CANCELLING)
            self._cancel_attempts()

    def fail(self, failure: common_pb2.Failure) -> None:
        """The job fails for this reason; the first one counts."""
        if self._graph.state in _ENDS:
            return
        recorded = events_pb2.JobFailureRecorded(failure=failure)
        self._core.emit(events_pb2.JobEvent(failure_recorded=recorded))
        self._core.change_state(JobState.FAILING)
        self._cancel_attempts()

    def _cancel_attempts(self) -> None:
        core = self._core
        if core.reconciliation is not None:
            core.reconciliation.waiting = core.reconciliation.adopting = False
            core.act(act.CancelTimer(WAIT_TIMER))
            core.act(act.CancelTimer(ADOPTION_TIMER))
        core.unschedule_all()
        for vertex in list(self._graph.active()):
            core.cancel(vertex)
        core.act(act.SetTimer(CANCEL_TIMER, core.options.cancellation_timeout_s))

    def cancellation_timed_out(self) -> None:
        """Attempts that have not ended by now are given up; their TaskManagers will learn of it."""
        if self._graph.state in _ENDS:
            for vertex in list(self._graph.active()):
                self._core.abandon(vertex)

    def settle(self) -> None:
        """After every signal: is the job over?"""
        if self._graph.state in _ENDS:
            # Every active attempt occupies a slot; counting slots does not walk the graph.
            if not self._core.slots.occupied:
                self._end(_ENDS[self._graph.state])
        elif self._graph.state is JobState.RUNNING and self._graph.all_finished:
            self._complete()

    def _complete(self) -> None:
        if self._graph.commit is not None:
            self._commit(self._graph.commit)
        elif not self._output_directories():
            self._end(JobState.FINISHED)
        elif not self._checking_staged_files:
            self._checking_staged_files = True
            self._core.act(act.CheckStagedFiles(tuple(self._staged_files())))

    def staged_files_checked(self) -> bool:
        """The check is over; whether its outcome still matters."""
        self._checking_staged_files = False
        return self._graph.all_finished and self._graph.state is JobState.RUNNING

    def begin_commit(self) -> None:
        """All files are there: record the intent, then publish."""
        commit = events_pb2.JobCommitStarted(
            files=self._staged_files(), output_directories=self._output_directories()
        )
        self._core.emit(events_pb2.JobEvent(commit_started=commit))

    def _commit(self, commit: events_pb2.JobCommitStarted) -> None:
        if not self._committing:
            self._committing = True
            self._core.act(act.CommitSinks(tuple(commit.files), tuple(commit.output_directories)))

    def committed(self) -> None:
        """All output is published."""
        self._end(JobState.FINISHED)

    def _staged_files(self) -> list[common_pb2.StagedFile]:
        return [
            file
            for vertex in self._graph.all_subtasks()
            if vertex.finished is not None
            for file in vertex.finished.staged_files
        ]

    def _output_directories(self) -> list[str]:
        return [path for owner in self._graph.vertices.values() for path in owner.sink_paths]

    def _end(self, state: JobState) -> None:
        self.ended = state
        self._core.act(act.CancelTimer(CANCEL_TIMER))
        # Without this, what is returned would be granted again for ever.
        self._core.act(act.DeclareSlots(0))
        self._core.act(act.ReturnSlots(self._core.slots.give_back()))
        self._core.act(act.EndJob(state, self._graph.failure))
