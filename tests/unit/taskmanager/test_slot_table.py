"""The slot table gives each slot to one attempt at a time."""

from __future__ import annotations

import pytest

from holdover.ids import AttemptKey
from taskmanager.slot_table import SlotRefused, SlotTable


def attempt(subtask: int, job_id: str = "job-a") -> AttemptKey:
    return AttemptKey(job_id, "v0", subtask, attempt=0, epoch=1)


def test_an_occupied_slot_is_refused_naming_its_occupant() -> None:
    table = SlotTable(2)
    assert table.occupy(1, attempt(0))
    with pytest.raises(SlotRefused, match=r"slot 1 is occupied by job-a/v0\[0\]#0@1"):
        table.occupy(1, attempt(1))
    table.check()


def test_a_repeated_deployment_of_the_same_attempt_changes_nothing() -> None:
    table = SlotTable(2)
    assert table.occupy(0, attempt(0))
    assert not table.occupy(0, attempt(0))
    assert table.free_slots == 1


def test_an_attempt_cannot_sit_in_two_slots() -> None:
    table = SlotTable(2)
    table.occupy(0, attempt(0))
    with pytest.raises(SlotRefused, match="occupies slot 0 already"):
        table.occupy(1, attempt(0))


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_does_not_exist_is_refused(slot: int) -> None:
    with pytest.raises(SlotRefused, match=r"the slots are 0\.\.1"):
        SlotTable(2).occupy(slot, attempt(0))


def test_a_freed_slot_takes_the_next_attempt() -> None:
    table = SlotTable(1)
    table.occupy(0, attempt(0))
    assert table.free(attempt(0)) == 0
    assert table.occupy(0, attempt(1))
    assert table.slot_of(attempt(0)) is None
    table.check()


def test_freeing_what_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        SlotTable(1).free(attempt(0))


def test_occupants_are_listed_by_slot_and_by_job() -> None:
    table = SlotTable(3)
    table.occupy(2, attempt(0))
    table.occupy(0, attempt(0, "job-b"))
    table.occupy(1, attempt(1))
    assert table.occupants() == [attempt(0, "job-b"), attempt(1), attempt(0)]
    assert table.occupants("job-a") == [attempt(1), attempt(0)]


def test_a_taskmanager_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        SlotTable(0)
