"""State equals the replay of the log, and the log cut at any byte recovers (behaviour 3).

Both read copies of a log, which takes time in proportion to its length. So that a run's cost stays
in proportion to its length too, each has an allowance of bytes that grows with every check; long
logs are read more rarely.
"""

from __future__ import annotations

import random

from jobmanager.scheduler import invariants
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import SchedulerOptions
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.reconciliation import WAIT_TIMER
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import ExecutionState, InvalidTransition
from jobmanager.scheduler.vertices import ExecutionVertex
from simulator.invariants.logs import (
    CopiedLog,
    Replayed,
    SegmentLayout,
    Unreadable,
    add_unwritten,
    copy_log,
    layout_of,
    replay_copy,
)
from simulator.invariants.view import Broken, ClusterView, Invariant, LeaderView, RunningJob, Step

#: What a check adds to the allowance, and how much can be saved up.
ALLOWANCE_BYTES = 4 * 1024
ALLOWANCE_BYTES_MAX = 4 * 1024 * 1024
#: A log beyond this is not read when its leader dies.
LOG_BYTES_MAX = 256 * 1024
#: Cuts that are tried at a leader's death.
CUTS_AT_END = 6
#: Subtasks that are looked at per step, on the average.
SUBTASKS_PER_STEP = 16


class StateEqualsReplay(Invariant):
    """The live graph is what its log says, as far as a log says it; and the scheduler's own
    invariants hold after its steps."""

    name = "state equals the replay of the log"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        self._allowance_bytes = 0
        self._unchecked_steps: dict[str, int] = {}
        #: Jobs that have made a step since they were compared.
        self._stepped: dict[str, None] = {}
        #: The newest that has acted: what lies in storage is its log.
        self._newest_epoch = 0

    def step(self, step: Step) -> None:
        """Check the scheduler, more rarely the larger it is."""
        self._stepped[step.job_id] = None
        self._newest_epoch = max(self._newest_epoch, step.epoch)
        subtasks = sum(owner.parallelism for owner in step.scheduler.graph.vertices.values())
        steps = self._unchecked_steps.get(step.job_id, 0) + 1
        self._unchecked_steps[step.job_id] = steps
        if steps * SUBTASKS_PER_STEP < subtasks:
            return
        self._unchecked_steps[step.job_id] = 0
        try:
            invariants.check(step.scheduler)
        except invariants.InvariantBroken as contradiction:
            kind = type(step.signal).__name__
            self.broken(f"job {step.job_id} under {step.leader} after {kind}: {contradiction}")

    def check(self) -> None:
        """Replay what the newest leader has written."""
        allowance = self._allowance_bytes + ALLOWANCE_BYTES
        self._allowance_bytes = min(allowance, ALLOWANCE_BYTES_MAX)
        leaders = self.view.leaders()
        if len(leaders) == 1 and not leaders[0].paused:
            self._check_leader(leaders[0], self._allowance_bytes)

    def leader_ends(self, leader: LeaderView) -> None:
        """The last state that this log must give."""
        if len(self.view.leaders()) == 1:
            self._check_leader(leader, LOG_BYTES_MAX)

    def _check_leader(self, leader: LeaderView, bytes_max: int) -> None:
        if leader.epoch < self._newest_epoch:
            return  # it stood still while its successor wrote the log anew
        for job in leader.jobs:
            if job.job_id not in self._stepped or job.scheduler.ended is not None:
                continue
            if job.log is None or job.log.unwritten is None:
                continue
            log = copy_log(self.view.shared, job.log.directory)
            if log.bytes <= bytes_max:
                del self._stepped[job.job_id]
                self._allowance_bytes = max(0, self._allowance_bytes - log.bytes)
                self._compare(leader, job, log)

    def _compare(self, leader: LeaderView, job: RunningJob, log: CopiedLog) -> None:
        assert job.log is not None
        submitted = self.view.jobs.get(job.job_id)
        live = job.scheduler.graph
        try:
            replayed = replay_copy(log, live.job)
            add_unwritten(replayed, job.log)
        except Unreadable as error:
            if submitted is None or not submitted.log_damaged:
                self.broken(f"the log of job {job.job_id} under {leader.name}: {error}")
            return
        for difference in differences(live, replayed.graph):
            self.broken(f"job {job.job_id} under {leader.name}: {difference}")


def differences(live: ExecutionGraph, replayed: ExecutionGraph) -> list[str]:
    """What a log determines and the live graph has otherwise."""
    found = [
        f"{what} is {getattr(live, what)!s}, and {getattr(replayed, what)!s} after a replay"
        for what in ("state", "cancel_requested", "commit", "failure")
        if getattr(live, what) != getattr(replayed, what)
    ]
    for vertex_id, owner in live.vertices.items():
        other = replayed.vertices[vertex_id]
        shape = (owner.parallelism, owner.input_bounds, owner.splits)
        if shape != (other.parallelism, other.input_bounds, other.splits):
            found.append(f"vertex {vertex_id} has another shape after a replay")
            continue
        for vertex, again in zip(owner.subtasks, other.subtasks, strict=True):
            difference = _difference(vertex, again)
            if difference:
                found.append(f"{vertex_id}[{vertex.subtask}] {difference}")
    return found


def _difference(live: ExecutionVertex, replayed: ExecutionVertex) -> str:
    finished = live.state is ExecutionState.FINISHED
    if finished is not (replayed.state is ExecutionState.FINISHED):
        return f"is {live.state.name}, and {replayed.state.name} after a replay"
    if not finished:
        if live.attempt < replayed.attempt:
            return f"is at attempt {live.attempt}, and {replayed.attempt} after a replay"
        if live.pinned_splits != replayed.pinned_splits:
            return f"must read splits {live.pinned_splits}, and {replayed.pinned_splits}"
        return ""
    if live.finished != replayed.finished or live.stored_at != replayed.stored_at:
        return f"finished as #{live.attempt} at {live.stored_at}, otherwise after a replay"
    return ""


