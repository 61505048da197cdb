"""Every slot of a cluster: free, or held by one job."""

from __future__ import annotations

import random

import pytest

from jobmanager.scheduler.signals import SlotId
from jobmanager.slot_ledger import SlotLedger

A0, A1, B0, B1 = SlotId("a", 0), SlotId("a", 1), SlotId("b", 0), SlotId("b", 1)


def ledger(*worker_ids: str) -> SlotLedger:
    """Open workers with two slots each."""
    new = SlotLedger()
    for worker_id in worker_ids:
        new.add(worker_id, 2)
        new.open(worker_id)
    return new


def test_the_first_slots_of_all_workers_come_before_the_second_ones() -> None:
    assert ledger("b", "a").first_free(9) == [A0, B0, A1, B1]
    assert ledger("b", "a").first_free(1) == [A0]


def test_a_closed_worker_gives_nothing_and_jobs_keep_what_they_hold() -> None:
    slots = ledger("a")
    slots.grant(A0, "job")
    slots.close("a")
    assert (slots.first_free(9), slots.held_by("job"), slots.counts()) == ([], 1, (2, 1))
    slots.take_back(A0, "job")
    assert slots.first_free(9) == []
    slots.open("a")
    assert slots.first_free(9) == [A0, A1]


def test_only_the_holder_gives_a_slot_back() -> None:
    slots = ledger("a")
    slots.grant(A0, "job")
    slots.take_back(A0, "other")
    slots.take_back(B0, "job")
    assert slots.held() == {"job": 1}
    slots.take_back(A0, "job")
    assert slots.held() == {}


def test_a_slot_is_granted_once() -> None:
    slots = ledger("a")
    slots.grant(A0, "job")
    with pytest.raises(ValueError, match="not free"):
        slots.grant(A0, "other")


def test_a_worker_that_is_gone_takes_its_slots_along() -> None:
    slots = ledger("a", "b")
    slots.grant(A0, "job")
    slots.grant(B1, "job")
    slots.remove("a")
    slots.remove("a")
    assert (slots.held(), slots.first_free(9), slots.counts()) == ({"job": 1}, [B0], (2, 1))


def test_a_job_that_is_over_holds_nothing() -> None:
    slots = ledger("a")
    slots.grant(A1, "job")
    slots.take_back_all("job")
    slots.take_back_all("unknown")
    assert (slots.first_free(9), slots.free_at("a")) == ([A0, A1], 2)


@pytest.mark.parametrize("seed", range(20))
def test_every_slot_is_in_one_place_whatever_happens(seed: int) -> None:
    choose, slots = random.Random(seed), SlotLedger()
    known: dict[str, None] = {}
    for _ in range(300):
        worker_id, job_id = choose.choice("abcdef"), choose.choice("xyz")
        free = slots.first_free(99)
        match choose.randrange(7):
            case 0:
                slots.add(worker_id, choose.randrange(1, 4))
                known[worker_id] = None
            case 1:
                slots.remove(worker_id)
                known.pop(worker_id, None)
            case 2 if worker_id in known:
                slots.open(worker_id)
            case 3:
                slots.close(worker_id)
            case 4 | 5 if free:
                slots.grant(choose.choice(free), job_id)
            case 6:
                slots.take_back(SlotId(worker_id, choose.randrange(4)), job_id)
        slots.check()
