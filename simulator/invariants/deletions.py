"""Finished work is deleted only for a reason that lasts (behaviour 4, 5.5, 6).

A TaskManager lets go of a finished attempt when a leader has ordered it or rejected the offer, when
the job is over (or has no recovery, and its leader is lost), or when it has looked for a leader for
as long as `taskmanager.registration.timeout`. And what a leader orders to be deleted must be
justified by what is durable: its successor, which knows no more than the log, must not need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdover import config as options
from holdover.config import Configuration
from holdover.ids import AttemptKey
from jobmanager.scheduler import actions as act
from jobmanager.scheduler.states import ExecutionState
from simulator.invariants.logs import Unreadable, copy_log, replay_copy
from simulator.invariants.stored import archived
from simulator.invariants.view import (
    Broken,
    ClusterView,
    Invariant,
    LeaderView,
    RunningJob,
    Step,
    WorkerView,
)

#: Clocks of hosts may run so much faster than the world's, and timers fire so much early by it.
CLOCK_RATE_MAX = 1.25
#: A TaskManager that holds more is not followed attempt by attempt.
ATTEMPTS_MAX = 2_000
#: A log beyond this is not read when its leader dies.
LOG_BYTES_MAX = 256 * 1024


@dataclass(slots=True)
class _Holder:
    """One life of a TaskManager, as it was at the last check."""

    held: dict[AttemptKey, None] = field(default_factory=dict)
    seen_s: float = 0.0
    #: When it was last seen to be registered. One that is not yet, and holds what its predecessor
    #: left, has looked for a leader since its start, which came after the check before.
    registered_s: float = 0.0


class NothingIsDeletedEarly(Invariant):
    """See the module."""

    name = "finished work is not deleted early"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        self._holders: dict[str, _Holder] = {}
        #: Attempts whose deletion some leader has ordered, or which it has rejected.
        self._ordered: dict[AttemptKey, None] = {}
        #: Of those, what one leader has ordered itself, by leader and job.
        self._released: dict[tuple[str, int, str], dict[AttemptKey, None]] = {}
        #: What was seen to vanish from a living TaskManager that had not looked for a leader for so
        #: long that it lets go of everything.
        self._deleted: dict[AttemptKey, None] = {}
        #: By job, as its stored graph says.
        self._recovers: dict[str, bool] = {}
        self._looked_s = 0.0

    def step(self, step: Step) -> None:
        """Remember what a leader orders, and whether its job recovers."""
        if step.job_id not in self._recovers:
            stored = Configuration.of({}).with_overrides(step.scheduler.graph.job.options)
            self._recovers[step.job_id] = stored.get(options.BATCH_JOB_RECOVERY_ENABLED)
        for action in step.decision.actions:
            if isinstance(action, act.ReleasePartitions):
                self._ordered.update(dict.fromkeys(action.keys))
                by = (step.leader, step.epoch, step.job_id)
                self._released.setdefault(by, {}).update(dict.fromkeys(action.keys))
            elif isinstance(action, act.RejectOffers):
                self._ordered.update(dict.fromkeys(action.keys))

    def check(self) -> None:
        """Compare what TaskManagers hold with what they held at the last check."""
        self._follow_all()

    def _follow_all(self) -> None:
        self._holders = {worker.name: self._follow(worker) for worker in self.view.workers()}
        self._looked_s = self.view.now_s

    def _follow(self, worker: WorkerView) -> _Holder:
        now_s = self.view.now_s
        before = self._holders.get(worker.name)
        held = dict.fromkeys(
            AttemptKey.from_proto(execution.attempt)
            for execution in worker.finished.inventory()[:ATTEMPTS_MAX]
        )
        registered_s = now_s
        if worker.registered_epoch is None:
            registered_s = self._looked_s if before is None else before.registered_s
        if before is not None and len(before.held) < ATTEMPTS_MAX:
            for key in before.held:
                if key not in held and worker.finished.get(key) is None:
                    self._judge(worker, before, key)
        return _Holder(held, now_s, registered_s)

    def _judge(self, worker: WorkerView, before: _Holder, key: AttemptKey) -> None:
        searched_s = self.view.now_s - before.registered_s
        if searched_s * CLOCK_RATE_MAX >= self.view.registration_timeout_s:
            return
        self._deleted[key] = None
        if key in self._ordered or not self._recovers.get(key.job_id, True):
            return
        if archived(self.view, key.job_id) is None:
            self.broken(
                f"{worker.name} no longer holds {key}: no leader has ordered that, its job goes on,"
                f" and it was registered {searched_s:.3f} s ago"
            )

    def leader_ends(self, leader: LeaderView) -> None:
        """What this leader has had deleted is not needed by one that knows its log only. An order
        that it has not sent (it waits for the log) has deleted nothing."""
        self._follow_all()
        for job in leader.jobs:
            released = self._released.get((leader.name, leader.epoch, job.job_id))
            if job.log is not None and released:
                self._judge_releases(leader, job, released)

    def _judge_releases(
        self, leader: LeaderView, job: RunningJob, released: dict[AttemptKey, None]
    ) -> None:
        assert job.log is not None
        submitted = self.view.jobs.get(job.job_id)
        log = copy_log(self.view.shared, job.log.directory)
        if log.bytes > LOG_BYTES_MAX or (submitted is not None and submitted.log_damaged):
            return
        try:
            graph = replay_copy(log, job.scheduler.graph.job).graph
        except Unreadable:
            return  # another invariant tells
        held = {key for worker in self.view.workers() for key in self._held(worker, released)}
        for key in released:
            vertex = graph.find(key)
            if vertex is None or vertex.key(job.job_id) != key or key in held:
                continue
            if key not in self._deleted:
                continue
            if vertex.state is ExecutionState.FINISHED and graph.needed(vertex):
                self.broken(
                    f"{leader.name} has had {key} deleted, and the log that it leaves says that"
                    " an unfinished subtask needs it"
                )

    def _held(self, worker: WorkerView, keys: dict[AttemptKey, None]) -> list[AttemptKey]:
        return [key for key in keys if worker.finished.get(key) is not None]