class CutLogRecovers(Invariant):
    """A log that ends at any byte, with or without a torn tail behind, can be replayed; what it
    gives is how the job once was, and a scheduler goes on from there."""

    name = "the log cut at any byte recovers"

    def __init__(self, view: ClusterView, broken: Broken, source: random.Random) -> None:
        super().__init__(view, broken)
        self._random = source
        self._allowance_bytes = 0
        self._stepped: dict[str, None] = {}

    def step(self, step: Step) -> None:
        """Its log grows."""
        self._stepped[step.job_id] = None

    def check(self) -> None:
        """Try one cut of one job's log."""
        allowance = self._allowance_bytes + ALLOWANCE_BYTES
        self._allowance_bytes = min(allowance, ALLOWANCE_BYTES_MAX)
        if not self._stepped:
            return
        jobs = [job for leader in self.view.leaders() for job in leader.jobs]
        jobs = [job for job in jobs if job.log is not None and job.job_id in self._stepped]
        if jobs:
            job = jobs[int(self._random.random() * len(jobs))]
            del self._stepped[job.job_id]
            self._try_cuts(job, 1, self._allowance_bytes // 2)

    def leader_ends(self, leader: LeaderView) -> None:
        """Try several cuts of each job's log."""
        for job in leader.jobs:
            if job.log is not None:
                self._try_cuts(job, CUTS_AT_END, LOG_BYTES_MAX)

    def _try_cuts(self, job: RunningJob, count: int, bytes_max: int) -> None:
        assert job.log is not None
        submitted = self.view.jobs.get(job.job_id)
        log = copy_log(self.view.shared, job.log.directory)
        if log.bytes > bytes_max or (submitted is not None and submitted.log_damaged):
            return
        self._allowance_bytes = max(0, self._allowance_bytes - (1 + count) * log.bytes)
        broken = self.broken
        for text in cut_failures(log, job.scheduler, self._random, count):
            broken(f"the log of job {job.job_id}, {text}")


def cut_failures(
    log: CopiedLog, scheduler: Scheduler, source: random.Random, count: int
) -> list[str]:
    """What goes wrong with `count` cuts of the log, drawn from `source`.

    Half of the cuts are drawn close to a boundary of records, where mistakes are; half of them
    leave zeros behind the cut, as file systems do.
    """
    graph = scheduler.graph
    if not log.segments:
        return []
    try:
        whole = replay_copy(log, graph.job)
    except Unreadable as error:
        return [f"uncut: {error}"]
    paths = sorted(log.segments)
    layouts = {path: layout_of(log.segments[path]) for path in paths}
    snapshots = [p for p, at in layouts.items() if at is not None and at.header.is_snapshot]
    candidates = paths[paths.index(snapshots[-1]) :] if snapshots else paths
    failures = []
    for _ in range(count):
        path = source.choice(candidates)
        size = _drawn_size(log, path, layouts[path], graph, source)
        if size is None:
            continue
        cut = log.cut(path, size)
        if source.random() < 0.5:
            cut.segments[path] += bytes(source.randint(1, 64))
        where = f"cut at byte {size} of {path}"
        failures += [f"{where}: {text}" for text in _recovery_failures(cut, whole, scheduler)]
    return failures


def _drawn_size(
    log: CopiedLog,
    path: str,
    layout: SegmentLayout | None,
    graph: ExecutionGraph,
    source: random.Random,
) -> int | None:
    """Where to cut a segment; None when no cut of it can happen."""
    data, first = log.segments[path], 0
    if layout is not None and layout.header.is_snapshot:
        replaced = log.without(path)
        if not _stands_alone(replaced, graph, layout.header.durable_sequence):
            if not layout.snapshot_end:
                return None
            first = layout.snapshot_end
    if layout is not None and source.random() < 0.5:
        near = source.choice(layout.boundaries) + source.randint(-1, 1)
        return min(len(data), max(first, near))
    return source.randint(first, len(data))


def _stands_alone(older: CopiedLog, graph: ExecutionGraph, durable_sequence: int) -> bool:
    """Whether a snapshot's predecessors are all still there: then it may be lost."""
    try:
        return replay_copy(older, graph.job).last_sequence >= durable_sequence
    except Unreadable:
        return False


def _recovery_failures(cut: CopiedLog, whole: Replayed, scheduler: Scheduler) -> list[str]:
    job, epoch = scheduler.graph.job, scheduler.core.epoch
    try:
        replayed = replay_copy(cut, job)
    except Unreadable as error:
        return [str(error)]
    failures = [
        f"record {sequence} of epoch {of_epoch} is another one than before the cut"
        for (of_epoch, sequence), record in replayed.records.items()
        if whole.records.get((of_epoch, sequence), record) != record
    ]
    return failures or _scheduling_failures(replayed.graph, epoch + 1, scheduler.core.options)


def _scheduling_failures(graph: ExecutionGraph, epoch: int, options: SchedulerOptions) -> list[str]:
    """Whether a leader goes on from a state, even when no worker comes back."""
    successor = Scheduler(graph, epoch, options, RestartStrategy(attempts_max=1, delay_s=1.0))
    try:
        for signal in (sig.RecoveryStarted(()), sig.TimerFired(WAIT_TIMER)):
            successor.handle(signal)
            invariants.check(successor)
    except (invariants.InvariantBroken, InvalidTransition) as error:
        return [f"the next leader: {type(error).__name__}: {error}"]
    return []
