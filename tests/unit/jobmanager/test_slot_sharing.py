"""Free slots among jobs."""

from __future__ import annotations

from jobmanager.scheduler.signals import SlotId
from jobmanager.slot_sharing import Demand, share_slots


def slots(count: int) -> list[SlotId]:
    return [SlotId("tm", index) for index in range(count)]


def test_a_job_gets_what_it_wants_and_not_more() -> None:
    sharing = share_slots({"a": Demand(wanted=2)}, slots(5))
    assert sharing.grants == {"a": slots(2)}
    assert sharing.reclaims == {}


def test_nobody_wants_nobody_gets() -> None:
    assert share_slots({"a": Demand(wanted=3, held=3)}, slots(2)).grants == {}


def test_slots_go_round_among_hungry_jobs_the_oldest_first() -> None:
    sharing = share_slots({"a": Demand(4), "b": Demand(4)}, slots(3))
    assert {job: len(granted) for job, granted in sharing.grants.items()} == {"a": 2, "b": 1}


def test_who_holds_fewest_comes_first() -> None:
    sharing = share_slots({"a": Demand(9, held=3), "b": Demand(9, held=1)}, slots(2))
    assert {job: len(granted) for job, granted in sharing.grants.items()} == {"b": 2}


def test_a_job_with_nothing_makes_others_return_what_is_above_the_fair_share() -> None:
    sharing = share_slots({"a": Demand(6, held=6), "b": Demand(2)}, [])
    assert sharing.grants == {}
    assert sharing.reclaims == {"a": 3}


def test_nothing_is_asked_back_while_everybody_has_something() -> None:
    sharing = share_slots({"a": Demand(9, held=5), "b": Demand(9, held=1)}, [])
    assert sharing.reclaims == {}


def test_a_job_that_wants_nothing_starves_nobody() -> None:
    assert share_slots({"a": Demand(6, held=6), "b": Demand(0)}, []).reclaims == {}


def test_the_last_slot_of_a_job_is_never_asked_back() -> None:
    demands = {"a": Demand(1, held=1), "b": Demand(1), "c": Demand(1)}
    assert share_slots(demands, []).reclaims == {}
