"""No finished subtask runs again while its partition lives and is registered in time (behaviour 5).

Every reset that a leader decides is judged by what is true of the cluster at that moment: is the
TaskManager that stores the partition alive, is it registered with this leader, had it come in
time, and does it hold the files? A loss that a leader only believes in is its right for as long
as a fault may still deceive it (`ClusterView.patience_s`).

Work that has finished without an event (the log has lost its tail) counts too: what a TaskManager
offers in time is adopted unless something contradicts it, and nothing is deployed before that can
be known. A worker that comes within the wait is not late.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdover.ids import AttemptKey
from holdover.v1 import events_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.deployment import InputDigests
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.states import ACTIVE_EXECUTION_STATES, ExecutionState, JobState
from jobmanager.scheduler.vertices import ExecutionVertex, SubtaskId
from simulator.invariants.stored import exists, lives
from simulator.invariants.view import Broken, ClusterView, Invariant, Step

#: Clocks of hosts may run so much slower than the world's, and timers fire so much early by it.
CLOCK_RATE_MIN = 0.8
#: Why a leader loses a shuffle service that it has told that nothing is needed of it.
DRAINED = "it left: it is drained"

_Reason = events_pb2.ResetReason


@dataclass(slots=True)
class _Leader:
    """A job under one leader."""

    epoch: int
    #: When it began to wait for workers; None when it has started the job itself.
    recovering_since_s: float | None = None
    #: Which attempt has finished, and where it has left its partitions.
    stored: dict[SubtaskId, tuple[AttemptKey, str]] = field(default_factory=dict)
    #: Attempts whose deletion this leader has ordered.
    released: dict[AttemptKey, None] = field(default_factory=dict)


class NoNeedlessRerun(Invariant):
    """See the module."""

    name = "finished work that lives does not run again"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        self._leaders: dict[tuple[str, str], _Leader] = {}
        #: Attempts that some leader has reset: they may be rejected by another.
        self._reset: dict[AttemptKey, None] = {}
        #: Attempts of which there may be a copy at another shuffle service.
        self._copied: dict[AttemptKey, None] = {}

    def step(self, step: Step) -> None:
        """Judge what a leader decides against the truth."""
        leader = self._leaders.get((step.leader, step.job_id))
        recovers = isinstance(step.signal, sig.RecoveryStarted)
        if leader is None or leader.epoch != step.epoch or recovers:
            leader = _Leader(step.epoch, step.at_s if recovers else None)
            self._leaders[step.leader, step.job_id] = leader
            _remember_finished(leader, step.scheduler.graph)
        else:
            self._follow(step, leader)
        for action in step.decision.actions:
            if isinstance(action, act.ReleasePartitions):
                self._judge_releases(step, leader, action)
                leader.released.update(dict.fromkeys(action.keys))
            elif isinstance(action, act.RejectOffers):
                self._judge_rejections(step, leader, action)
            elif isinstance(action, act.CopyPartitions):
                self._copied.update(dict.fromkeys(action.keys))
            elif isinstance(action, act.Deploy):
                self._judge_deployment(step)

    def _follow(self, step: Step, leader: _Leader) -> None:
        graph = step.scheduler.graph
        for event in step.decision.events:
            if event.HasField("vertex_finished"):
                finished = event.vertex_finished
                key = AttemptKey.from_proto(finished.execution.attempt)
                stored = (key, finished.location.worker_id)
                leader.stored[key.vertex_id, key.subtask] = stored
            elif event.HasField("partitions_moved"):
                moved = event.partitions_moved
                key = AttemptKey.from_proto(moved.attempt)
                leader.stored[key.vertex_id, key.subtask] = (key, moved.location.worker_id)
            elif event.HasField("vertex_reset"):
                # In its place: a worker that lacks what counted may bring another attempt of it.
                for subtask in event.vertex_reset.subtasks:
                    vertex = graph.vertex_at(event.vertex_reset.vertex_id, subtask)
                    self._judge_reset(step, leader, vertex, event.vertex_reset.reason)
                    gone = leader.stored.pop(vertex.id, None)
                    if gone is not None:
                        self._reset[gone[0]] = None

    # ------------------------------------------------------------------ resets

    def _judge_reset(
        self, step: Step, leader: _Leader, vertex: ExecutionVertex, reason: _Reason.ValueType
    ) -> None:
        key, worker_id = leader.stored.get(vertex.id, (None, ""))
        if key is None:
            self.broken(f"{step.leader} resets {vertex.id}, which it has not seen finish")
        elif reason == events_pb2.RESET_REASON_INDETERMINATE_PRODUCER:
            if not _producer_is_reset(step, vertex):
                self.broken(f"{step.leader} resets {key} for a producer that it does not reset")
        elif reason == events_pb2.RESET_REASON_STAGED_FILES_LOST:
            self._judge_staged_files(step, key, worker_id)
        elif key not in leader.released:
            self._judge_loss(step, leader, key, worker_id, reason)

    def _judge_loss(
        self,
        step: Step,
        leader: _Leader,
        key: AttemptKey,
        worker_id: str,
        reason: _Reason.ValueType,
    ) -> None:
        name = f"{step.leader} (epoch {step.epoch}) resets {key} ({_Reason.Name(reason)})"
        elsewhere = self._held_elsewhere(step, key, worker_id)
        if self._is_there(step, leader, key, worker_id, reason):
            self.broken(f"{name}, though {worker_id} is alive, registered in time, and holds it")
        elif elsewhere:
            self.broken(f"{name}, and looks for it at {worker_id}, though {elsewhere} holds it")
        elif isinstance(step.signal, sig.WorkerLost) and step.signal.reason == DRAINED:
            self.broken(f"{name}: {worker_id} has left because nothing of it was said to be needed")

    def _held_elsewhere(self, step: Step, key: AttemptKey, worker_id: str) -> str:
        """A registered worker that holds an attempt of which the leader believes that another does;
        not a copy, or what was copied, of which the leader may know nothing any more."""
        if key in self._copied:
            return ""
        for name in step.scheduler.core.workers:
            worker = self.view.worker(name) if name != worker_id else None
            if worker is not None and not worker.paused and lives(worker, key):
                return name
        return ""

    def _is_there(
        self,
        step: Step,
        leader: _Leader,
        key: AttemptKey,
        worker_id: str,
        reason: _Reason.ValueType,
    ) -> bool:
        """Whether the leader could have had the partitions of a finished attempt."""
        worker = self.view.worker(worker_id)
        if worker is None or worker.paused or not lives(worker, key):
            return False
        recovery = step.scheduler.reconciliation
        offer = recovery.offers.get(worker_id) if recovery is not None else None
        if offer is not None and offer.late:
            return False
        registered = worker_id in step.scheduler.core.workers
        lost = isinstance(step.signal, sig.WorkerLost) and step.signal.worker_id == worker_id
        if reason == events_pb2.RESET_REASON_WORKER_LOST and registered and not lost:
            return True
        if reason in (
            events_pb2.RESET_REASON_WORKER_LOST,
            events_pb2.RESET_REASON_PARTITION_LOST,
        ):
            return self.is_calm()
        if registered:
            return True
        return self._waited_too_short(step, leader)

    def _waited_too_short(self, step: Step, leader: _Leader) -> bool:
        """Whether a worker that has not come might still come in time: the wait is not over."""
        recovery, since_s = step.scheduler.reconciliation, leader.recovering_since_s
        if recovery is None or since_s is None or not isinstance(step.signal, sig.TimerFired):
            return False
        waited_s = step.at_s - since_s
        return waited_s < CLOCK_RATE_MIN * step.scheduler.core.options.recovery_wait_s

    def _judge_staged_files(self, step: Step, key: AttemptKey, worker_id: str) -> None:
        worker = self.view.worker(worker_id)
        execution = worker.finished.get(key) if worker is not None else None
        if execution is None or not self.is_calm():
            return
        if all(exists(self.view.shared, file.staged_path) for file in execution.staged_files):
            self.broken(f"{step.leader} resets {key}, whose staged files are all there")

    # ------------------------------------------------------------------ offers

    def _judge_rejections(self, step: Step, leader: _Leader, action: act.RejectOffers) -> None:
        if not isinstance(step.signal, sig.WorkerRegistered) or not action.keys:
            return
        if action.reason == "late" and self._is_in_time(step, leader, action.worker_id):
            self.broken(
                f"{step.leader} (epoch {step.epoch}) rejects what {action.worker_id} offers for job"
                f" {step.job_id} as late, {step.at_s - (leader.recovering_since_s or 0.0):.3f} s"
                " after it began to wait"
            )
        if action.reason != "late":
            for key in action.keys:
                self._judge_rejection(step, action.worker_id, key)

    def _is_in_time(self, step: Step, leader: _Leader, worker_id: str) -> bool:
        """Whether a worker that comes now comes while offers are still open."""
        recovery, since_s = step.scheduler.reconciliation, leader.recovering_since_s
        if recovery is None or since_s is None or worker_id not in recovery.previous_workers:
            return False
        if _is_over(step):
            return False
        options = step.scheduler.core.options
        # Waiting ends early when nothing is awaited; unlogged work has a window of its own.
        window_s = min(options.adoption_wait_s, options.recovery_wait_s)
        return step.at_s - since_s < CLOCK_RATE_MIN * window_s

    def _judge_rejection(self, step: Step, worker_id: str, key: AttemptKey) -> None:
        """An offer that was in time and is rejected: something must contradict it."""
        scheduler, graph = step.scheduler, step.scheduler.graph
        vertex, worker = graph.find(key), self.view.worker(worker_id)
        if vertex is None or worker is None or _is_over(step) or not lives(worker, key):
            return
        if vertex.state is ExecutionState.FINISHED:
            current = vertex.key(graph.job_id) == key and vertex.stored_at == worker_id
            if current and not graph.vertices[key.vertex_id].released and vertex.available:
                self.broken(f"{step.leader} rejects {key}, which counts, from {worker_id}")
            return
        recovery = scheduler.reconciliation
        if recovery is None or not recovery.open or key.epoch >= step.epoch or key in self._reset:
            return
        if vertex.state in ACTIVE_EXECUTION_STATES or vertex.pinned_splits is not None:
            return
        if graph.vertices[key.vertex_id].source is not None:
            return  # another attempt may have read its splits
        execution = worker.finished.get(key)
        if execution is None or not InputDigests(graph).match(vertex, execution):
            return  # it has read an attempt whose rows may be others than of that which counts
        if self._shape_was_lost(step, key):
            return
        if all(p.state is ExecutionState.FINISHED for p in graph.producers(vertex)):
            self.broken(
                f"{step.leader} rejects {key} from {worker_id}: it had finished, nothing replaces"
                " it, and it runs again"
            )

    def _shape_was_lost(self, step: Step, key: AttemptKey) -> bool:
        """Whether a damaged log has lost the vertex's initialization, which is durable before the
        vertex runs: what it is, this step has decided anew."""
        job = self.view.jobs.get(step.job_id)
        initialized = [
            event.vertex_initialized.vertex_id
            for event in step.decision.events
            if event.HasField("vertex_initialized")
        ]
        return job is not None and job.log_damaged and key.vertex_id in initialized

    def _judge_releases(self, step: Step, leader: _Leader, action: act.ReleasePartitions) -> None:
        """What counts is deleted only when nobody can need it any more. A copy of it at another
        shuffle service does not count."""
        graph = step.scheduler.graph
        for key in action.keys:
            vertex = graph.find(key)
            if vertex is None or vertex.state is not ExecutionState.FINISHED:
                continue
            counts = vertex.key(graph.job_id) == key and vertex.stored_at == action.worker_id
            if counts and graph.needed(vertex):
                self.broken(f"{step.leader} has {key} deleted, which an unfinished subtask needs")

    def _judge_deployment(self, step: Step) -> None:
        recovery = step.scheduler.reconciliation
        if recovery is not None and recovery.adopting:
            self.broken(
                f"{step.leader} deploys an attempt of job {step.job_id} while previous workers may"
                " still offer finished work"
            )


def _remember_finished(leader: _Leader, graph: ExecutionGraph) -> None:
    for vertex in graph.all_subtasks():
        if vertex.state is ExecutionState.FINISHED:
            leader.stored[vertex.id] = (vertex.key(graph.job_id), vertex.stored_at)


def _producer_is_reset(step: Step, vertex: ExecutionVertex) -> bool:
    """Whether this step resets a subtask that the vertex has read and another run of which may
    give it other rows."""
    graph = step.scheduler.graph
    edges = graph.vertices[vertex.vertex_id].in_edges
    differ = {edge.source for edge in edges if edge.rows_differ}
    producers = {p.id: None for p in graph.producers(vertex) if p.vertex_id in differ}
    return any(
        (event.vertex_reset.vertex_id, subtask) in producers
        for event in step.decision.events
        if event.HasField("vertex_reset")
        for subtask in event.vertex_reset.subtasks
    )


def _is_over(step: Step) -> bool:
    """Whether no worker's finished work is wanted any more."""
    graph = step.scheduler.graph
    ending = graph.state in (JobState.FAILING, JobState.CANCELLING)
    return ending or graph.commit is not None or step.scheduler.ended is not None
