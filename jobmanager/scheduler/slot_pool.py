"""The slots that a job holds, and which attempt runs in each."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from jobmanager.scheduler.signals import SlotId
from jobmanager.scheduler.vertices import SubtaskId


class SlotPool:
    """Slots granted to a job by the ResourceManager: free ones and occupied ones, each exactly
    once.

    Every method costs what it touches, however many slots the job holds. `free` and `occupied` are
    to be read only.
    """

    def __init__(self) -> None:
        #: Free slots, the longest free one first; the same by worker. Ordered, because the first
        #: entry of a plain dict is searched among all that were deleted before it.
        self.free: OrderedDict[SlotId, None] = OrderedDict()
        self._free_at: dict[str, dict[SlotId, None]] = {}
        #: Which subtask occupies which slot; the same by worker.
        self.occupied: dict[SlotId, SubtaskId] = {}
        self._occupied_at: dict[str, dict[SlotId, None]] = {}

    def __len__(self) -> int:
        return len(self.free) + len(self.occupied)

    def grant(self, slots: tuple[SlotId, ...]) -> None:
        """Take slots into the pool; one that is there already stays as it is."""
        for slot in slots:
            if slot not in self.occupied:
                self._add_free(slot)

    def take(self, subtask: SubtaskId, prefer_worker: str | None = None) -> SlotId:
        """Occupy a free slot, at `prefer_worker` where it has one.

        Raises:
            KeyError: no slot is free.
        """
        preferred = self._free_at.get(prefer_worker) if prefer_worker is not None else None
        slot = next(iter(preferred or self.free), None)
        if slot is None:
            raise KeyError("no slot is free")
        self._remove_free(slot)
        self.occupied[slot] = subtask
        self._occupied_at.setdefault(slot.worker_id, {})[slot] = None
        return slot

    def vacate(self, slot: SlotId, subtask: SubtaskId) -> bool:
        """Free a slot that a subtask occupied; False if it no longer did (the worker was lost)."""
        if self.occupied.get(slot) != subtask:
            return False
        del self.occupied[slot]
        _remove(self._occupied_at, slot)
        self._add_free(slot)
        return True

    def give_back(self, count: int | None = None) -> tuple[SlotId, ...]:
        """Take up to `count` free slots (all, if None) out of the pool."""
        slots = tuple(islice(self.free, count))
        for slot in slots:
            self._remove_free(slot)
        return slots

    def lose_worker(self, worker_id: str) -> None:
        """Forget all slots of a worker."""
        for slot in self._free_at.pop(worker_id, ()):
            del self.free[slot]
        for slot in self._occupied_at.pop(worker_id, ()):
            del self.occupied[slot]

    def _add_free(self, slot: SlotId) -> None:
        self.free[slot] = None
        self._free_at.setdefault(slot.worker_id, {})[slot] = None

    def _remove_free(self, slot: SlotId) -> None:
        del self.free[slot]
        _remove(self._free_at, slot)


def _remove(by_worker: dict[str, dict[SlotId, None]], slot: SlotId) -> None:
    slots = by_worker[slot.worker_id]
    del slots[slot]
    if not slots:
        del by_worker[slot.worker_id]
