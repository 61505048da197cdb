"""What must always be true of a cluster, whatever happens to it, checked throughout a run.

`Invariants` is told of everything that happens (it is an `Observer`), is asked to `check` every
now and then, and asked `at_end`, after healing, until nothing is left to say or time is over. What
contradicts an invariant becomes a `Finding`; the same text counts once.

1. the output equals that of a run without faults            output.py
2. one leader epoch acts per job                             leadership.py
3. nobody reads an uncommitted or stale partition            reads.py
4. finished work that lives does not run again               reruns.py
   and is not deleted early                                  deletions.py
   and is found by its TaskManager when that starts again    restarts.py
   and is whole where it is held                             held.py
5. state equals the replay of the log                        replays.py
6. the log cut at any byte recovers                          replays.py
7. nothing of an ended job remains                           remains.py
   and nothing lingers at a shuffle service                  services.py
8. every queue is within its bound                           bounds.py
   and no job waits beside free slots                        slots.py
9. every job ends after healing; no service fails by itself  progress.py
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from holdover.ids import AttemptKey
from holdover.runtime import Disk
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.taskmanager_pb2 import TaskDeployment
from jobmanager.job_master import JobMaster
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.signals import Signal
from simulator.invariants.bounds import QueuesAreBounded
from simulator.invariants.deletions import NothingIsDeletedEarly
from simulator.invariants.held import HeldIsWhole
from simulator.invariants.leadership import OneLeaderActs
from simulator.invariants.output import OutputIsComplete
from simulator.invariants.progress import JobsEnd, NoHiddenMistake
from simulator.invariants.reads import ReadsWhatCounts
from simulator.invariants.remains import NothingRemains
from simulator.invariants.replays import CutLogRecovers, StateEqualsReplay
from simulator.invariants.reruns import NoNeedlessRerun
from simulator.invariants.restarts import RestartFindsWork
from simulator.invariants.services import NothingLingers
from simulator.invariants.slots import NoJobStarves
from simulator.invariants.view import (
    ClusterView,
    ErrorLogged,
    Invariant,
    LeaderView,
    Step,
    WorkerView,
)
from simulator.observer import PartitionRead
from simulator.record import Finding

#: Findings that are kept of a run; one is enough to look into it.
FINDINGS_MAX = 50


class Invariants:
    """All invariants of one run. An `Observer`."""

    sees_reads = True

    def __init__(self, view: ClusterView, source: random.Random) -> None:
        """`source` draws where logs are cut."""
        self.findings: list[Finding] = []
        self._view = view
        self._texts: dict[tuple[str, str], None] = {}
        kinds: dict[str, Callable[[ClusterView, Callable[[str], None]], Invariant]] = {
            OutputIsComplete.name: OutputIsComplete,
            OneLeaderActs.name: OneLeaderActs,
            ReadsWhatCounts.name: ReadsWhatCounts,
            NoNeedlessRerun.name: NoNeedlessRerun,
            NothingIsDeletedEarly.name: NothingIsDeletedEarly,
            RestartFindsWork.name: RestartFindsWork,
            HeldIsWhole.name: HeldIsWhole,
            StateEqualsReplay.name: StateEqualsReplay,
            CutLogRecovers.name: functools.partial(CutLogRecovers, source=source),
            NothingRemains.name: NothingRemains,
            NothingLingers.name: NothingLingers,
            QueuesAreBounded.name: QueuesAreBounded,
            NoJobStarves.name: NoJobStarves,
            JobsEnd.name: JobsEnd,
            NoHiddenMistake.name: NoHiddenMistake,
        }
        self._invariants = [
            kind(view, functools.partial(self._broken, name)) for name, kind in kinds.items()
        ]

    def _broken(self, name: str, text: str) -> None:
        if (name, text) not in self._texts and len(self.findings) < FINDINGS_MAX:
            self._texts[name, text] = None
            self.findings.append(Finding(name, self._view.now_s, text))

    def names(self) -> list[str]:
        """All invariants, as findings name them."""
        return [invariant.name for invariant in self._invariants]

    # ------------------------------------------------------------------ what happens

    def attempt_started(self, worker: str, deployment: TaskDeployment, at_s: float) -> None:
        """See `Observer`."""
        for invariant in self._invariants:
            invariant.attempt_started(worker, deployment)

    def attempt_ended(
        self, worker: str, key: AttemptKey, end: str, execution: FinishedExecution | None
    ) -> None:
        """See `Observer`."""
        for invariant in self._invariants:
            invariant.attempt_ended(worker, key, end, execution)

    def partitions_read(self, reads: Sequence[PartitionRead]) -> None:
        """See `Observer`."""
        for invariant in self._invariants:
            invariant.partitions_read(reads)

    def steps_of(self, leader: str) -> Callable[[JobMaster, Signal, Decision], None]:
        """What `JobManager.on_step` of a process is set to; `leader` names its life."""
        return functools.partial(self._step, leader)

    def _step(self, leader: str, master: JobMaster, signal: Signal, decision: Decision) -> None:
        scheduler = master.scheduler
        epoch = scheduler.core.epoch
        now_s = self._view.now_s
        self.step(Step(leader, now_s, epoch, master.job_id, scheduler, signal, decision))

    def step(self, step: Step) -> None:
        """A leader has handled a signal."""
        for invariant in self._invariants:
            invariant.step(step)

    def leader_ends(self, leader: LeaderView) -> None:
        """A leader is about to die: called while its objects are still as they were."""
        for invariant in self._invariants:
            invariant.leader_ends(leader)

    def worker_starts(self, worker_id: str, disk: Disk, shuffle_directory: str) -> None:
        """The process of a TaskManager begins."""
        for invariant in self._invariants:
            invariant.worker_starts(worker_id, disk, shuffle_directory)

    def worker_ready(self, worker: WorkerView) -> None:
        """It is about to look for a leader."""
        for invariant in self._invariants:
            invariant.worker_ready(worker)

    def error_logged(self, error: ErrorLogged) -> None:
        """A service has logged a line of level error."""
        for invariant in self._invariants:
            invariant.error_logged(error)

    def uncaught(self, process: str, text: str) -> None:
        """An exception that nobody caught."""
        self._broken(NoHiddenMistake.name, f"uncaught in {process}: {text}")

    # ------------------------------------------------------------------ when it is asked

    def check(self) -> None:
        """Look at the cluster as it is now."""
        for invariant in self._invariants:
            invariant.check()

    def at_end(self) -> list[Finding]:
        """What does not hold (yet) of a healed cluster; to be repeated until it is nothing."""
        now_s = self._view.now_s
        return [
            Finding(invariant.name, now_s, text)
            for invariant in self._invariants
            for text in invariant.at_end()
        ]

    def end(self) -> None:
        """The time after healing is over: what does not hold by now counts."""
        for finding in self.at_end():
            self._broken(finding.invariant, finding.text)
