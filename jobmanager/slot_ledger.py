"""Every slot of the registered TaskManagers: free, or held by one job. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from jobmanager.scheduler.signals import SlotId


@dataclass(slots=True)
class _WorkerSlots:
    """The slots of one TaskManager."""

    slots: int
    #: Whether its free slots may be given to jobs now.
    open: bool = False
    #: Slot index -> job that holds it; free slots are absent.
    holders: dict[int, str] = field(default_factory=dict)

    def free(self) -> list[int]:
        """Indexes of the slots that no job holds."""
        return [index for index in range(self.slots) if index not in self.holders]


class SlotLedger:
    """Who holds which slot.

    What a step changes is what it costs: nothing here walks all workers or all slots of a cluster,
    for a change of one slot.
    """

    def __init__(self) -> None:
        self._workers: dict[str, _WorkerSlots] = {}
        #: Free slots of open workers as (index, worker id), ascending: first the first slots of
        #: all workers, so that a job that wants few is spread over many.
        self._free: list[tuple[int, str]] = []
        #: By job, in the order in which it got them.
        self._held: dict[str, dict[SlotId, None]] = {}
        self._slot_count = 0
        self._held_count = 0

    # Workers

    def add(self, worker_id: str, slots: int) -> None:
        """A TaskManager has come, which is closed at first and holds nothing of any job."""
        self.remove(worker_id)
        self._workers[worker_id] = _WorkerSlots(slots)
        self._slot_count += slots

    def remove(self, worker_id: str) -> None:
        """A TaskManager is gone with all its slots, whoever holds them; it may be unknown."""
        self.close(worker_id)
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        self._slot_count -= worker.slots
        self._held_count -= len(worker.holders)
        for index, job_id in worker.holders.items():
            self._forget(SlotId(worker_id, index), job_id)

    def open(self, worker_id: str) -> None:
        """From now on the free slots of a TaskManager may be given to jobs."""
        worker = self._workers[worker_id]
        if not worker.open:
            worker.open = True
            for index in worker.free():
                insort(self._free, (index, worker_id))

    def close(self, worker_id: str) -> None:
        """Give no more slots of a TaskManager to jobs; what they hold of it they keep."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.open:
            worker.open = False
            for index in worker.free():
                del self._free[bisect_left(self._free, (index, worker_id))]

    # Slots

    def first_free(self, count: int) -> list[SlotId]:
        """The first `count` slots that may be given to jobs now, or all of them."""
        return [SlotId(worker_id, index) for index, worker_id in self._free[:count]]

    def grant(self, slot: SlotId, job_id: str) -> None:
        """A job holds a free slot from now on.

        Raises:
            ValueError: it is not free.
        """
        place = (slot.index, slot.worker_id)
        position = bisect_left(self._free, place)
        if self._free[position : position + 1] != [place]:
            raise ValueError(f"{slot} is not free")
        del self._free[position]
        self._workers[slot.worker_id].holders[slot.index] = job_id
        self._held.setdefault(job_id, {})[slot] = None
        self._held_count += 1

    def take_back(self, slot: SlotId, job_id: str) -> None:
        """A job gives a slot back; nothing happens if it does not hold it (any more)."""
        worker = self._workers.get(slot.worker_id)
        if worker is None or worker.holders.get(slot.index) != job_id:
            return
        del worker.holders[slot.index]
        self._held_count -= 1
        self._forget(slot, job_id)
        if worker.open:
            insort(self._free, (slot.index, slot.worker_id))

    def take_back_all(self, job_id: str) -> None:
        """A job gives back all that it holds."""
        for slot in list(self._held.get(job_id, ())):
            self.take_back(slot, job_id)

    def _forget(self, slot: SlotId, job_id: str) -> None:
        held = self._held[job_id]
        del held[slot]
        if not held:
            del self._held[job_id]

    # Questions

    def held(self) -> dict[str, int]:
        """How many slots each job holds that holds any."""
        return {job_id: len(slots) for job_id, slots in self._held.items()}

    def held_by(self, job_id: str) -> int:
        """How many slots a job holds."""
        return len(self._held.get(job_id, ()))

    def counts(self) -> tuple[int, int]:
        """(all slots, those that no job holds)."""
        return self._slot_count, self._slot_count - self._held_count

    def free_at(self, worker_id: str) -> int:
        """How many slots of a TaskManager no job holds."""
        worker = self._workers[worker_id]
        return worker.slots - len(worker.holders)

    def check(self) -> None:
        """Raise `AssertionError` when what is kept of a slot in several places differs."""
        free = sorted((i, w) for w, of in self._workers.items() if of.open for i in of.free())
        assert self._free == free, f"free {self._free}, but by worker {free}"
        held: dict[str, list[SlotId]] = {}
        for worker_id, worker in self._workers.items():
            for index, job_id in worker.holders.items():
                held.setdefault(job_id, []).append(SlotId(worker_id, index))
        by_job = {job_id: set(slots) for job_id, slots in self._held.items()}
        assert by_job == {job_id: set(slots) for job_id, slots in held.items()}, f"held {by_job}"
        slots = sum(worker.slots for worker in self._workers.values())
        assert self.counts() == (slots, slots - sum(len(s) for s in held.values()))
