"""Which attempt occupies which slot. Pure: it decides, and the TaskExecutor acts."""

from __future__ import annotations

from holdover.ids import AttemptKey


class SlotRefused(Exception):
    """A slot cannot be given to an attempt; the text says why and goes into the refusal."""


class SlotTable:
    """The slots of one TaskManager, numbered from 0.

    A slot is occupied from the deployment of an attempt until its task process has let go of it:
    an attempt that is being cancelled still occupies its slot.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a TaskManager needs at least one slot, not {slots}")
        self._occupants: list[AttemptKey | None] = [None] * slots
        self._slot_of: dict[AttemptKey, int] = {}

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self._occupants)

    @property
    def free_slots(self) -> int:
        """Number of slots that nobody occupies."""
        return len(self._occupants) - len(self._slot_of)

    def occupy(self, slot: int, attempt: AttemptKey) -> bool:
        """Give the slot to the attempt; false when it has it already (a repeated deployment).

        Raises `SlotRefused` when the slot does not exist or is occupied by another attempt, or when
        the attempt sits in another slot.
        """
        if not 0 <= slot < len(self._occupants):
            raise SlotRefused(f"there is no slot {slot}: the slots are 0..{self.slots - 1}")
        occupant = self._occupants[slot]
        if occupant == attempt:
            return False
        if occupant is not None:
            raise SlotRefused(f"slot {slot} is occupied by {occupant}")
        elsewhere = self._slot_of.get(attempt)
        if elsewhere is not None:
            raise SlotRefused(f"{attempt} occupies slot {elsewhere} already")
        self._occupants[slot] = attempt
        self._slot_of[attempt] = slot
        return True

    def free(self, attempt: AttemptKey) -> int:
        """Take the attempt's slot back; returns the slot. Raises `KeyError` when it has none."""
        slot = self._slot_of.pop(attempt)
        self._occupants[slot] = None
        return slot

    def slot_of(self, attempt: AttemptKey) -> int | None:
        """The slot that the attempt occupies, if any."""
        return self._slot_of.get(attempt)

    def occupants(self, job_id: str | None = None) -> list[AttemptKey]:
        """The attempts in slots, by slot; only those of one job when it is given."""
        return [
            occupant
            for occupant in self._occupants
            if occupant is not None and job_id in (None, occupant.job_id)
        ]

    def check(self) -> None:
        """Raise `AssertionError` when the two directions of the table contradict each other."""
        forward = {slot: key for slot, key in enumerate(self._occupants) if key is not None}
        backward = {slot: key for key, slot in self._slot_of.items()}
        assert forward == backward, f"slots {forward} but attempts {backward}"
