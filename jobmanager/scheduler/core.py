"""The part of a job's scheduler that the others build on: state, slots, readiness, deployment.

`SchedulerCore` holds what all parts share and the decision under construction. Its methods are the
steps that more than one part takes; which signal leads to which steps is said in `scheduler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2, job_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler.deployment import InputDigests, TaskDeployments, preferred_worker
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.output_refusals import OutputRefusals
from jobmanager.scheduler.parallelism import (
    AdaptiveParallelism,
    initialize_source,
    initialize_vertex,
    ready_to_initialize,
)
from jobmanager.scheduler.ready_queue import ReadyQueue
from jobmanager.scheduler.reconciliation import Reconciliation
from jobmanager.scheduler.shuffle_master import shuffle_master
from jobmanager.scheduler.slot_pool import SlotPool
from jobmanager.scheduler.splits import SplitEnumerator
from jobmanager.scheduler.states import ACTIVE_EXECUTION_STATES, ExecutionState, JobState
from jobmanager.scheduler.vertices import ExecutionJobVertex, ExecutionVertex

SLOT_TIMER = "slot-request"
_WORKING = (JobState.RUNNING, JobState.RECONCILING)


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
    restart_wait_s: float = 0.0
    #: `shuffle.mode`.
    shuffle_mode: str = "taskmanager"
    recovery_enabled: bool = True


@dataclass(slots=True)
class Decision:
    """What to remember, and what to do."""

    events: list[events_pb2.JobEvent] = field(default_factory=list)
    actions: list[act.Action] = field(default_factory=list)
    #: There is more to decide about the same signal: it is to be handled again, before any other.
    unfinished: bool = False


class SchedulerCore:
    """Shared state and steps of one job's scheduler under one leader."""

    def __init__(self, graph: ExecutionGraph, epoch: int, options: SchedulerOptions) -> None:
        self.graph = graph
        self.epoch = epoch
        self.options = options
        self.slots = SlotPool()
        #: Data address of each registered worker.
        self.workers: dict[str, str] = {}
        #: Lost workers whose finished work waits for them to be started again.
        self.expected_back: dict[str, None] = {}
        #: Whether an inventory is being judged: what its worker lacks is not known yet.
        self.judging_inventory = False
        #: Vertices whose partitions nobody reads any more, unless something runs again.
        self._to_release: dict[str, None] = {}
        #: Where output goes.
        self.shuffle = shuffle_master(options.shuffle_mode, graph.job_id)
        self.refusals = OutputRefusals(options.slot_request_timeout_s)
        #: What is to be deleted at lost shuffle services, should they come back.
        self._owed_releases: dict[str, dict[AttemptKey, None]] = {}
        #: Set once this leader has recovered the job rather than started it.
        self.reconciliation: Reconciliation | None = None
        #: SCHEDULED subtasks.
        self.ready = ReadyQueue()
        #: One for each initialized source.
        self.enumerators: dict[str, SplitEnumerator] = {}
        #: Why the job must fail, once a part has found that nothing else is left.
        self.doom: common_pb2.Failure | None = None
        #: Slots that other jobs wait for.
        self.reclaim = 0
        self.decision = Decision()
        #: What attempts have read that may be otherwise another time.
        self.input_digests = InputDigests(graph)
        self._deployments = TaskDeployments(
            graph,
            self.workers,
            self.input_digests,
            recovery_enabled=options.recovery_enabled,
        )
        self._enumerating: set[str] = set()
        #: Vertices without a shape, or sources of which the splits are not known.
        self._unshaped = list(graph.vertices.values())
        self._declared = 0
        self._waiting_for_slots = False

    # The decision under construction

    def emit(self, event: events_pb2.JobEvent) -> None:
        """Apply a durable change and remember it for the log."""
        self.graph.apply(event)
        self.decision.events.append(event)

    def act(self, action: act.Action) -> None:
        """Have something done."""
        self.decision.actions.append(action)

    def change_state(self, state: JobState) -> None:
        """Change the job's state."""
        changed = events_pb2.JobStateChanged(state=state.value)
        self.emit(events_pb2.JobEvent(job_state_changed=changed))

    # Shape

    def initialize_vertices(self) -> None:
        """Decide the shape of every vertex whose inputs allow it; also while workers are awaited,
        for what they bring back may be of a vertex whose shape is lost with the end of the log."""
        if not self._unshaped or self.graph.state not in _WORKING:
            return
        for owner in self._unshaped:
            if not owner.initialized:
                self._initialize(owner)
            elif owner.splits_unknown and not owner.all_finished:
                self._list_splits(owner)
        self._unshaped = [o for o in self._unshaped if not o.initialized or o.splits_unknown]

    def _initialize(self, owner: ExecutionJobVertex) -> None:
        if owner.source is not None:
            self._list_splits(owner)
        elif ready_to_initialize(self.graph, owner):
            self._take_shape(owner, initialize_vertex(self.graph, owner, self.options.adaptive))

    def _list_splits(self, owner: ExecutionJobVertex) -> None:
        if owner.source is not None and owner.vertex_id not in self._enumerating:
            self._enumerating.add(owner.vertex_id)
            wanted = owner.vertex.parallelism or self.options.adaptive.splits_wanted
            self.act(act.EnumerateSplits(owner.vertex_id, owner.source, wanted))

    def splits_listed(self, vertex_id: str, splits: tuple[job_pb2.Split, ...]) -> None:
        """The splits of a source are known: it takes shape, or what must run of it can."""
        owner = self.graph.vertices[vertex_id]
        self._enumerating.discard(vertex_id)
        if self.graph.state not in _WORKING:
            return
        if not owner.initialized:
            event = initialize_source(owner, splits, self.options.adaptive)
            owner.splits_unknown = False
            self._take_shape(owner, event, splits)
        elif owner.splits_unknown:
            owner.splits_unknown = False
            self.enumerators[vertex_id] = SplitEnumerator(owner, splits)
            self.enqueue(owner)

    def _take_shape(
        self,
        owner: ExecutionJobVertex,
        event: events_pb2.ExecutionJobVertexInitialized,
        splits: tuple[job_pb2.Split, ...] = (),
    ) -> None:
        """Without this event the work of all its subtasks is lost: it is written out at once."""
        self.emit(events_pb2.JobEvent(vertex_initialized=event))
        self.act(act.FlushEvents())
        if owner.source is not None:
            self.enumerators[owner.vertex_id] = SplitEnumerator(owner, splits)
        if self.reconciliation is not None:
            self.reconciliation.deferred.shaped(owner.vertex_id)
        self.enqueue(owner)

    # Readiness

    def enqueue(self, owner: ExecutionJobVertex) -> None:
        """Schedule every subtask of a vertex that is CREATED and whose inputs are there."""
        if not owner.state_counts[ExecutionState.CREATED]:
            return
        for vertex in owner.subtasks:
            self.enqueue_subtask(vertex)

    def enqueue_subtask(self, vertex: ExecutionVertex) -> None:
        """Schedule a subtask if it is CREATED and its inputs are there."""
        if (
            vertex.state is ExecutionState.CREATED
            and not vertex.held
            and self.graph.state in _WORKING
            and self.graph.inputs_available(vertex)
        ):
            self.graph.transition(vertex, ExecutionState.SCHEDULED)
            self.ready.add(vertex.id)

    def reschedule(self) -> None:
        """After a finish, a loss or a return: readiness anew, from state (P13)."""
        for vertex in self.graph.take_readiness_changes():
            if vertex.state is not ExecutionState.SCHEDULED:
                self.enqueue_subtask(vertex)
            elif not self.graph.inputs_available(vertex):
                self.ready.discard(vertex.id)
                self.graph.transition(vertex, ExecutionState.CREATED)

    def schedule_all(self) -> None:
        """After a replay: everything that is ready already."""
        for owner in self.graph.vertices.values():
            self.enqueue(owner)

    def unschedule_all(self) -> None:
        """Nothing more is to be deployed."""
        for subtask in self.ready:
            self.graph.transition(self.graph.vertex_at(*subtask), ExecutionState.CREATED)
        self.ready.clear()

    # Attempts

    def is_current(self, vertex: ExecutionVertex, key: AttemptKey) -> bool:
        """Whether this is the attempt that may occupy a slot now."""
        return vertex.state in ACTIVE_EXECUTION_STATES and key == (
            self.graph.job_id,
            *vertex.id,
            vertex.attempt,
            vertex.epoch,
        )

    def finish(
        self,
        vertex: ExecutionVertex,
        execution: common_pb2.FinishedExecution,
        worker_id: str,
        *,
        adopted: bool = False,
    ) -> None:
        """A subtask has finished, `worker_id` has its output; what waited for it is scheduled."""
        slot, owner = vertex.slot, self.graph.vertices[vertex.vertex_id]
        self._end_writing(vertex, AttemptKey.from_proto(execution.attempt))
        self.refusals.taken(vertex.id)
        if adopted:
            self.ready.discard(vertex.id)
        # In its place: what is put together first, and into the event then, is copied once more.
        event = events_pb2.JobEvent()
        event.vertex_finished.execution.CopyFrom(execution)
        event.vertex_finished.location.worker_id = worker_id
        event.vertex_finished.adopted = adopted
        self.emit(event)
        if slot is not None:
            self.slots.vacate(slot, vertex.id)
        self.graph.set_available(vertex, worker_id in self.workers)
        if self.reconciliation is not None:
            self.reconciliation.deferred.finished(vertex)
        if owner.all_finished:
            self.act(act.FlushEvents())
            self.release_inputs(owner)
            if self.reconciliation is not None:
                self.reconciliation.all_finished(owner)
            self._deployments.forget(owner)
        self.reschedule()

    def settle_splits(
        self, vertex: ExecutionVertex, execution: common_pb2.FinishedExecution
    ) -> bool:
        """An attempt has finished, and is about to count: the splits that it has read are its
        subtask's from now on. False if it must not: see `SplitEnumerator.finish`. True of what is
        no source."""
        enumerator = self.enumerators.get(vertex.vertex_id)
        return enumerator is None or enumerator.finish(vertex, execution.splits)

    def release_inputs(self, owner: ExecutionJobVertex) -> None:
        """All of a vertex is finished: delete partitions that no unfinished subtask reads any more,
        as soon as it is certain that nothing that has read them runs again.
        """
        if self.options.release_during_execution:
            for edge in owner.in_edges:
                self._to_release[edge.source] = None
            self.release_certain()

    def release_certain(self) -> None:
        """Delete what was to be deleted, but for what it is not yet certain of. To be called
        whenever a wait for workers ends, or what one of them brings is judged.
        """
        if self.judging_inventory:
            return
        for vertex_id in list(self._to_release):
            source = self.graph.vertices[vertex_id]
            readers = [self.graph.vertices[edge.target] for edge in source.out_edges]
            if source.released or not all(owner.all_finished for owner in (source, *readers)):
                del self._to_release[vertex_id]
            elif not any(self._may_run_again(reader) for reader in readers):
                del self._to_release[vertex_id]
                self._release(source)

    def wanted(self, vertex: ExecutionVertex) -> bool:
        """Whether somebody may still read the output of a finished subtask: one that is not
        finished, or one that may have to run again."""
        if self.graph.needed(vertex):
            return True
        owner = self.graph.vertices[vertex.vertex_id]
        readers = (self.graph.vertices[edge.target] for edge in owner.out_edges)
        return not owner.released and any(map(self._may_run_again, readers))

    def _may_run_again(self, owner: ExecutionJobVertex) -> bool:
        """Whether finished subtasks of a vertex may have to be reset when a wait for workers ends:
        their output is not here, and will be missing if nobody brings it."""
        gone = owner.parallelism - owner.available_count
        if not gone or not owner.out_edges or owner.released:
            return False
        if self.reconciliation is not None and self.reconciliation.waiting:
            return True
        away = (v.stored_at in self.expected_back for v in owner.subtasks if not v.available)
        return bool(self.expected_back) and any(away)

    def _release(self, source: ExecutionJobVertex) -> None:
        source.released = True
        by_worker: dict[str, list[AttemptKey]] = {}
        for vertex in source.subtasks:
            self.graph.set_available(vertex, False)
            keys = by_worker.setdefault(vertex.stored_at, [])
            keys.append(vertex.key(self.graph.job_id))
        for worker_id, keys in by_worker.items():
            self.act(act.ReleasePartitions(worker_id, tuple(keys)))

    def abandon(self, vertex: ExecutionVertex) -> None:
        """The current attempt is over without output; the subtask is CREATED again."""
        cancelled = vertex.state is ExecutionState.CANCELING
        over = ExecutionState.CANCELED if cancelled else ExecutionState.FAILED
        self.graph.transition(vertex, over)
        self._end_writing(vertex, None)
        if vertex.slot is not None:
            self.slots.vacate(vertex.slot, vertex.id)
        enumerator = self.enumerators.get(vertex.vertex_id)
        if enumerator is not None and vertex.pinned_splits is None:
            enumerator.give_back(vertex.splits)
        self.graph.renew(vertex)

    def _end_writing(self, vertex: ExecutionVertex, finished: AttemptKey | None) -> None:
        """The current attempt is over. What it has left at a shuffle service is deleted, unless it
        is the one that counts; at a lost one when that is back."""
        target = self.shuffle.over(vertex.id)
        if not target:
            return
        key = vertex.key(self.graph.job_id)
        if key == finished:
            return
        if target in self.workers:
            self.act(act.ReleasePartitions(target, (key,)))
        else:
            # Nobody writes to a lost service anew: one attempt of each subtask at most.
            self._owed_releases.setdefault(target, {})[key] = None

    def release_owed(self, worker_id: str) -> None:
        """A worker registers: what should have been deleted there while it was lost is deleted."""
        owed = self._owed_releases.pop(worker_id, {})
        if owed:
            self.act(act.ReleasePartitions(worker_id, tuple(owed)))

    def release_unwanted(self, worker_id: str, key: AttemptKey) -> None:
        """Delete what a finished attempt has left that does not count: where it ran, or at the
        shuffle service that it wrote to, which nobody remembers any more."""
        places = self.shuffle.services if self.shuffle.external else ()
        for place in (worker_id, *places):
            self.act(act.ReleasePartitions(place, (key,)))

    def cancel(self, vertex: ExecutionVertex) -> None:
        """Have the current attempt cancelled; a report will say when it is over."""
        if vertex.state is not ExecutionState.CANCELING and vertex.slot is not None:
            self.graph.transition(vertex, ExecutionState.CANCELING)
            self.act(act.Cancel(vertex.slot.worker_id, vertex.key(self.graph.job_id)))

    def may_come_back(self, vertex: ExecutionVertex) -> bool:
        """Whether a worker may still bring back the partitions of a finished subtask: a previous
        one, or one that is lost and awaited.
        """
        if vertex.stored_at in self.expected_back:
            return not self.graph.vertices[vertex.vertex_id].released
        recovery = self.reconciliation
        return recovery is not None and recovery.may_come_back(vertex)

    # Slots

    def may_deploy(self) -> bool:
        """Whether attempts may be deployed at present."""
        recovery = self.reconciliation
        if recovery is not None and recovery.adopting:
            return False
        if self.graph.state is JobState.RECONCILING:
            return self.options.schedule_while_waiting
        return self.graph.state is JobState.RUNNING and self.graph.commit is None

    def assign_slots(self) -> None:
        """Give free slots to ready subtasks, ask for more, give back what is not needed."""
        if self.reclaim and self.slots.free:
            given_back = self.slots.give_back(self.reclaim)
            self.reclaim -= len(given_back)
            self.act(act.ReturnSlots(given_back))
        if self.may_deploy():
            while self.ready.placeable and self.slots.free:
                vertex_id, subtask = self.ready.pop()
                self._deploy(self.graph.vertices[vertex_id].subtasks[subtask])
        self._declare_slots()

    def _deploy(self, vertex: ExecutionVertex) -> None:
        if not self.graph.inputs_available(vertex):
            self.graph.transition(vertex, ExecutionState.CREATED)
            return
        target = ""
        if self.graph.vertices[vertex.vertex_id].output_subpartitions:
            if not self.shuffle.has_target:
                self.ready.set_aside(vertex.id)
                return
            target = self.shuffle.place(vertex.id)
        slot = self.slots.take(vertex.id, preferred_worker(self.graph, vertex))
        self.graph.deploy(vertex, slot, self.epoch)
        self.act(act.Deploy(slot, self._deployments.of(vertex, slot, target)))

    def _declare_slots(self) -> None:
        slots, placeable = self.slots, len(self.ready.placeable)
        wanted = len(slots.occupied) + placeable
        if wanted != self._declared and (wanted > len(slots) or not placeable):
            self._declared = wanted
            self.act(act.DeclareSlots(wanted))
        if slots.free and not placeable:
            # After the declaration: what is returned is not to be granted again.
            self.act(act.ReturnSlots(slots.give_back()))
        starved = not (slots.occupied or slots.free) and bool(self.ready) and self.may_deploy()
        if starved and not self._waiting_for_slots:
            self._waiting_for_slots = True
            self.act(act.SetTimer(SLOT_TIMER, self.options.slot_request_timeout_s))
        elif not starved and self._waiting_for_slots:
            self._waiting_for_slots = False
            self.act(act.CancelTimer(SLOT_TIMER))

    @property
    def waiting(self) -> str:
        """Why nothing runs although something could; empty otherwise."""
        if not self._waiting_for_slots:
            return ""
        services = sum(1 for _ in self.shuffle.services)
        if not self.ready.placeable:
            refusal = f"; the last refusal: {last}" if (last := self.refusals.last_reason) else ""
            return (
                f"waiting for resources: {len(self.ready.aside)} subtasks are ready and no shuffle"
                f" service takes their output ({services} are registered);"
                f" start shuffle services, or give them more room{refusal}"
            )
        return (
            f"waiting for resources: {len(self.ready.placeable)} subtasks are ready and no slot is"
            f" free ({len(self.workers) - services} TaskManagers are registered);"
            " start TaskManagers or wait for other jobs"
        )

    @property
    def waiting_for_room(self) -> str:
        """Whose output no shuffle service takes, when nothing else is to be done; else empty."""
        works = self.graph.state in _WORKING
        if not works or self.ready or self.slots.occupied:
            return ""
        return self.refusals.waiting


def job_failure(message: str) -> common_pb2.Failure:
    """A failure that no restart can mend."""
    return common_pb2.Failure(kind=common_pb2.FAILURE_KIND_JOB, message=message)
