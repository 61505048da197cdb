"""Where the output of a job's attempts goes: to the disk of the TaskManager that runs each, or to a
shuffle service (`shuffle.mode`).

The two implementations of `ShuffleMaster` are pure, as the scheduler is: services come, go and tell
their load by signals. Where finished output is stored is in the job's events; what stands here
besides (which attempt writes where, who is full or leaves) is of one leader, and the next one is
told it anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from jobmanager.scheduler.signals import ShuffleLoad
from jobmanager.scheduler.vertices import SubtaskId


class ShuffleMaster(Protocol):
    """Chooses the targets of one job's attempts."""

    @property
    def external(self) -> bool:
        """Whether output needs a shuffle service to go to."""

    @property
    def services(self) -> Iterable[str]:
        """The registered shuffle services, whether the job writes to them or not."""

    def registered(self, worker_id: str, load: ShuffleLoad | None) -> None:
        """A worker registered; `load` is None for a TaskManager."""

    def told(self, worker_id: str, load: ShuffleLoad) -> bool:
        """A shuffle service told its load. Whether output finds a target that found none before."""

    def lost(self, worker_id: str) -> list[SubtaskId]:
        """A worker is gone: the subtasks whose current attempts write to it."""

    def refused(self, subtask: SubtaskId) -> None:
        """The target of a subtask's current attempt did not take its output."""

    @property
    def has_target(self) -> bool:
        """Whether output has somewhere to go at this moment."""

    def room(self) -> dict[str, int]:
        """How many bytes each shuffle service takes that takes output."""

    def is_written(self, worker_id: str) -> bool:
        """Whether any current attempt writes to a worker, as of `place`."""

    def place(self, subtask: SubtaskId) -> str:
        """Choose a target for a new attempt: a shuffle service's id, or empty for the TaskManager's
        own disk.

        Raises:
            LookupError: `has_target` is false.
        """

    def over(self, subtask: SubtaskId) -> str:
        """A subtask's attempt writes no more; its target, as of `place`."""

    def target_of(self, subtask: SubtaskId) -> str:
        """Where a subtask's current attempt writes, as of `place`."""


class TaskManagerShuffle:
    """Output stays with the TaskManager whose task wrote it."""

    external = False
    has_target = True

    def __init__(self) -> None:
        self._services: dict[str, None] = {}

    @property
    def services(self) -> Iterable[str]:
        """See `ShuffleMaster`."""
        return self._services

    def registered(self, worker_id: str, load: ShuffleLoad | None) -> None:
        """See `ShuffleMaster`."""
        if load is not None:
            self._services[worker_id] = None

    def told(self, worker_id: str, load: ShuffleLoad) -> bool:
        """Nothing depends on it."""
        return False

    def lost(self, worker_id: str) -> list[SubtaskId]:
        """No attempt writes elsewhere than where it runs."""
        self._services.pop(worker_id, None)
        return []

    def refused(self, subtask: SubtaskId) -> None:
        """There is no other choice."""

    def room(self) -> dict[str, int]:
        """Nothing moves."""
        return {}

    def is_written(self, worker_id: str) -> bool:
        """See `ShuffleMaster`."""
        return False

    def place(self, subtask: SubtaskId) -> str:
        """See `ShuffleMaster`."""
        return ""

    def over(self, subtask: SubtaskId) -> str:
        """See `ShuffleMaster`."""
        return ""

    def target_of(self, subtask: SubtaskId) -> str:
        """See `ShuffleMaster`."""
        return ""


class ExternalShuffle:
    """Output goes to shuffle services, spread by their free space and load.

    Of those that take output, the one with the fewest writers for its room is chosen; equal ones in
    the order of their ids, which is turned by one place for each job so that many jobs which start
    at once do not all begin with the same.
    """

    external = True

    def __init__(self, job_id: str) -> None:
        self._turn = sum(job_id.encode())
        self._loads: dict[str, ShuffleLoad] = {}
        #: Services that have refused output since they told their load.
        self._avoided: dict[str, None] = {}
        self._targets: dict[SubtaskId, str] = {}
        self._writers: dict[str, dict[SubtaskId, None]] = {}

    @property
    def services(self) -> Iterable[str]:
        """See `ShuffleMaster`."""
        return self._loads

    def registered(self, worker_id: str, load: ShuffleLoad | None) -> None:
        """See `ShuffleMaster`."""
        if load is not None:
            self.told(worker_id, load)

    def told(self, worker_id: str, load: ShuffleLoad) -> bool:
        """See `ShuffleMaster`."""
        before = self.has_target
        self._loads[worker_id] = load
        self._avoided.pop(worker_id, None)
        return self.has_target and not before

    def lost(self, worker_id: str) -> list[SubtaskId]:
        """See `ShuffleMaster`. They count as writing there until their attempts are over."""
        self._loads.pop(worker_id, None)
        self._avoided.pop(worker_id, None)
        return list(self._writers.get(worker_id, ()))

    def refused(self, subtask: SubtaskId) -> None:
        """See `ShuffleMaster`. It is avoided until it tells how it is."""
        worker_id = self._targets.get(subtask)
        if worker_id in self._loads:
            self._avoided[worker_id] = None

    @property
    def has_target(self) -> bool:
        """See `ShuffleMaster`."""
        return any(self.takes_output(worker_id) for worker_id in self._loads)

    def takes_output(self, worker_id: str) -> bool:
        """Whether a service is there, stays, and has room, as far as is known."""
        load = self._loads.get(worker_id)
        if load is None or worker_id in self._avoided:
            return False
        return not load.draining and load.room_bytes > 0

    def room(self) -> dict[str, int]:
        """See `ShuffleMaster`."""
        loads = self._loads.items()
        return {name: load.room_bytes for name, load in loads if self.takes_output(name)}

    def is_written(self, worker_id: str) -> bool:
        """See `ShuffleMaster`."""
        return worker_id in self._writers

    def place(self, subtask: SubtaskId) -> str:
        """See `ShuffleMaster`."""
        worker_id = self.choose()
        self.over(subtask)
        self._targets[subtask] = worker_id
        self._writers.setdefault(worker_id, {})[subtask] = None
        return worker_id

    def choose(self) -> str:
        """The service that the next output should go to.

        Raises:
            LookupError: none takes output.
        """
        candidates = sorted(filter(self.takes_output, self._loads))
        if not candidates:
            raise LookupError("no shuffle service takes output")
        first = self._turn % len(candidates)
        return min((*candidates[first:], *candidates[:first]), key=self._writers_for_room)

    def _writers_for_room(self, worker_id: str) -> float:
        """What the service has told includes this job's writers, but for those since."""
        load = self._loads[worker_id]
        writers = max(load.open_puts, len(self._writers.get(worker_id, ())))
        return (writers + 1) / load.room_bytes

    def over(self, subtask: SubtaskId) -> str:
        """See `ShuffleMaster`."""
        worker_id = self._targets.pop(subtask, "")
        if worker_id:
            writers = self._writers[worker_id]
            del writers[subtask]
            if not writers:
                del self._writers[worker_id]
        return worker_id

    def target_of(self, subtask: SubtaskId) -> str:
        """See `ShuffleMaster`."""
        return self._targets.get(subtask, "")


def shuffle_master(mode: str, job_id: str) -> ShuffleMaster:
    """The implementation for a job's `shuffle.mode`."""
    return ExternalShuffle(job_id) if mode == "external" else TaskManagerShuffle()
