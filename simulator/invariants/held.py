"""What a worker holds as finished is there, whole, from the moment on at which it holds it.

A TaskManager's task leaves its files and then reports; a shuffle service is told to publish, and
must not take an attempt for finished of which anything is missing. What a fault has done to the
disk meanwhile is nobody's mistake, nor what it has done before a paused worker heard of the end.
"""

from __future__ import annotations

from holdover.ids import AttemptKey
from simulator.invariants.stored import whole
from simulator.invariants.view import Broken, ClusterView, Invariant, WorkerView

#: A worker that holds more is not looked at.
ATTEMPTS_MAX = 2_000


class HeldIsWhole(Invariant):
    """See the module."""

    name = "what is held as finished is there"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        #: What each life of a worker held at the last check.
        self._held: dict[str, dict[AttemptKey, None]] = {}
        self._looked_s = 0.0
        #: When each worker that is paused last ran at a check.
        self._ran_s: dict[str, float] = {}

    def check(self) -> None:
        """Look at what is held anew."""
        workers = self.view.workers()
        self._held = {worker.name: self._look(worker) for worker in workers}
        self._ran_s = {worker.name: self._ran(worker) for worker in workers if worker.paused}
        self._looked_s = self.view.now_s

    def _ran(self, worker: WorkerView) -> float:
        return self._ran_s.get(worker.name, self._looked_s)

    def _look(self, worker: WorkerView) -> dict[AttemptKey, None]:
        before = self._held.get(worker.name, {})
        held = dict.fromkeys(
            AttemptKey.from_proto(execution.attempt)
            for execution in worker.finished.inventory()[:ATTEMPTS_MAX]
        )
        since_s = worker.disk_sound_since_s
        if since_s is not None and since_s <= self._ran(worker):
            for key in held:
                if key not in before and not whole(worker, key):
                    self.broken(f"{worker.name} holds {key}, and not all of it is there")
        return held
