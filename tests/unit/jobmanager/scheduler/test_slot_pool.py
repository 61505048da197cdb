"""The slots of one job: each exactly once, free or occupied."""

from __future__ import annotations

import random

import pytest

from jobmanager.scheduler.signals import SlotId
from jobmanager.scheduler.slot_pool import SlotPool

A0, A1, B0 = SlotId("a", 0), SlotId("a", 1), SlotId("b", 0)


def pool(*slots: SlotId) -> SlotPool:
    new = SlotPool()
    new.grant(slots)
    return new


def test_the_longest_free_slot_is_taken_first() -> None:
    slots = pool(A0, B0, A1)
    assert slots.take(("m", 0)) == A0
    slots.vacate(A0, ("m", 0))
    assert [slots.take(("m", i)) for i in range(3)] == [B0, A1, A0]


def test_a_preferred_worker_is_preferred_as_long_as_it_has_a_slot() -> None:
    slots = pool(A0, A1, B0)
    assert slots.take(("m", 0), "b") == B0
    assert slots.take(("m", 1), "b") == A0
    assert slots.take(("m", 2), "unknown") == A1


def test_nothing_is_taken_where_nothing_is_free() -> None:
    with pytest.raises(KeyError, match="no slot is free"):
        SlotPool().take(("m", 0))


def test_a_slot_that_is_granted_twice_counts_once() -> None:
    """P22: a worker that registers twice does not double its slots."""
    slots = pool(A0, A0)
    slots.take(("m", 0))
    slots.grant((A0,))
    assert (len(slots), len(slots.free), len(slots.occupied)) == (1, 0, 1)


def test_only_the_occupant_vacates_its_slot() -> None:
    slots = pool(A0)
    slots.take(("m", 0))
    assert not slots.vacate(A0, ("m", 1))
    assert slots.vacate(A0, ("m", 0))
    assert not slots.vacate(A0, ("m", 0))


def test_free_slots_are_given_back_and_no_others() -> None:
    slots = pool(A0, A1, B0)
    slots.take(("m", 0))
    assert slots.give_back(1) == (A1,)
    assert slots.give_back() == (B0,)
    assert slots.give_back() == ()
    assert slots.occupied == {A0: ("m", 0)}


def test_a_lost_worker_takes_all_its_slots_along() -> None:
    slots = pool(A0, A1, B0)
    slots.take(("m", 0), "a")
    slots.lose_worker("a")
    assert (len(slots), len(slots.free)) == (1, 1)
    assert not slots.vacate(A0, ("m", 0))
    assert slots.take(("m", 1), "a") == B0


@pytest.mark.parametrize("seed", range(20))
def test_every_slot_is_in_one_place_whatever_happens(seed: int) -> None:
    choose, slots = random.Random(seed), SlotPool()
    known: dict[SlotId, None] = {}
    for step in range(200):
        action = choose.randrange(4)
        occupied = list(slots.occupied.items())
        if action == 0:
            slot = SlotId(choose.choice("abc"), choose.randrange(3))
            slots.grant((slot,))
            known[slot] = None
        elif action == 1 and slots.free:
            assert slots.take(("m", step), choose.choice("abcd")) in known
        elif action == 2 and occupied:
            assert slots.vacate(*choose.choice(occupied))
        elif action == 3 and choose.random() < 0.2:
            lost = choose.choice("abc")
            slots.lose_worker(lost)
            known = {s: None for s in known if s.worker_id != lost}
        assert len(slots) == len(known)
    assert {*slots.occupied, *slots.give_back()} == set(known)
