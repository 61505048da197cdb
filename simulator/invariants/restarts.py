"""A TaskManager that is started again holds all finished work that its disk still has (behaviour
5, TM restart).

What counts is the disk at the moment at which the new process begins: a loss of power, or a fault
that has struck the files, may have taken something, and what is not whole must not be held. While
a fault acts on the disk, nobody can say what the process could read.
"""

from __future__ import annotations

from holdover.ids import AttemptKey
from holdover.runtime import Disk
from simulator.invariants.stored import whole_attempts
from simulator.invariants.view import Broken, ClusterView, Invariant, WorkerView


class RestartFindsWork(Invariant):
    """See the module."""

    name = "a TaskManager that is started again holds what its disk has"

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        super().__init__(view, broken)
        #: When each TaskManager's present process began, and what was whole on its disk then.
        self._found: dict[str, tuple[float, list[AttemptKey]]] = {}

    def worker_starts(self, worker_id: str, disk: Disk, shuffle_directory: str) -> None:
        """Remember what the process can find."""
        self._found[worker_id] = (self.view.now_s, whole_attempts(disk, shuffle_directory))

    def worker_ready(self, worker: WorkerView) -> None:
        """Compare what it holds, before any leader has heard of it, with what it could find."""
        since_s, keys = self._found.pop(worker.worker_id, (self.view.now_s, []))
        sound_since_s = worker.disk_sound_since_s
        if sound_since_s is None or sound_since_s > since_s:
            return
        for key in keys:
            if worker.finished.get(key) is None:
                self.broken(
                    f"{worker.name} does not hold {key}, which was whole on its disk when it"
                    f" began, {self.view.now_s - since_s:.3f} s ago"
                )
