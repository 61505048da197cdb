"""The scheduler of one job: `handle(signal) -> Decision(events, actions)`.

Every event in a decision has been applied to the graph already; the shell appends the events to the job's log
and carries the actions out. The log may lose its tail in a crash: nothing here relies on an event being durable
except actions that say so (`ReleasePartitions`, `CommitSinks`, `EndJob`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2, job_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.deployment import preferred_worker, task_deployment
from jobmanager.scheduler.execution_graph import (
    ExecutionGraph,
    ExecutionJobVertex,
    ExecutionVertex,
    SubtaskId,
)
from jobmanager.scheduler.failover import ResetPlan, RestartStrategy, plan_resets
from jobmanager.scheduler.parallelism import (
    AdaptiveParallelism,
    initialize_source,
    initialize_vertex,
    ready_to_initialize,
)
from jobmanager.scheduler.reconciliation import ADOPTION_TIMER, WAIT_TIMER, Reconciliation
from jobmanager.scheduler.slot_pool import SlotPool
from jobmanager.scheduler.splits import SplitEnumerator
from jobmanager.scheduler.states import (
    ACTIVE_EXECUTION_STATES,
    ExecutionState,
    JobState,
)

SLOT_TIMER = "slot-request"
CANCEL_TIMER = "cancellation"
RESTART_TIMER = "restart/"


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """The job's options that decide; times in seconds."""

    recovery_wait_s: float
    adoption_wait_s: float
    schedule_while_waiting: bool
    release_during_execution: bool
    slot_request_timeout_s: float
    cancellation_timeout_s: float
    adaptive: AdaptiveParallelism


