"""One leader epoch acts per job (behaviour 2, "Leader epoch").

Two processes may both believe that they lead for a moment, and a frozen leader goes on for a
moment when it wakes up. What may not be: that both go on believing it, that a TaskManager takes
orders of an epoch that it knows to be over, or that a job's end is decided by a leader whose
successor has taken the job up.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.ids import AttemptKey
from jobmanager.scheduler import actions as act
from simulator.invariants.stored import archived
from simulator.invariants.view import Broken, ClusterView, Invariant, Step, WorkerView

#: For so long two processes that run may both believe that they lead.
OVERLAP_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen of a TaskManager at a check."""

    epoch: int
    occupants: frozenset[AttemptKey]


class OneLeaderActs(Invariant):
    """See the module."""

    name = "one leader epoch acts"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        self._process_of_epoch: dict[int, str] = {}
        self._epoch_of_process: dict[str, int] = {}
        self._newest_step: dict[str, int] = {}
        self._overlap_since_s: dict[tuple[str, str], float] = {}
        self._seen: dict[str, _Seen] = {}
        self._ended: dict[str, None] = {}
        #: When the newest leader took up each job, and when each leader had decided how it ends.
        self._newest_since_s: dict[str, float] = {}
        self._decided_s: dict[tuple[str, int], float] = {}

    def step(self, step: Step) -> None:
        """An epoch belongs to one process, and epochs of a process grow."""
        self._leads(step.leader, step.epoch)
        newest = self._newest_step.get(step.job_id, 0)
        if step.epoch > newest:
            self._newest_step[step.job_id] = step.epoch
            self._newest_since_s[step.job_id] = step.at_s
        if any(isinstance(action, act.EndJob) for action in step.decision.actions):
            self._decided_s[step.job_id, step.epoch] = step.at_s

    def check(self) -> None:
        """Who leads, and what TaskManagers have taken since the last check."""
        leaders = self.view.leaders()
        for leader in leaders:
            self._leads(leader.name, leader.epoch)
        self._check_overlap([leader.name for leader in leaders if not leader.paused])
        seen = {}
        for worker in self.view.workers():
            seen[worker.name] = self._check_worker(worker)
        self._seen = seen
        self._check_ends()

    def _leads(self, process: str, epoch: int) -> None:
        owner = self._process_of_epoch.setdefault(epoch, process)
        if owner != process:
            self.broken(f"both {owner} and {process} lead with epoch {epoch}")
        before = self._epoch_of_process.get(process, 0)
        if epoch < before:
            self.broken(f"{process} leads with epoch {epoch} after {before}")
        self._epoch_of_process[process] = epoch

    def _check_overlap(self, running: list[str]) -> None:
        pairs = [(a, b) for i, a in enumerate(running) for b in running[i + 1 :]]
        now_s = self.view.now_s
        since = {pair: self._overlap_since_s.get(pair, now_s) for pair in pairs}
        self._overlap_since_s = since
        for (first, second), since_s in since.items():
            if now_s - since_s > OVERLAP_S_MAX:
                self.broken(f"{first} and {second} both lead since {since_s:.3f} s")

    def _check_worker(self, worker: WorkerView) -> _Seen:
        occupants = frozenset(worker.occupants)
        before = self._seen.get(worker.name)
        if before is not None:
            self._compare(worker, before)
        return _Seen(worker.epoch_seen, occupants)

    def _compare(self, worker: WorkerView, before: _Seen) -> None:
        if worker.epoch_seen < before.epoch:
            self.broken(
                f"{worker.name} has seen epoch {before.epoch} and now knows {worker.epoch_seen}"
            )
        for key in worker.occupants:
            if key.epoch < before.epoch and key not in before.occupants:
                self.broken(f"{worker.name} took {key} after it had seen epoch {before.epoch}")

    def _check_ends(self) -> None:
        for job_id in self.view.jobs:
            newest = self._newest_step.get(job_id)
            if newest is None or job_id in self._ended:
                continue
            ended = archived(self.view, job_id)
            if ended is None:
                continue
            if self._was_under_way(job_id, ended.leader_epoch):
                continue
            self._ended[job_id] = None
            if ended.leader_epoch < newest:
                self.broken(
                    f"job {job_id} was ended by epoch {ended.leader_epoch}, though epoch {newest}"
                    " had taken it up"
                )

    def _was_under_way(self, job_id: str, epoch: int) -> bool:
        """Whether an older leader had decided the end before its successor took the job up: it was
        frozen while it recorded that, and its successor will do so."""
        decided_s = self._decided_s.get((job_id, epoch))
        older = epoch < self._newest_step[job_id]
        return older and decided_s is not None and decided_s < self._newest_since_s[job_id]

    def at_end(self) -> list[str]:
        """Jobs of which the leader that has taken them up has not recorded how they ended."""
        epochs = {leader.epoch for leader in self.view.leaders()}
        taken_up = [job_id for job_id, epoch in self._newest_step.items() if epoch in epochs]
        ends = [(job_id, archived(self.view, job_id)) for job_id in taken_up]
        return [
            f"how job {job_id} ended is recorded by epoch {ended.leader_epoch} still"
            for job_id, ended in ends
            if ended is not None and self._was_under_way(job_id, ended.leader_epoch)
        ]
