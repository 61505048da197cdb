"""A small world around one job's scheduler: workers, messages, a log that can lose its tail.

Everything is data and seeded choice; there is no clock and no asyncio. Tasks really pass rows on
(whole numbers, one for each source split), so that the committed output can be compared with what
a run without faults gives, and a consumer reads what the worker holds at that moment or fails.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from holdover.ids import AttemptKey, partition_name
from holdover.v1 import common_pb2, events_pb2, job_pb2, taskmanager_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import invariants
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import SchedulerOptions
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.parallelism import AdaptiveParallelism
from jobmanager.scheduler.reconciliation import WAIT_TIMER
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import ExecutionState, JobState

STEPS_MAX = 5000

OPTIONS = SchedulerOptions(
    recovery_wait_s=30,
    adoption_wait_s=2,
    schedule_while_waiting=True,
    release_during_execution=True,
    slot_request_timeout_s=300,
    cancellation_timeout_s=12,
    adaptive=AdaptiveParallelism(1, 6, 3),
)


@dataclass
class RunningTask:
    """A deployed attempt; `rows` are those it has read so far (None: its inputs were not read)."""

    deployment: taskmanager_pb2.TaskDeployment
    splits: list[int] = field(default_factory=list)


@dataclass
class Worker:
    """A TaskManager (or a shuffle service) as far as the scheduler can tell."""

    worker_id: str
    slots: int
    alive: bool = True
    registered: bool = False
    seen_epoch: int = 0
    running: dict[AttemptKey, RunningTask] = field(default_factory=dict)
    #: Finished attempts with the rows of each output's subpartitions.
    stored: dict[AttemptKey, common_pb2.FinishedExecution] = field(default_factory=dict)
    rows: dict[tuple[AttemptKey, int], list[list[int]]] = field(default_factory=dict)
    #: Set for a shuffle service.
    load: sig.ShuffleLoad | None = None

    def delete(self, key: AttemptKey) -> None:
        """Delete all of an attempt."""
        self.stored.pop(key, None)
        for name in [name for name in self.rows if name[0] == key]:
            del self.rows[name]


class SchedulerWorld:
    """One job, its leaders one after another, its workers, and the faults between them."""

    def __init__(
        self,
        job: job_pb2.JobGraph,
        *,
        seed: int = 0,
        workers: int = 3,
        slots: int = 2,
        splits: int = 8,
        services: int = 0,
        options: SchedulerOptions = OPTIONS,
    ) -> None:
        self.job = job
        self.random = random.Random(seed)
        self.workers = {f"tm-{i}": Worker(f"tm-{i}", slots) for i in range(workers)}
        for i in range(services):
            load = sig.ShuffleLoad(room_bytes=1000)
            self.workers[f"ss-{i}"] = Worker(f"ss-{i}", slots=0, load=load)
        self.splits = splits
        self.options = options
        self.epoch = 0
        #: Whether partitions may vanish without the leader's knowing it yet.
        self.workers_may_lose = False
        #: How likely a flush that the scheduler asked for is complete when the leader dies.
        self.flush_probability = 0.7
        self.log: list[events_pb2.JobEvent] = []
        self.durable = 0
        self.pending: list[sig.Signal] = []
        self.timers: dict[str, float] = {}
        self.held: dict[sig.SlotId, None] = {}
        self.wanted = 0
        self.known_workers: tuple[str, ...] = ()
        #: (vertex, subtask) of every attempt that started, and of every one that finished.
        self.starts: list[AttemptKey] = []
        self.finishes: list[AttemptKey] = []
        self.committed: list[common_pb2.StagedFile] | None = None
        self.staged: dict[str, list[int]] = {}
        self.ended: JobState | None = None
        self.failure: common_pb2.Failure | None = None
        self.scheduler: Scheduler | None = None

    # Leaders

    def lead(self) -> None:
        """A leader takes over: the first starts the job, each later one replays what is durable."""
        self.epoch += 1
        graph = ExecutionGraph(self.job)
        for event in self.log:
            graph.apply(event)
        restarts = RestartStrategy(attempts_max=1000, delay_s=1)
        self.scheduler = Scheduler(graph, self.epoch, self.options, restarts)
        if self.epoch == 1:
            self.deliver(sig.JobStarted())
        else:
            self.deliver(sig.RecoveryStarted(self.known_workers))

    def lose_leader(self, lost_events: int = 0) -> None:
        """The leader dies; the log keeps what was durable and perhaps some of the rest."""
        self.scheduler = None
        keep = max(self.durable, len(self.log) - lost_events)
        del self.log[keep:]
        self.durable = keep
        self.pending.clear()
        self.timers.clear()
        self.held.clear()
        self.wanted = 0
        for worker in self.workers.values():
            worker.registered = False
            worker.running.clear()

    def register(self, worker: Worker) -> None:
        """A worker registers with all that it holds."""
        refreshed = worker.seen_epoch == self.epoch
        worker.registered, worker.seen_epoch = True, self.epoch
        self.known_workers = tuple(dict.fromkeys((*self.known_workers, worker.worker_id)))
        self.pending.append(
            sig.WorkerRegistered(
                worker.worker_id,
                f"{worker.worker_id}:1",
                refreshed,
                tuple(worker.stored.values()),
                tuple(worker.running),
                worker.load,
            )
        )
        self._grant()

    def tell_load(self, worker: Worker, load: sig.ShuffleLoad) -> None:
        """A shuffle service tells how it is."""
        worker.load = load
        self.pending.append(sig.ShuffleLoadTold(worker.worker_id, load))

    def repeat_report(self, worker: Worker, key: AttemptKey) -> None:
        """A worker says again that an attempt has finished: the first time nobody heard it."""
        execution = worker.stored[key]
        self._report(worker, key, ExecutionState.FINISHED, finished=execution)

    def kill_worker(self, worker: Worker, *, with_disk: bool = True) -> None:
        """A worker dies; with its disk unless it comes back with what it had."""
        worker.alive = False
        worker.running.clear()
        if with_disk:
            worker.stored.clear()
            worker.rows.clear()
        if worker.registered:
            worker.registered = False
            self.held = {s: None for s in self.held if s.worker_id != worker.worker_id}
            if self.scheduler is not None:
                self.pending.append(sig.WorkerLost(worker.worker_id, "killed"))

    # Signals and actions

    def deliver(self, signal: sig.Signal) -> None:
        """One signal, each step of the scheduler checked, with all its actions."""
        scheduler = self.scheduler
        assert scheduler is not None, "no leader"
        unfinished = True
        while unfinished:
            decision = scheduler.handle(signal)
            unfinished = decision.unfinished
            self.log.extend(decision.events)
            invariants.check(scheduler)
            for action in decision.actions:
                self._perform(action)

    def _perform(self, action: act.Action) -> None:
        match action:
            case act.Deploy():
                self._deploy(action)
            case act.Cancel():
                worker = self.workers[action.worker_id]
                if worker.running.pop(action.key, None) is not None:
                    self._report(worker, action.key, ExecutionState.CANCELED)
                else:
                    self.pending.append(sig.CancellationUnknown(action.key))
            case act.ReleasePartitions():
                self.durable = len(self.log)
                for key in action.keys:
                    self.workers[action.worker_id].delete(key)
            case act.CopyPartitions():
                for key in action.keys:
                    self._copy(self.workers[action.worker_id], action.target_id, key)
            case act.RejectOffers():
                for key in action.keys:
                    self.workers[action.worker_id].delete(key)
            case act.DeclareSlots():
                self.wanted = action.count
                self._grant()
            case act.ReturnSlots():
                for slot in action.slots:
                    self.held.pop(slot, None)
            case act.SetTimer():
                self.timers[action.name] = action.delay_s
            case act.CancelTimer():
                self.timers.pop(action.name, None)
            case act.FlushEvents():
                if self.random.random() < self.flush_probability:
                    self.durable = len(self.log)
            case act.EnumerateSplits():
                splits = tuple(
                    job_pb2.Split(index=i, start=i, end=i + 1) for i in range(self.splits)
                )
                self.pending.append(sig.SplitsEnumerated(action.vertex_id, splits))
            case act.CheckStagedFiles():
                missing = tuple(
                    f.staged_path for f in action.files if f.staged_path not in self.staged
                )
                self.pending.append(sig.StagedFilesChecked(missing))
            case act.CommitSinks():
                self._commit(action)
            case act.EndJob():
                self.ended, self.failure = action.state, action.failure

    def _copy(self, worker: Worker, target_id: str, key: AttemptKey) -> None:
        copied = sig.PartitionsCopied(worker.worker_id, target_id, key)
        target, execution = self.workers[target_id], worker.stored.get(key)
        if execution is None:
            copied = replace(copied, obstacle="it is not here", lost=True)
        elif not target.registered:
            copied = replace(copied, obstacle="the target is gone")
        else:
            target.stored[key] = execution
            parts = {name: rows for name, rows in worker.rows.items() if name[0] == key}
            target.rows.update(parts)
        self.pending.append(copied)

    def _commit(self, action: act.CommitSinks) -> None:
        self.durable = len(self.log)
        files = list(action.files)
        assert self.committed in (None, files), "two commits of different files"
        self.committed = files
        self.pending.append(sig.CommitFinished())

    def _deploy(self, action: act.Deploy) -> None:
        key = AttemptKey.from_proto(action.deployment.attempt)
        worker = self.workers[action.slot.worker_id]
        busy = any(t.deployment.slot == action.slot.index for t in worker.running.values())
        unknown = self.workers_may_lose and action.slot not in self.held
        if not worker.registered or busy or unknown:
            self.pending.append(sig.DeploymentRefused(key, "gone or busy"))
            return
        assert action.slot in self.held, f"{action.slot} was not granted"
        for name, owner in self._inputs(action.deployment):
            there = name in owner.rows or self.workers_may_lose
            assert there, f"{key} is deployed to read {name}, which is not there"
        self.starts.append(key)
        worker.running[key] = RunningTask(action.deployment)

    def _grant(self) -> None:
        granted = []
        for worker in self.workers.values():
            for index in range(worker.slots if worker.registered else 0):
                slot = sig.SlotId(worker.worker_id, index)
                busy = any(t.deployment.slot == index for t in worker.running.values())
                if len(self.held) < self.wanted and slot not in self.held and not busy:
                    self.held[slot] = None
                    granted.append(slot)
        if granted:
            self.pending.append(sig.SlotsGranted(tuple(granted)))

    # Tasks

    def _inputs(
        self, deployment: taskmanager_pb2.TaskDeployment
    ) -> list[tuple[tuple[AttemptKey, int], Worker]]:
        inputs = []
        for gate in deployment.inputs:
            for place, subtask in enumerate(gate.subtasks):
                key = AttemptKey(
                    self.job.job_id,
                    gate.source_vertex_id,
                    subtask,
                    gate.attempts[place],
                    gate.epochs[place],
                )
                location = gate.locations[gate.location_indexes[place]]
                inputs.append(((key, gate.source_output), self.workers[location.worker_id]))
        return inputs

    def draw_split(self, worker: Worker, key: AttemptKey) -> bool:
        """A source task asks for one more split; False when there are no more."""
        assert self.scheduler is not None
        task = worker.running[key]
        current, split = self.scheduler.next_split(key, len(task.splits))
        if not current or split is None:
            return False
        task.splits.append(split.index)
        return True

    def finish(self, worker: Worker, key: AttemptKey) -> None:
        """A task reads its inputs, stores its output, and its TaskManager reports."""
        owner = next(v for v in self.job.vertices if v.vertex_id == key.vertex_id)
        if owner.operators[0].HasField("source"):
            while self.draw_split(worker, key):
                pass
        task = worker.running.pop(key)
        rows = list(task.splits)
        lost = []
        for gate_index, (name, holder) in enumerate(self._inputs(task.deployment)):
            if name not in holder.rows:
                lost.append(partition_name(name[0], name[1]))
                continue
            gate = self._gate(task.deployment, gate_index)
            for part in holder.rows[name][gate.first_subpartition : gate.end_subpartition]:
                rows.extend(part)
        if lost:
            failure = common_pb2.Failure(
                kind=common_pb2.FAILURE_KIND_PARTITION_LOST, message="lost", lost_partitions=lost
            )
            return self._report(worker, key, ExecutionState.FAILED, failure=failure)
        target = task.deployment.shuffle_target.worker_id
        holder = self.workers[target] if target else worker
        if target and not holder.registered:
            failure = common_pb2.Failure(
                kind=common_pb2.FAILURE_KIND_OUTPUT_REFUSED, message="gone"
            )
            return self._report(worker, key, ExecutionState.FAILED, failure=failure)
        execution = self._store(holder, key, owner, sorted(rows), task)
        self.finishes.append(key)
        self._report(worker, key, ExecutionState.FINISHED, finished=execution)
        return None

    def _gate(
        self, deployment: taskmanager_pb2.TaskDeployment, index: int
    ) -> taskmanager_pb2.InputGate:
        gates = [gate for gate in deployment.inputs for _ in gate.subtasks]
        return gates[index]

    def _store(
        self,
        worker: Worker,
        key: AttemptKey,
        owner: job_pb2.JobVertex,
        rows: list[int],
        task: RunningTask,
    ) -> common_pb2.FinishedExecution:
        execution = common_pb2.FinishedExecution(
            attempt=key.to_proto(),
            splits=task.splits,
            inputs_digest=task.deployment.inputs_digest,
            shape_digest=task.deployment.shape_digest,
        )
        orderly = all(o.determinism == job_pb2.DETERMINISM_DETERMINATE for o in owner.operators)
        for index, output in enumerate(owner.outputs):
            if not orderly:
                self.random.shuffle(rows)
            parts = [rows[i :: output.subpartitions] for i in range(output.subpartitions)]
            if output.distribution.kind == job_pb2.DISTRIBUTION_KIND_HASH:
                width = output.subpartitions
                parts = [[row for row in rows if row % width == i] for i in range(width)]
            worker.rows[key, index] = parts
            execution.partitions.add(
                output=index, subpartition_bytes=[len(part) for part in parts], rows=len(rows)
            )
        if any(operator.HasField("sink") for operator in owner.operators):
            path = f"/staging/{key.vertex_id}-{key.subtask}-{key.attempt}-{key.epoch}"
            self.staged[path] = rows
            execution.staged_files.add(
                staged_path=path, final_path=f"/out/{key.vertex_id}-{key.subtask}", rows=len(rows)
            )
        worker.stored[key] = execution
        return execution

    def fail(self, worker: Worker, key: AttemptKey) -> None:
        """A task fails by its own fault."""
        del worker.running[key]
        failure = common_pb2.Failure(kind=common_pb2.FAILURE_KIND_TASK, message="raised")
        self._report(worker, key, ExecutionState.FAILED, failure=failure)

    def _report(
        self,
        worker: Worker,
        key: AttemptKey,
        state: ExecutionState,
        *,
        finished: common_pb2.FinishedExecution | None = None,
        failure: common_pb2.Failure | None = None,
    ) -> None:
        if worker.registered:
            self.pending.append(
                sig.ExecutionReported(worker.worker_id, key, state, finished, failure)
            )

    # Time

    def tasks(self) -> list[tuple[Worker, AttemptKey]]:
        """Everything that runs."""
        return [(worker, key) for worker in self.workers.values() for key in worker.running]

    def fire(self, name: str) -> None:
        """A timer runs out."""
        del self.timers[name]
        self.deliver(sig.TimerFired(name))

    def deliver_pending(self) -> None:
        """Deliver every message, oldest first, until none is under way."""
        for _ in range(STEPS_MAX):
            if not self.pending or self.ended is not None:
                return
            self.deliver(self.pending.pop(0))
        raise AssertionError(f"messages without end: {self.pending[:3]}")

    def run_to_end(self) -> None:
        """Without further faults the job ends: everybody is there, tasks finish, timers fire."""
        for worker in self.workers.values():
            if not worker.registered:
                worker.alive = True
                self.register(worker)
        for _ in range(STEPS_MAX):
            self.deliver_pending()
            if self.ended is not None:
                return
            running = self.tasks()
            if running:
                self.finish(*self.random.choice(running))
            elif self.timers:
                self.fire(min(self.timers, key=lambda name: self.timers[name]))
            else:
                self._grant()
                assert self.pending, f"the job hangs: {self.describe()}"
        raise AssertionError(f"the job does not end: {self.describe()}")

    def describe(self) -> str:
        """What everybody is doing."""
        if self.scheduler is None:
            return "no leader"
        states = [(v.id, v.state.name, v.available) for v in self.scheduler.graph.all_subtasks()]
        return f"{self.scheduler.graph.state.name} {states} held={list(self.held)}"

    def output(self) -> list[int]:
        """The rows of the committed files, sorted."""
        assert self.committed is not None, "nothing was committed"
        return sorted(row for file in self.committed for row in self.staged[file.staged_path])

    def runs_of(self, vertex_id: str, subtask: int) -> int:
        """How often a subtask was started."""
        return sum(k.vertex_id == vertex_id and k.subtask == subtask for k in self.starts)

    @property
    def waits_for_workers(self) -> bool:
        """Whether the leader still waits for previous workers."""
        return WAIT_TIMER in self.timers
