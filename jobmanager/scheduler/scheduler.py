"""The scheduler of one job: `handle(signal) -> Decision(events, actions)`.

Every event in a decision has been applied to the graph already; the shell appends the events to the
job's log and carries the actions out. The log may lose its tail in a crash: nothing here relies on
an event being durable except actions that say so (`ReleasePartitions`, `CommitSinks`, `EndJob`).
"""

from __future__ import annotations

from collections.abc import Callable

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import (
    SLOT_TIMER,
    Decision,
    SchedulerCore,
    SchedulerOptions,
    job_failure,
)
from jobmanager.scheduler.ending import CANCEL_TIMER, JobEnd
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.failures import RESTART_TIMER, FailureHandling
from jobmanager.scheduler.moved_partitions import MovedPartitions
from jobmanager.scheduler.optional_partitions import make_room
from jobmanager.scheduler.reconciliation import ADOPTION_TIMER, WAIT_TIMER, Reconciliation
from jobmanager.scheduler.restarted_workers import RESTART_WAIT_TIMER, RestartedWorkers
from jobmanager.scheduler.returning_workers import ReturningWorkers
from jobmanager.scheduler.states import ExecutionState, JobState
from jobmanager.scheduler.vertices import ExecutionVertex


class Scheduler:
    """One job's decisions under one leader."""

    def __init__(
        self,
        graph: ExecutionGraph,
        epoch: int,
        options: SchedulerOptions,
        restart_strategy: RestartStrategy,
    ) -> None:
        self.graph = graph
        self.restart_strategy = restart_strategy
        #: State shared with the parts; others may read it only.
        self.core = SchedulerCore(graph, epoch, options)
        self._restarts = RestartedWorkers(self.core)
        self._failures = FailureHandling(self.core, restart_strategy, self._restarts)
        self._moves = MovedPartitions(self.core, self._failures)
        self._returns = ReturningWorkers(self.core, self._failures, self._restarts, self._moves)
        self._end = JobEnd(self.core)
        self._handlers: dict[type, Callable[..., None]] = {
            sig.JobStarted: lambda _: self.core.change_state(JobState.RUNNING),
            sig.RecoveryStarted: lambda s: self._returns.start_recovery(s.previous_workers),
            sig.WorkerRegistered: self._on_worker_registered,
            sig.ShuffleLoadTold: self._on_shuffle_load_told,
            sig.PartitionsCopied: self._moves.copied,
            sig.WorkerLost: self._on_worker_lost,
            sig.WorkerRestarted: lambda s: self._restarts.restarted(s.worker_id),
            sig.RoomWanted: lambda s: make_room(self.core, s),
            sig.SlotsGranted: lambda s: self.core.slots.grant(s.slots),
            sig.SlotsReclaimed: self._on_slots_reclaimed,
            sig.ExecutionReported: self._on_execution_reported,
            sig.DeploymentRefused: self._on_deployment_refused,
            sig.CancellationUnknown: self._on_cancellation_unknown,
            sig.SplitsEnumerated: self._on_splits_enumerated,
            sig.SplitEnumerationFailed: lambda s: self._end.fail(job_failure(s.reason)),
            sig.CancelRequested: lambda _: self._end.cancel(),
            sig.TimerFired: self._on_timer_fired,
            sig.StagedFilesChecked: self._on_staged_files_checked,
            sig.CommitFinished: lambda _: self._end.committed(),
            sig.CommitFailed: lambda s: self._end.fail(job_failure(s.reason)),
        }

    @property
    def ended(self) -> JobState | None:
        """The state that the job ends in, once that is decided."""
        return self._end.ended

    @property
    def reconciliation(self) -> Reconciliation | None:
        """The recovery, if this leader recovered the job rather than started it."""
        return self.core.reconciliation

    @property
    def waiting(self) -> str:
        """Why nothing runs although something could; empty otherwise."""
        return self.core.waiting or self._restarts.waiting or self.core.waiting_for_room

    def handle(self, signal: sig.Signal) -> Decision:
        """Decide about one signal. After the job has ended, nothing is decided any more.

        A large registration is judged in parts, so that nobody waits long for the event loop: as
        long as a decision is `unfinished`, the same signal is to be handled again.
        """
        decision = self.core.decision = Decision()
        if self._end.ended is None:
            self._handlers[type(signal)](signal)
            if not decision.unfinished:
                self._settle()
        elif isinstance(signal, sig.SlotsGranted):
            self.core.act(act.ReturnSlots(signal.slots))
        return decision

    def _settle(self) -> None:
        """What may follow from any signal: vertices take shape, the job ends, slots are used."""
        core, end = self.core, self._end
        if end.ended is None:
            if core.doom is not None:
                end.fail(core.doom)
            core.initialize_vertices()
            end.settle()
        if end.ended is None:
            core.assign_slots()

    def next_split(self, key: AttemptKey, received: int) -> tuple[bool, job_pb2.Split | None]:
        """A source attempt's wish: (whether it is still current, the split or None at the end)."""
        vertex = self.graph.find(key)
        enumerator = self.core.enumerators.get(key.vertex_id)
        if vertex is None or enumerator is None or not self.core.is_current(vertex, key):
            return False, None
        return True, enumerator.next_split(vertex, received)

    def needs_worker(self, worker_id: str) -> bool:
        """Whether the job may still want anything that a leaving shuffle service holds."""
        return self.ended is None and self._moves.needs(worker_id)

    def _on_shuffle_load_told(self, signal: sig.ShuffleLoadTold) -> None:
        self._failures.shuffle_load(signal.worker_id, signal.load)
        self._moves.load_told(signal.worker_id, signal.load)

    def _on_worker_registered(self, signal: sig.WorkerRegistered) -> None:
        self.core.decision.unfinished = not self._returns.register(signal)

    def _on_worker_lost(self, signal: sig.WorkerLost) -> None:
        self._moves.worker_lost(signal.worker_id)
        self._failures.lose_worker(signal.worker_id)
        self._returns.worker_lost(signal.worker_id)

    def _on_slots_reclaimed(self, signal: sig.SlotsReclaimed) -> None:
        self.core.reclaim = signal.count

    def _on_execution_reported(self, signal: sig.ExecutionReported) -> None:
        vertex = self.graph.find(signal.key)
        if vertex is None or not self.core.is_current(vertex, signal.key):
            self._drop_late_report(vertex, signal)
        elif signal.state == ExecutionState.RUNNING:
            if vertex.state is ExecutionState.DEPLOYING:
                self.graph.transition(vertex, ExecutionState.RUNNING)
        elif vertex.state is ExecutionState.CANCELING or signal.state == ExecutionState.CANCELED:
            if signal.state == ExecutionState.FINISHED:
                self.core.release_unwanted(signal.worker_id, signal.key)
            self._try_again(vertex)
        elif signal.state == ExecutionState.FINISHED and signal.finished is not None:
            if self.core.settle_splits(vertex, signal.finished):
                # Where it ran, and where its output is, are two things (P39).
                stored_at = self.core.shuffle.target_of(vertex.id) or signal.worker_id
                self.core.finish(vertex, signal.finished, stored_at)
                self._returns.end_wait_if_complete()
            else:
                self.core.release_unwanted(signal.worker_id, signal.key)
                self._try_again(vertex)
        else:
            failure = self._failures.attempt_failed(vertex, signal.failure or _no_reason())
            if failure is not None:
                self._end.fail(failure)

    def _drop_late_report(
        self, vertex: ExecutionVertex | None, signal: sig.ExecutionReported
    ) -> None:
        """An older attempt's report changes nothing (P15); output that it left is deleted.

        Not so what was offered and is still to be judged: a TaskManager repeats to a new leader
        the reports that the old one has not acknowledged.
        """
        recovery = self.core.reconciliation
        known = (
            vertex is not None
            and vertex.state is ExecutionState.FINISHED
            and vertex.key(self.graph.job_id) == signal.key
        ) or (recovery is not None and signal.key in recovery.deferred)
        if signal.state == ExecutionState.FINISHED and not known:
            self.core.release_unwanted(signal.worker_id, signal.key)

    def _try_again(self, vertex: ExecutionVertex) -> None:
        """The current attempt is over and nobody is to blame."""
        self.core.abandon(vertex)
        self.core.enqueue_subtask(vertex)

    def _on_deployment_refused(self, signal: sig.DeploymentRefused) -> None:
        vertex = self.graph.find(signal.key)
        if vertex is not None and self.core.is_current(vertex, signal.key):
            self._failures.deployment_refused(vertex)

    def _on_cancellation_unknown(self, signal: sig.CancellationUnknown) -> None:
        vertex = self.graph.find(signal.key)
        if (
            vertex is not None
            and vertex.state is ExecutionState.CANCELING
            and self.core.is_current(vertex, signal.key)
        ):
            self._try_again(vertex)

    def _on_splits_enumerated(self, signal: sig.SplitsEnumerated) -> None:
        self.core.splits_listed(signal.vertex_id, signal.splits)
        self._returns.take_up_deferred()

    def _on_staged_files_checked(self, signal: sig.StagedFilesChecked) -> None:
        """All there: the commit begins. Some gone: their subtasks run again."""
        if not self._end.staged_files_checked():
            return None
        if not signal.missing:
            return self._end.begin_commit()
        failure = self._failures.staged_files_lost(signal.missing)
        if failure is not None:
            self._end.fail(failure)
        return None

    def _on_timer_fired(self, signal: sig.TimerFired) -> None:
        if signal.name == WAIT_TIMER:
            self._returns.wait_timer_fired()
        elif signal.name == ADOPTION_TIMER:
            self._returns.adoption_timer_fired()
        elif signal.name == CANCEL_TIMER:
            self._end.cancellation_timed_out()
        elif signal.name == SLOT_TIMER and self.core.waiting:
            self._end.fail(job_failure(f"slot.request.timeout has passed; {self.core.waiting}"))
        elif signal.name.startswith(RESTART_WAIT_TIMER):
            self._returns.restart_wait_over(signal.name.removeprefix(RESTART_WAIT_TIMER))
        elif signal.name.startswith(RESTART_TIMER):
            self._failures.restart_delay_over(signal.name)


def _no_reason() -> common_pb2.Failure:
    return common_pb2.Failure(
        kind=common_pb2.FAILURE_KIND_TASK, message="the task failed without a reason"
    )
