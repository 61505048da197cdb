"""What a new leader does with what workers bring back (behaviour 5; FLIP-383)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.deferred_offers import DeferredOffer
from jobmanager.scheduler.failover import LostSubtask, plan_resets
from jobmanager.scheduler.failures import FailureHandling
from jobmanager.scheduler.moved_partitions import MovedPartitions
from jobmanager.scheduler.reconciliation import ADOPTION_TIMER, WAIT_TIMER, Reconciliation
from jobmanager.scheduler.restarted_workers import RestartedWorkers
from jobmanager.scheduler.splits import SplitEnumerator
from jobmanager.scheduler.states import ACTIVE_EXECUTION_STATES, ExecutionState, JobState
from jobmanager.scheduler.vertices import ExecutionVertex, SubtaskId

#: Of a large inventory so much is judged in one go: some 20 ms of work.
OFFERS_A_STEP = 1_000

Offer = tuple[AttemptKey, common_pb2.FinishedExecution]
ItemT = TypeVar("ItemT")


class ReturningWorkers:
    """Registrations of workers: during a recovery, and at any other time."""

    def __init__(
        self,
        core: SchedulerCore,
        failures: FailureHandling,
        restarts: RestartedWorkers,
        moves: MovedPartitions,
    ) -> None:
        self._core = core
        self._restarts = restarts
        self._moves = moves
        self._graph = core.graph
        self._failures = failures
        #: What is left of a registration that is being judged.
        self._judging: Iterator[None] | None = None

    def start_recovery(self, previous_workers: tuple[str, ...]) -> None:
        """The events are replayed; from now on workers are awaited."""
        core = self._core
        core.enumerators = {
            owner.vertex_id: SplitEnumerator(owner, owner.splits)
            for owner in self._graph.vertices.values()
            if owner.source is not None and owner.splits_recorded and owner.initialized
        }
        if self._graph.failure is not None:
            return core.change_state(JobState.FAILING)
        if self._graph.cancel_requested:
            return core.change_state(JobState.CANCELLING)
        core.change_state(JobState.RECONCILING)
        recovery = core.reconciliation = Reconciliation(self._graph, previous_workers)
        if self._graph.commit is not None:
            # All work is done and staged; the commit needs no worker.
            recovery.adopting = False
            recovery.awaited.clear()
        self._reset_sources_to_be_listed_anew()
        wait_s = core.options.recovery_wait_s
        core.act(act.SetTimer(WAIT_TIMER, wait_s))
        if recovery.adopting:
            core.act(act.SetTimer(ADOPTION_TIMER, min(core.options.adoption_wait_s, wait_s)))
        self.end_wait_if_complete()
        core.schedule_all()
        return None

    def _reset_sources_to_be_listed_anew(self) -> None:
        """Without the list, what a subtask has read cannot be told from what is left to read: only
        whole sources are kept (behaviour 5.7)."""
        reason = events_pb2.RESET_REASON_SPLITS_UNKNOWN
        self._failures.reset(
            [
                (vertex, reason)
                for owner in self._graph.vertices.values()
                if not owner.splits_recorded and not owner.all_finished
                for vertex in owner.subtasks
                if vertex.finished is not None
            ]
        )

    def register(self, signal: sig.WorkerRegistered) -> bool:
        """A worker brings its whole inventory: take what is wanted, miss what should be there.

        False when there is more to judge of a large one: the same signal is to be handled again,
        before any other.
        """
        if self._judging is None:
            self._judging = self._judge(signal)
        for _ in self._judging:
            return False
        self._judging = None
        return True

    def _judge(self, signal: sig.WorkerRegistered) -> Iterator[None]:
        """Yields where it may be interrupted."""
        core, recovery = self._core, self._core.reconciliation
        core.judging_inventory = True
        address_before = core.workers.get(signal.worker_id, signal.data_address)
        core.workers[signal.worker_id] = signal.data_address
        # A new process in a service's place goes on with nothing that the old one was sent.
        writers = [] if signal.refreshed else core.shuffle.lost(signal.worker_id)
        core.shuffle.registered(signal.worker_id, signal.shuffle)
        if core.shuffle.has_target:
            core.ready.bring_back()
        awaited = self._restarts.returned(signal.worker_id)
        late = recovery is not None and recovery.is_late(signal.worker_id)
        rejected: list[AttemptKey] = []
        accepted: dict[AttemptKey, None] = {}
        bytes_kept = 0
        if recovery is not None:
            recovery.deferred.forget_worker(signal.worker_id)
        offers: list[Offer] = []
        for some in _parts(signal.finished):
            offers += [(AttemptKey.from_proto(execution.attempt), execution) for execution in some]
            yield from _pause_after(some)
        yield from self._note_what_is_gone(signal, offers)
        for part in _parts(self._in_graph_order(offers)):
            for key, execution in part:
                foreign = late and key.epoch < core.epoch
                if foreign or not self._accept(signal.worker_id, key, execution):
                    rejected.append(key)
                else:
                    accepted[key] = None
                    bytes_kept += sum(partition.data_bytes for partition in execution.partitions)
            yield from _pause_after(part)
        if awaited or address_before != signal.data_address:
            # After what was offered: who reads there may have been finished by it.
            self._restarts.moved(signal.worker_id)
        self._failures.cancel_writers(signal.worker_id, writers)
        core.release_owed(signal.worker_id)
        yield from self._miss_what_was_not_offered(signal, accepted)
        self.take_up_deferred()
        if recovery is not None:
            if signal.worker_id not in recovery.offers:
                recovery.bytes_kept += bytes_kept
            recovery.offered(signal.worker_id, len(signal.finished), len(accepted))
            if not recovery.adopting:
                core.act(act.CancelTimer(ADOPTION_TIMER))
                self._give_up_deferred(recovery)
        reason = "late" if late else "superseded"
        core.act(act.RejectOffers(signal.worker_id, tuple(rejected), reason))
        core.judging_inventory = False
        self.end_wait_if_complete()
        core.release_certain()
        core.reschedule()

    def _in_graph_order(self, offers: list[Offer]) -> list[Offer]:
        """So that an adopted producer stands before a consumer that has read it."""
        order = {vertex_id: place for place, vertex_id in enumerate(self._graph.vertices)}
        return sorted(offers, key=lambda offer: order.get(offer[0].vertex_id, len(order)))

    def _accept(
        self, worker_id: str, key: AttemptKey, execution: common_pb2.FinishedExecution
    ) -> bool:
        """Take an offered execution: known as finished, or finished but not yet logged."""
        vertex = self._graph.find(key)
        if vertex is None:
            # Its shape is lost with the end of the log, and what was just taken may decide it.
            self._core.initialize_vertices()
            vertex = self._graph.find(key)
        if self._graph.state in (JobState.CANCELLING, JobState.FAILING):
            return False
        if vertex is None:
            return self._await_shape(DeferredOffer(key, worker_id, execution))
        if vertex.state is ExecutionState.CANCELING:
            return False  # it has read rows that do not count any more
        if vertex.state is ExecutionState.FINISHED:
            if vertex.key(self._graph.job_id) != key:
                return self._put_in_its_place(vertex, key, execution, worker_id)
            if vertex.stored_at != worker_id:
                if not self._moves.is_offered(vertex, key, worker_id):
                    return False
            elif self._graph.vertices[key.vertex_id].released:
                return False
            self._graph.set_available(vertex, True)
            if self._core.reconciliation is not None:
                self._core.reconciliation.found(vertex)
            return True
        if self._core.is_current(vertex, key):
            if not self._core.settle_splits(vertex, execution):
                self._core.abandon(vertex)
                return False
            self._core.finish(vertex, execution, worker_id)
            return True
        if self._restarts.take_up(vertex, key, execution, worker_id):
            return True
        return self._adopt(vertex, key, execution, worker_id)

    def _await_shape(self, offer: DeferredOffer) -> bool:
        """Whether the vertex of an offered attempt may take its shape yet, from what others bring
        back; then it is judged, and its shape must be the one that the attempt ran by."""
        core, recovery = self._core, self._core.reconciliation
        owner = self._graph.vertices.get(offer.key.vertex_id)
        if recovery is None or not recovery.open or offer.key.epoch >= core.epoch:
            return False
        if owner is None or owner.initialized or offer.key.job_id != self._graph.job_id:
            return False
        recovery.deferred.defer_until_shaped(offer)
        return True

    def _adopt(
        self,
        vertex: ExecutionVertex,
        key: AttemptKey,
        execution: common_pb2.FinishedExecution,
        worker_id: str,
    ) -> bool:
        """Take the output of an attempt that finished under an earlier leader without an event.

        Never two attempts of one subtask: once adopted it is FINISHED, and another is superseded.
        """
        core, recovery = self._core, self._core.reconciliation
        owner = self._graph.vertices[key.vertex_id]
        if recovery is None or not recovery.open or key.epoch >= core.epoch:
            return False
        if vertex.state in ACTIVE_EXECUTION_STATES:
            return False
        if recovery.deferred.defer(DeferredOffer(key, worker_id, execution), vertex):
            return True
        if len(execution.partitions) != len(owner.vertex.outputs):
            return False
        if not owner.splits_recorded:
            return False  # nobody knows any more which splits these are
        if not core.input_digests.match(vertex, execution):
            return False  # it has read what does not count any more
        if not core.settle_splits(vertex, execution):
            return False
        recovery.counts[key.vertex_id].adopted += 1
        core.finish(vertex, execution, worker_id, adopted=True)
        return True

    def _put_in_its_place(
        self,
        vertex: ExecutionVertex,
        key: AttemptKey,
        execution: common_pb2.FinishedExecution,
        worker_id: str,
    ) -> bool:
        """Take a later attempt than the log knows, when the output of that one is not here: the
        leader before had reset it, and seen it finish anew, and of both no event became durable.

        Also when all that read it has finished: until the wait is over it may have to run again.
        """
        core, recovery = self._core, self._core.reconciliation
        owner = self._graph.vertices[key.vertex_id]
        if recovery is None or not recovery.open or vertex.available or not core.wanted(vertex):
            return False
        if key.attempt <= vertex.attempt or key.epoch >= core.epoch:
            return False
        if self._is_followed(vertex):
            return False  # they have read the attempt that is gone, and would have to follow
        if not owner.splits_recorded or list(execution.splits) != list(vertex.splits):
            return False
        if len(execution.partitions) != len(owner.vertex.outputs):
            return False
        if not core.input_digests.match(vertex, execution):
            return False  # it has read what does not count any more
        recovery.not_awaited(vertex)
        gone = events_pb2.ExecutionVertexReset(
            vertex_id=key.vertex_id,
            subtasks=[key.subtask],
            reason=events_pb2.RESET_REASON_PARTITION_MISSING,
        )
        core.emit(events_pb2.JobEvent(vertex_reset=gone))
        recovery.counts[key.vertex_id].adopted += 1
        core.finish(vertex, execution, worker_id, adopted=True)
        return True

    def _is_followed(self, vertex: ExecutionVertex) -> bool:
        """Whether somebody has finished with what another attempt may give otherwise."""
        for edge in self._graph.vertices[vertex.vertex_id].out_edges:
            target = self._graph.vertices[edge.target]
            if not edge.rows_differ or not target.finished_count:
                continue
            if not edge.forward or target.subtasks[vertex.subtask].finished is not None:
                return True
        return False

    def _note_what_is_gone(
        self, signal: sig.WorkerRegistered, offers: Iterable[Offer]
    ) -> Iterator[None]:
        """An inventory is complete. What is not in it is noted before what is in it is judged: a
        later attempt may take the place of one that is gone."""
        recovery = self._core.reconciliation
        if recovery is None or not recovery.waiting:
            return
        brought = {key for key, _ in offers}
        brought.update(signal.running)
        for some in _parts(self._graph.at_worker(signal.worker_id)):
            for vertex in some:
                if vertex.finished is not None and vertex.key(self._graph.job_id) not in brought:
                    self._gone(vertex, recovery)
            yield from _pause_after(some)

    def _gone(self, vertex: ExecutionVertex, recovery: Reconciliation) -> None:
        """Its worker is back without it, while others are awaited."""
        if vertex.available and self._graph.needed(vertex):
            recovery.awaited[vertex.id] = None
        self._graph.set_available(vertex, False)
        recovery.gone(vertex)

    def _miss_what_was_not_offered(
        self, signal: sig.WorkerRegistered, accepted: dict[AttemptKey, None]
    ) -> Iterator[None]:
        """An inventory is complete: what it lacks is not at that worker, from this moment on."""
        recovery = self._core.reconciliation
        running = set(signal.running)
        lost: list[LostSubtask] = []
        for some in _parts(self._graph.at_worker(signal.worker_id)):
            for vertex in some:
                key = vertex.key(self._graph.job_id)
                if vertex.finished is not None:
                    if key in accepted or key in running:
                        continue
                    if recovery is not None and recovery.waiting:
                        self._gone(vertex, recovery)
                    else:
                        self._graph.set_available(vertex, False)
                        lost.append((vertex, events_pb2.RESET_REASON_PARTITION_MISSING))
                elif key not in running:
                    # Should the deployment still be under way, it must not occupy the slot.
                    self._core.act(act.Cancel(signal.worker_id, key))
                    self._core.abandon(vertex)
            yield from _pause_after(some)
        for key in signal.running:
            running_vertex = self._graph.find(key)
            if running_vertex is None or not self._core.is_current(running_vertex, key):
                self._core.act(act.Cancel(signal.worker_id, key))
        self._failures.reset(lost)

    def wait_timer_fired(self) -> None:
        """The wait is over, whoever is missing."""
        recovery = self._core.reconciliation
        if recovery is not None and recovery.waiting:
            recovery.adopting = False
            self._give_up_deferred(recovery)
            self._end_wait(recovery)

    def adoption_timer_fired(self) -> None:
        """Subtasks without a finished event are no longer held back."""
        recovery = self._core.reconciliation
        if recovery is not None:
            recovery.adopting = False
            self._give_up_deferred(recovery)

    def take_up_deferred(self) -> None:
        """Adopt what was offered before the work that it had read; producers stand first, and may
        give those behind them their shape."""
        recovery = self._core.reconciliation
        while recovery is not None and recovery.deferred:
            self._core.initialize_vertices()
            offers = recovery.deferred.take_ready()
            if not offers:
                return
            for offer in offers:
                vertex = self._graph.find(offer.key)
                if vertex is None or vertex.state is ExecutionState.FINISHED:
                    adopted = False
                else:
                    adopted = self._adopt(vertex, offer.key, offer.execution, offer.worker_id)
                if not adopted:
                    self._core.act(act.ReleasePartitions(offer.worker_id, (offer.key,)))

    def _give_up_deferred(self, recovery: Reconciliation) -> None:
        """What they had read did not come back: they run again."""
        for offer in recovery.deferred.take_all():
            self._core.act(act.ReleasePartitions(offer.worker_id, (offer.key,)))

    def worker_lost(self, worker_id: str) -> None:
        """A worker that had come back is gone again: it is not awaited a second time."""
        recovery = self._core.reconciliation
        if recovery is None:
            return
        recovery.deferred.forget_worker(worker_id)
        if not recovery.waiting or worker_id not in recovery.offers:
            return
        for vertex in self._graph.at_worker(worker_id):
            if vertex.finished is None:
                continue
            if worker_id not in self._core.expected_back:
                recovery.gone(vertex)
            elif vertex.id not in recovery.missing and self._graph.needed(vertex):
                recovery.awaited[vertex.id] = None
        self.end_wait_if_complete()

    def restart_wait_over(self, worker_id: str) -> None:
        """A lost worker was not started again in time: what is needed of its work runs again."""
        core, recovery = self._core, self._core.reconciliation
        core.expected_back.pop(worker_id, None)
        lost: list[LostSubtask] = [
            (vertex, events_pb2.RESET_REASON_WORKER_LOST)
            for vertex in self._graph.at_worker(worker_id)
            if vertex.finished is not None and not vertex.available
        ]
        if recovery is not None and recovery.waiting:
            for vertex, _ in lost:
                recovery.gone(vertex)
            self.end_wait_if_complete()
        else:
            self._failures.reset(lost)
        core.release_certain()
        core.reschedule()

    def end_wait_if_complete(self) -> None:
        """The wait ends with the last of what is awaited, whatever made an end of that."""
        recovery = self._core.reconciliation
        if recovery is None or not recovery.waiting or recovery.awaited:
            return
        # What is known to be missing runs again: its inputs are to be reserved now, whoever had
        # finished with them.
        plan = plan_resets(self._graph, self._lost(recovery.missing), self._core.may_come_back)
        recovery.awaited.update(plan.awaited)
        if not recovery.awaited:
            recovery.ended_early = True
            self._core.act(act.CancelTimer(WAIT_TIMER))
            self._end_wait(recovery)

    def _lost(self, missing: Iterable[SubtaskId]) -> list[LostSubtask]:
        vertices = [self._graph.vertex_at(*subtask) for subtask in missing]
        return [(vertex, events_pb2.RESET_REASON_PARTITION_MISSING) for vertex in vertices]

    def _end_wait(self, recovery: Reconciliation) -> None:
        """The verdict: what has not come is missing; its producers are reset, all together."""
        recovery.waiting = False
        missing = (*recovery.missing, *recovery.awaited)
        recovery.awaited.clear()
        self._failures.reset(self._lost(missing))
        self._core.release_certain()
        self._core.change_state(JobState.RUNNING)
        self._core.reschedule()


def _parts(items: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
    """All items, so many at a time as one step may take."""
    return (items[start : start + OFFERS_A_STEP] for start in range(0, len(items), OFFERS_A_STEP))


def _pause_after(part: Sequence[object]) -> Iterator[None]:
    """A step ends with a full part: what is smaller goes on with what follows."""
    if len(part) == OFFERS_A_STEP:
        yield