@dataclass(slots=True)
class Decision:
    """What to remember, and what to do."""

    events: list[events_pb2.JobEvent] = field(default_factory=list)
    actions: list[act.Action] = field(default_factory=list)


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
        self.epoch = epoch
        self.options = options
        self.restart_strategy = restart_strategy
        self.slots = SlotPool()
        #: Set once this leader has recovered the job rather than started it.
        self.reconciliation: Reconciliation | None = None
        #: The state that the job ends in, once EndJob was decided.
        self.ended: JobState | None = None
        #: Data address of each registered worker.
        self._workers: dict[str, str] = {}
        #: SCHEDULED subtasks in the order in which they get slots.
        self._ready: dict[SubtaskId, None] = {}
        self._enumerators: dict[str, SplitEnumerator] = {}
        self._enumerating: set[str] = set()
        self._declared = 0
        self._reclaim = 0
        self._waiting_for_slots = False
        self._staged_check_running = False
        self._decision = Decision()
        self._handlers: dict[type, Callable[..., None]] = {
            sig.JobStarted: self._on_job_started,
            sig.RecoveryStarted: self._on_recovery_started,
            sig.WorkerRegistered: self._on_worker_registered,
            sig.WorkerLost: self._on_worker_lost,
            sig.SlotsGranted: self._on_slots_granted,
            sig.SlotsReclaimed: self._on_slots_reclaimed,
            sig.ExecutionReported: self._on_execution_reported,
            sig.DeploymentRefused: self._on_deployment_refused,
            sig.CancellationUnknown: self._on_cancellation_unknown,
            sig.SplitsEnumerated: self._on_splits_enumerated,
            sig.SplitEnumerationFailed: self._on_split_enumeration_failed,
            sig.CancelRequested: self._on_cancel_requested,
            sig.TimerFired: self._on_timer_fired,
            sig.StagedFilesChecked: self._on_staged_files_checked,
            sig.CommitFinished: self._on_commit_finished,
            sig.CommitFailed: self._on_commit_failed,
        }

    def handle(self, signal: sig.Signal) -> Decision:
        """Decide about one signal. After the job has ended, nothing is decided any more."""
        self._decision = Decision()
        if self.ended is None:
            self._handlers[type(signal)](signal)
            self._assign_slots()
        elif isinstance(signal, sig.SlotsGranted):
            self._act(act.ReturnSlots(signal.slots))
        return self._decision

    def next_split(self, key: AttemptKey, received: int) -> tuple[bool, job_pb2.Split | None]:
        """A source attempt's wish for a split: (whether it is still current, the split or None at the end)."""
        vertex = self.graph.find(key)
        if vertex is None or not self._is_current(vertex, key):
            return False, None
        return True, self._enumerators[key.vertex_id].next_split(vertex, received)

    # -- start and recovery -------------------------------------------------------------------------------

    def _on_job_started(self, _: sig.JobStarted) -> None:
        self._change_state(JobState.RUNNING)
        self._initialize_vertices()

    def _on_recovery_started(self, signal: sig.RecoveryStarted) -> None:
        self._enumerators = {
            owner.vertex_id: SplitEnumerator(owner)
            for owner in self.graph.vertices.values()
            if owner.source is not None and owner.initialized
        }
        if self.graph.failure is not None:
            self._change_state(JobState.FAILING)
            return self._end_if_idle()
        if self.graph.cancel_requested:
            self._change_state(JobState.CANCELLING)
            return self._end_if_idle()
        self._change_state(JobState.RECONCILING)
        self.reconciliation = Reconciliation(self.graph, signal.previous_workers)
        if self.graph.commit is not None:
            self.reconciliation.adopting = False
            self.reconciliation.awaited.clear()
        wait_s = self.options.recovery_wait_s
        self._act(act.SetTimer(WAIT_TIMER, wait_s))
        if self.reconciliation.adopting:
            self._act(act.SetTimer(ADOPTION_TIMER, min(self.options.adoption_wait_s, wait_s)))
        self._end_wait_if_complete()
        self._reschedule()

    def _on_worker_registered(self, signal: sig.WorkerRegistered) -> None:
        self._workers[signal.worker_id] = signal.data_address
        recovery = self.reconciliation
        late = recovery is not None and recovery.is_late(signal.worker_id)
        rejected: list[AttemptKey] = []
        accepted: set[AttemptKey] = set()
        # In the graph's order, so that an adopted producer stands before a consumer that read it.
        order = {vertex_id: place for place, vertex_id in enumerate(self.graph.vertices)}
        for execution in sorted(
            signal.finished, key=lambda e: order.get(e.attempt.vertex_id, len(order))
        ):
            key = AttemptKey.from_proto(execution.attempt)
            if (late and key.epoch < self.epoch) or not self._accept(
                signal.worker_id, key, execution
            ):
                rejected.append(key)
            else:
                accepted.add(key)
                if recovery is not None and signal.worker_id not in recovery.offers:
                    recovery.bytes_kept += sum(p.data_bytes for p in execution.partitions)
        self._miss_what_was_not_offered(signal, accepted)
        if recovery is not None:
            recovery.offered(signal.worker_id, len(signal.finished), len(accepted))
            if not recovery.adopting:
                self._act(act.CancelTimer(ADOPTION_TIMER))
        reason = "late" if late else "superseded"
        self._act(act.RejectOffers(signal.worker_id, tuple(rejected), reason))
        self._end_wait_if_complete()
        self._reschedule()

    def _accept(
        self, worker_id: str, key: AttemptKey, execution: common_pb2.FinishedExecution
    ) -> bool:
        """Take an offered execution: known as finished, or finished but not yet logged."""
        vertex = self.graph.find(key)
        if vertex is None or self.graph.state in (JobState.CANCELLING, JobState.FAILING):
            return False
        if vertex.state is ExecutionState.FINISHED:
            if vertex.key(self.graph.job_id) != key or vertex.stored_at != worker_id:
                return False
            if self.graph.vertices[key.vertex_id].released:
                return False
            self.graph.set_available(vertex, True)
            if self.reconciliation is not None:
                self.reconciliation.found(vertex)
            return True
        if self._is_current(vertex, key):
            self._finish(vertex, execution, worker_id)
            return True
        return self._adopt(vertex, key, execution, worker_id)

    def _adopt(
        self,
        vertex: ExecutionVertex,
        key: AttemptKey,
        execution: common_pb2.FinishedExecution,
        worker_id: str,
    ) -> bool:
        """Take the output of an attempt that finished under an earlier leader without an event."""
        recovery = self.reconciliation
        owner = self.graph.vertices[key.vertex_id]
        if recovery is None or not recovery.open or key.epoch >= self.epoch:
            return False
        if vertex.state in ACTIVE_EXECUTION_STATES or not self._inputs_finished(vertex):
            return False
        if len(execution.partitions) != len(owner.vertex.outputs):
            return False
        splits = list(execution.splits)
        if vertex.pinned_splits is not None:
            if splits != list(vertex.pinned_splits):
                return False
        elif owner.source is not None and not self._enumerators[key.vertex_id].claim(splits):
            return False
        self._ready.pop(vertex.id, None)
        recovery.counts[key.vertex_id].adopted += 1
        self._finish(vertex, execution, worker_id, adopted=True)
        return True

    def _inputs_finished(self, vertex: ExecutionVertex) -> bool:
        """An adopted subtask must have read what the log says its producers left behind."""
        return all(p.state is ExecutionState.FINISHED for p in self.graph.producers(vertex))

    def _miss_what_was_not_offered(
        self, signal: sig.WorkerRegistered, accepted: set[AttemptKey]
    ) -> None:
        """An inventory is complete: what it lacks is not at that worker, from this moment on."""
        running = set(signal.running)
        lost: list[tuple[ExecutionVertex, int]] = []
        for vertex in self.graph.all_subtasks():
            key = vertex.key(self.graph.job_id)
            if vertex.finished is not None and vertex.stored_at == signal.worker_id:
                if key in accepted or key in running:
                    continue
                self.graph.set_available(vertex, False)
                if self.reconciliation is not None and self.reconciliation.waiting:
                    self.reconciliation.gone(vertex)
                else:
                    lost.append((vertex, events_pb2.RESET_REASON_PARTITION_MISSING))
            elif (
                vertex.state in ACTIVE_EXECUTION_STATES
                and vertex.slot is not None
                and vertex.slot.worker_id == signal.worker_id
                and key not in running
            ):
                # Should the deployment still be under way, it must not occupy the slot.
                self._act(act.Cancel(signal.worker_id, key))
                self._abandon(vertex)
        self._apply_plan(plan_resets(self.graph, lost, self._awaited()))

    def _end_wait_if_complete(self) -> None:
        recovery = self.reconciliation
        if recovery is not None and recovery.waiting and not recovery.awaited:
            recovery.ended_early = True
            self._act(act.CancelTimer(WAIT_TIMER))
            self._end_wait()

    def _end_wait(self) -> None:
        """The verdict: what has not come is missing; its producers are reset, all together."""
        recovery = self.reconciliation
        assert recovery is not None
        recovery.waiting = False
        missing = (*recovery.missing, *recovery.awaited)
        recovery.awaited.clear()
        lost = [
            (self.graph.vertex_at(*subtask), events_pb2.RESET_REASON_PARTITION_MISSING)
            for subtask in missing
        ]
        plan = plan_resets(self.graph, lost)
        for (vertex_id, _), reason in plan.resets.items():
            counts = recovery.counts[vertex_id].resets
            counts[reason] = counts.get(reason, 0) + 1
        self._apply_plan(plan)
        self._change_state(JobState.RUNNING)
        if self.graph.commit is not None:
            self._commit(self.graph.commit)
            return
        self._initialize_vertices()
        self._reschedule()

    def _awaited(self) -> frozenset[SubtaskId]:
        recovery = self.reconciliation
        return frozenset(recovery.awaited) if recovery is not None else frozenset()

    # -- workers and slots --------------------------------------------------------------------------------

    def _on_worker_lost(self, signal: sig.WorkerLost) -> None:
        self._workers.pop(signal.worker_id, None)
        self.slots.lose_worker(signal.worker_id)
        lost: list[tuple[ExecutionVertex, int]] = []
        for vertex in self.graph.all_subtasks():
            if vertex.finished is not None and vertex.stored_at == signal.worker_id:
                if vertex.available:
                    self.graph.set_available(vertex, False)
                    lost.append((vertex, events_pb2.RESET_REASON_WORKER_LOST))
            elif (
                vertex.state in ACTIVE_EXECUTION_STATES
                and vertex.slot is not None
                and vertex.slot.worker_id == signal.worker_id
            ):
                self._abandon(vertex)
        self._apply_plan(plan_resets(self.graph, lost, self._awaited()))
        self._reschedule()
        self._end_if_idle()

    def _on_slots_granted(self, signal: sig.SlotsGranted) -> None:
        self.slots.grant(signal.slots)
        if self._waiting_for_slots:
            self._waiting_for_slots = False
            self._act(act.CancelTimer(SLOT_TIMER))

    def _on_slots_reclaimed(self, signal: sig.SlotsReclaimed) -> None:
        self._reclaim = signal.count

    def _may_deploy(self) -> bool:
        recovery = self.reconciliation
        if recovery is not None and recovery.adopting:
            return False
        if self.graph.state is JobState.RECONCILING:
            return self.options.schedule_while_waiting
        return self.graph.state is JobState.RUNNING and self.graph.commit is None

    def _assign_slots(self) -> None:
        """Give free slots to ready subtasks, ask for more, give back what is not needed."""
        if self.ended is not None:
            return
        if self._reclaim and self.slots.free_count:
            given_back = self.slots.give_back(self._reclaim)
            self._reclaim -= len(given_back)
            self._act(act.ReturnSlots(given_back))
        if self._may_deploy():
            while self._ready and self.slots.free_count:
                subtask = next(iter(self._ready))
                del self._ready[subtask]
                self._deploy(self.graph.vertex_at(*subtask))
        self._declare_slots()

    def _declare_slots(self) -> None:
        wanted = self.slots.occupied_count + len(self._ready)
        if self.slots.free_count and not self._ready:
            self._act(act.ReturnSlots(self.slots.give_back()))
        if wanted != self._declared and (wanted > len(self.slots) or not self._ready):
            self._declared = wanted
            self._act(act.DeclareSlots(wanted))
        starved = bool(self._ready) and len(self.slots) == 0 and self._may_deploy()
        if starved and not self._waiting_for_slots:
            self._waiting_for_slots = True
            self._act(act.SetTimer(SLOT_TIMER, self.options.slot_request_timeout_s))
        elif not starved and self._waiting_for_slots:
            self._waiting_for_slots = False
            self._act(act.CancelTimer(SLOT_TIMER))

    def _deploy(self, vertex: ExecutionVertex) -> None:
        if not self.graph.inputs_available(vertex):
            self.graph.transition(vertex, ExecutionState.CREATED)
            return
        slot = self.slots.take(vertex.id, preferred_worker(self.graph, vertex))
        self.graph.transition(vertex, ExecutionState.DEPLOYING)
        vertex.epoch = self.epoch
        vertex.slot = slot
        self._act(act.Deploy(slot, task_deployment(self.graph, vertex, slot, self._workers)))

    @property
    def waiting(self) -> str:
        """Why nothing runs although something could; empty otherwise."""
        if not self._waiting_for_slots:
            return ""
        workers = len(self._workers)
        return (
            f"waiting for resources: {len(self._ready)} subtasks are ready and no slot is free "
            f"({workers} TaskManagers are registered); start TaskManagers or wait for other jobs"
        )

    # -- initialization and readiness ---------------------------------------------------------------------

    def _initialize_vertices(self) -> None:
        """Decide the shape of every vertex whose inputs allow it, in topological order."""
        for owner in self.graph.vertices.values():
            if not owner.initialized:
                self._initialize(owner)

    def _initialize(self, owner: ExecutionJobVertex) -> None:
        if self.graph.state is not JobState.RUNNING:
            return None
        if owner.source is not None:
            if owner.vertex_id not in self._enumerating:
                self._enumerating.add(owner.vertex_id)
                wanted = owner.vertex.parallelism or self.options.adaptive.parallelism_max
                self._act(act.EnumerateSplits(owner.vertex_id, owner.source, wanted))
            return None
        if not ready_to_initialize(self.graph, owner):
            return None
        try:
            event = initialize_vertex(self.graph, owner, self.options.adaptive)
        except ValueError as error:
            return self._fail_job(_job_failure(f"vertex {owner.vertex.name}: {error}"))
        self._emit(events_pb2.JobEvent(vertex_initialized=event))
        self._enqueue(owner)

    def _on_splits_enumerated(self, signal: sig.SplitsEnumerated) -> None:
        owner = self.graph.vertices[signal.vertex_id]
        if owner.initialized or self.graph.state is not JobState.RUNNING:
            return
        event = initialize_source(owner, signal.splits, self.options.adaptive)
        self._emit(events_pb2.JobEvent(vertex_initialized=event))
        self._enumerators[owner.vertex_id] = SplitEnumerator(owner)
        self._enqueue(owner)
        self._initialize_vertices()

    def _on_split_enumeration_failed(self, signal: sig.SplitEnumerationFailed) -> None:
        self._fail_job(_job_failure(signal.reason))

    def _enqueue(self, owner: ExecutionJobVertex) -> None:
        """Schedule every subtask of a vertex that is CREATED and whose inputs are there."""
        for vertex in owner.subtasks:
            self._enqueue_subtask(vertex)

    def _enqueue_subtask(self, vertex: ExecutionVertex) -> None:
        if (
            vertex.state is ExecutionState.CREATED
            and not vertex.held
            and self.graph.state in (JobState.RUNNING, JobState.RECONCILING)
            and self.graph.inputs_available(vertex)
        ):
            self.graph.transition(vertex, ExecutionState.SCHEDULED)
            self._ready[vertex.id] = None

    def _reschedule(self) -> None:
        """After a loss or a return: readiness anew, from state (P13)."""
        for subtask in list(self._ready):
            vertex = self.graph.vertex_at(*subtask)
            if not self.graph.inputs_available(vertex):
                del self._ready[subtask]
                self.graph.transition(vertex, ExecutionState.CREATED)
        for owner in self.graph.vertices.values():
            self._enqueue(owner)
        self._complete_if_finished()

    # -- what became of attempts --------------------------------------------------------------------------

    def _is_current(self, vertex: ExecutionVertex, key: AttemptKey) -> bool:
        return vertex.state in ACTIVE_EXECUTION_STATES and vertex.key(self.graph.job_id) == key

    def _on_execution_reported(self, signal: sig.ExecutionReported) -> None:
        vertex = self.graph.find(signal.key)
        if vertex is None or not self._is_current(vertex, signal.key):
            self._drop_late_report(vertex, signal)
        elif signal.state == ExecutionState.RUNNING:
            if vertex.state is ExecutionState.DEPLOYING:
                self.graph.transition(vertex, ExecutionState.RUNNING)
        elif signal.state == ExecutionState.FINISHED and signal.finished is not None:
            if vertex.state is ExecutionState.CANCELING:
                self._act(act.ReleasePartitions(signal.worker_id, (signal.key,)))
                self._abandon(vertex)
                self._after_cancellation(vertex)
            else:
                self._finish(vertex, signal.finished, signal.worker_id)
        elif signal.state == ExecutionState.CANCELED or vertex.state is ExecutionState.CANCELING:
            self._abandon(vertex)
            self._after_cancellation(vertex)
        else:
            failure = signal.failure or common_pb2.Failure(
                kind=common_pb2.FAILURE_KIND_TASK, message="the task failed without a reason"
            )
            self._on_failure(vertex, failure)

    def _drop_late_report(
        self, vertex: ExecutionVertex | None, signal: sig.ExecutionReported
    ) -> None:
        """An older attempt's report changes nothing (P15); output that it left behind is deleted."""
        known = (
            vertex is not None
            and vertex.state is ExecutionState.FINISHED
            and vertex.key(self.graph.job_id) == signal.key
        )
        if signal.state == ExecutionState.FINISHED and not known:
            self._act(act.ReleasePartitions(signal.worker_id, (signal.key,)))

    def _finish(
        self,
        vertex: ExecutionVertex,
        execution: common_pb2.FinishedExecution,
        worker_id: str,
        *,
        adopted: bool = False,
    ) -> None:
        slot, owner = vertex.slot, self.graph.vertices[vertex.vertex_id]
        finished = events_pb2.ExecutionVertexFinished(
            execution=execution,
            location=common_pb2.PartitionLocation(worker_id=worker_id),
            adopted=adopted,
        )
        self._emit(events_pb2.JobEvent(vertex_finished=finished))
        if slot is not None:
            self.slots.vacate(slot, vertex.id)
        self.graph.set_available(vertex, worker_id in self._workers)
        if owner.all_finished:
            self._act(act.FlushEvents())
            self._release_inputs(owner)
            self._initialize_vertices()
        for edge in owner.out_edges:
            target = self.graph.vertices[edge.target]
            if edge.forward and target.initialized:
                self._enqueue_subtask(target.subtasks[vertex.subtask])
            elif owner.available_count == owner.parallelism:
                self._enqueue(target)
        self._complete_if_finished()

    def _release_inputs(self, owner: ExecutionJobVertex) -> None:
        """Delete partitions that no unfinished subtask reads any more."""
        if not self.options.release_during_execution:
            return
        for edge in owner.in_edges:
            source = self.graph.vertices[edge.source]
            consumers = (self.graph.vertices[e.target] for e in source.out_edges)
            if source.released or not source.all_finished:
                continue
            if all(consumer.all_finished for consumer in consumers):
                source.released = True
                by_worker: dict[str, list[AttemptKey]] = {}
                for vertex in source.subtasks:
                    self.graph.set_available(vertex, False)
                    by_worker.setdefault(vertex.stored_at, []).append(vertex.key(self.graph.job_id))
                for worker_id, keys in by_worker.items():
                    self._act(act.ReleasePartitions(worker_id, tuple(keys)))

    def _abandon(self, vertex: ExecutionVertex) -> None:
        """The current attempt is over without output; the subtask is CREATED again with the next attempt."""
        if vertex.slot is not None:
            self.slots.vacate(vertex.slot, vertex.id)
        enumerator = self._enumerators.get(vertex.vertex_id)
        if enumerator is not None and vertex.pinned_splits is None:
            enumerator.give_back(vertex.splits)
        self.graph.renew(vertex)

    def _on_failure(self, vertex: ExecutionVertex, failure: common_pb2.Failure) -> None:
        self._abandon(vertex)
        if self.graph.state in (JobState.FAILING, JobState.CANCELLING):
            return self._end_if_idle()
        if failure.kind == common_pb2.FAILURE_KIND_JOB:
            return self._fail_job(failure)
        if failure.kind == common_pb2.FAILURE_KIND_PARTITION_LOST:
            fresh = self._reset_lost_partitions(failure)
            if not fresh:
                # Somebody reported the same loss before: its producer runs again already.
                return self._reschedule()
        if failure.kind in (
            common_pb2.FAILURE_KIND_TASKMANAGER_LOST,
            common_pb2.FAILURE_KIND_CANCELED,
        ):
            return self._enqueue_subtask(vertex)
        delay_s = self.restart_strategy.next_delay_s()
        if delay_s is None:
            failure.message = (
                f"{failure.message} (subtask {vertex.vertex_id}/{vertex.subtask}; no restarts are left, "
                f"restart-strategy allows {self.restart_strategy.attempts_max})"
            )
            return self._fail_job(failure)
        if failure.kind == common_pb2.FAILURE_KIND_PARTITION_LOST or delay_s == 0:
            return self._reschedule()
        vertex.held = True
        timer = f"{RESTART_TIMER}{vertex.vertex_id}/{vertex.subtask}"
        self._act(act.SetTimer(timer, delay_s))

    def _reset_lost_partitions(self, failure: common_pb2.Failure) -> bool:
        """Reset the producers of partitions that a consumer could not read; False if none is current."""
        lost = []
        for name in failure.lost_partitions:
            producer = self._producer_of(name)
            if producer is not None:
                self.graph.set_available(producer, False)
                lost.append((producer, events_pb2.RESET_REASON_PARTITION_LOST))
                self._act(
                    act.ReleasePartitions(producer.stored_at, (producer.key(self.graph.job_id),))
                )
        self._apply_plan(plan_resets(self.graph, lost, self._awaited()))
        return bool(lost)

    def _producer_of(self, name: str) -> ExecutionVertex | None:
        """The finished subtask whose current attempt wrote the partition of that name."""
        try:
            job_id, rest = name.split("/", 1)
            vertex_id, _output, subtask, attempt, epoch = rest.split("-")
            key = AttemptKey(job_id, vertex_id, int(subtask), int(attempt), int(epoch))
        except ValueError:
            return None
        vertex = self.graph.find(key)
        if vertex is None or vertex.finished is None or vertex.key(self.graph.job_id) != key:
            return None
        return vertex

    def _apply_plan(self, plan: ResetPlan) -> None:
        """Reset and restart what a plan names; each vertex's resets of one reason are one event."""
        if not plan.resets and not plan.restarts:
            return
        if self.graph.commit is not None:
            return
        for subtask in plan.restarts:
            vertex = self.graph.vertex_at(*subtask)
            if vertex.state in ACTIVE_EXECUTION_STATES and vertex.slot is not None:
                self._act(act.Cancel(vertex.slot.worker_id, vertex.key(self.graph.job_id)))
                self.graph.transition(vertex, ExecutionState.CANCELING)
        grouped: dict[tuple[str, int], list[int]] = {}
        for (vertex_id, subtask_index), reason in plan.resets.items():
            grouped.setdefault((vertex_id, reason), []).append(subtask_index)
        for (vertex_id, reason), subtasks in grouped.items():
            self._release_before_reset(vertex_id, subtasks)
            reset = events_pb2.ExecutionVertexReset(
                vertex_id=vertex_id, subtasks=sorted(subtasks), reason=_reason(reason)
            )
            self._emit(events_pb2.JobEvent(vertex_reset=reset))

    def _release_before_reset(self, vertex_id: str, subtasks: Iterable[int]) -> None:
        """Output that a reset supersedes, and that is still at a worker, is deleted."""
        for subtask in subtasks:
            vertex = self.graph.vertex_at(vertex_id, subtask)
            if vertex.available:
                self._act(act.ReleasePartitions(vertex.stored_at, (vertex.key(self.graph.job_id),)))

    def _after_cancellation(self, vertex: ExecutionVertex) -> None:
        if self.graph.state in (JobState.CANCELLING, JobState.FAILING):
            self._end_if_idle()
        else:
            self._enqueue_subtask(vertex)

    def _on_deployment_refused(self, signal: sig.DeploymentRefused) -> None:
        vertex = self.graph.find(signal.key)
        if vertex is not None and self._is_current(vertex, signal.key):
            self._abandon(vertex)
            self._after_cancellation(vertex)

    def _on_cancellation_unknown(self, signal: sig.CancellationUnknown) -> None:
        vertex = self.graph.find(signal.key)
        if vertex is None or not self._is_current(vertex, signal.key):
            return
        if vertex.state is ExecutionState.CANCELING:
            self._abandon(vertex)
            self._after_cancellation(vertex)

    # -- timers -------------------------------------------------------------------------------------------

    def _on_timer_fired(self, signal: sig.TimerFired) -> None:
        recovery = self.reconciliation
        if signal.name == WAIT_TIMER:
            if recovery is not None and recovery.waiting:
                recovery.adopting = False
                self._end_wait()
        elif signal.name == ADOPTION_TIMER:
            if recovery is not None:
                recovery.adopting = False
        elif signal.name == SLOT_TIMER:
            if self._waiting_for_slots:
                timeout = self.options.slot_request_timeout_s
                message = f"no slot within slot.request.timeout ({timeout:g} s); {self.waiting}"
                self._fail_job(_job_failure(message))
        elif signal.name == CANCEL_TIMER:
            for vertex in list(self.graph.active()):
                self._abandon(vertex)
            self._end_if_idle()
        elif signal.name.startswith(RESTART_TIMER):
            vertex_id, subtask = signal.name.removeprefix(RESTART_TIMER).split("/")
            vertex = self.graph.vertex_at(vertex_id, int(subtask))
            vertex.held = False
            self._enqueue_subtask(vertex)

    # -- the end ------------------------------------------------------------------------------------------

    def _on_cancel_requested(self, _: sig.CancelRequested) -> None:
        if self.graph.commit is not None or self.graph.cancel_requested:
            return
        self._emit(events_pb2.JobEvent(cancel_requested=events_pb2.JobCancelRequested()))
        if self.graph.state is not JobState.FAILING:
            self._change_state(JobState.CANCELLING)
            self._cancel_all()

    def _fail_job(self, failure: common_pb2.Failure) -> None:
        if self.graph.state in (JobState.FAILING, JobState.CANCELLING):
            return
        recorded = events_pb2.JobFailureRecorded(failure=failure)
        self._emit(events_pb2.JobEvent(failure_recorded=recorded))
        self._change_state(JobState.FAILING)
        self._cancel_all()

    def _cancel_all(self) -> None:
        if self.reconciliation is not None:
            self.reconciliation.waiting = self.reconciliation.adopting = False
            self._act(act.CancelTimer(WAIT_TIMER))
            self._act(act.CancelTimer(ADOPTION_TIMER))
        for subtask in self._ready:
            self.graph.transition(self.graph.vertex_at(*subtask), ExecutionState.CREATED)
        self._ready.clear()
        for vertex in self.graph.active():
            if vertex.state is not ExecutionState.CANCELING and vertex.slot is not None:
                self.graph.transition(vertex, ExecutionState.CANCELING)
                self._act(act.Cancel(vertex.slot.worker_id, vertex.key(self.graph.job_id)))
        self._act(act.SetTimer(CANCEL_TIMER, self.options.cancellation_timeout_s))
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        """End a job that is being cancelled or fails, once no attempt is active."""
        end = {JobState.CANCELLING: JobState.CANCELED, JobState.FAILING: JobState.FAILED}
        if self.graph.state in end and not any(self.graph.active()):
            self._end(end[self.graph.state])

    def _complete_if_finished(self) -> None:
        if self.graph.state is not JobState.RUNNING or not self.graph.all_finished:
            return None
        if self.graph.commit is not None or self._staged_check_running:
            return None
        files = self._staged_files()
        if not self._output_directories():
            return self._end(JobState.FINISHED)
        self._staged_check_running = True
        self._act(act.CheckStagedFiles(tuple(files)))

    def _staged_files(self) -> list[common_pb2.StagedFile]:
        return [
            file
            for vertex in self.graph.all_subtasks()
            if vertex.finished is not None
            for file in vertex.finished.staged_files
        ]

    def _output_directories(self) -> list[str]:
        return [
            operator.sink.path
            for owner in self.graph.vertices.values()
            for operator in owner.vertex.operators
            if operator.HasField("sink")
        ]

    def _on_staged_files_checked(self, signal: sig.StagedFilesChecked) -> None:
        """All there: the commit begins. Some gone: their subtasks run again."""
        self._staged_check_running = False
        if not self.graph.all_finished or self.graph.state is not JobState.RUNNING:
            return None
        if signal.missing:
            gone = set(signal.missing)
            lost = [
                (vertex, events_pb2.RESET_REASON_STAGED_FILES_LOST)
                for vertex in self.graph.all_subtasks()
                if vertex.finished is not None
                and any(file.staged_path in gone for file in vertex.finished.staged_files)
            ]
            if self.restart_strategy.next_delay_s() is None:
                message = f"staged files are gone again: {signal.missing[0]}"
                return self._fail_job(_job_failure(message))
            self._apply_plan(plan_resets(self.graph, lost, self._awaited()))
            return self._reschedule()
        commit = events_pb2.JobCommitStarted(
            files=self._staged_files(), output_directories=self._output_directories()
        )
        self._emit(events_pb2.JobEvent(commit_started=commit))
        self._commit(commit)

    def _commit(self, commit: events_pb2.JobCommitStarted) -> None:
        self._act(act.CommitSinks(tuple(commit.files), tuple(commit.output_directories)))

    def _on_commit_finished(self, _: sig.CommitFinished) -> None:
        self._end(JobState.FINISHED)

    def _on_commit_failed(self, signal: sig.CommitFailed) -> None:
        self._fail_job(_job_failure(signal.reason))

    def _end(self, state: JobState) -> None:
        self.ended = state
        self._act(act.CancelTimer(CANCEL_TIMER))
        self._act(act.ReturnSlots(self.slots.give_back()))
        self._act(act.EndJob(state, self.graph.failure))

    # -- the decision under construction ------------------------------------------------------------------

    def _emit(self, event: events_pb2.JobEvent) -> None:
        self.graph.apply(event)
        self._decision.events.append(event)

    def _act(self, action: act.Action) -> None:
        self._decision.actions.append(action)

    def _change_state(self, state: JobState) -> None:
        changed = events_pb2.JobStateChanged(state=state.value)
        self._emit(events_pb2.JobEvent(job_state_changed=changed))


def _reason(reason: int) -> events_pb2.ResetReason.ValueType:
    return events_pb2.ResetReason.Value(events_pb2.ResetReason.Name(reason))


def _job_failure(message: str) -> common_pb2.Failure:
    return common_pb2.Failure(kind=common_pb2.FAILURE_KIND_JOB, message=message)
