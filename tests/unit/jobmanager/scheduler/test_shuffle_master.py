"""Where output goes: TaskManagers' own disks, or shuffle services by room and load."""

from __future__ import annotations

import pytest

from jobmanager.scheduler.shuffle_master import ExternalShuffle, TaskManagerShuffle, shuffle_master
from jobmanager.scheduler.signals import ShuffleLoad


def services(*rooms: int, job_id: str = "") -> ExternalShuffle:
    """One service for each room in bytes, by the names a, b, ..."""
    shuffle = ExternalShuffle(job_id)
    for name, room_bytes in zip("abcdefgh", rooms, strict=False):
        shuffle.registered(name, ShuffleLoad(room_bytes))
    return shuffle


def places(shuffle: ExternalShuffle, count: int) -> list[str]:
    return [shuffle.place(("v", subtask)) for subtask in range(count)]


def test_the_mode_decides_which_master_a_job_has() -> None:
    assert isinstance(shuffle_master("taskmanager", "job"), TaskManagerShuffle)
    assert isinstance(shuffle_master("external", "job"), ExternalShuffle)


def test_output_of_taskmanagers_stays_where_it_was_written() -> None:
    shuffle = TaskManagerShuffle()
    shuffle.registered("a", ShuffleLoad(10))
    assert shuffle.has_target
    assert shuffle.place(("v", 0)) == ""
    assert shuffle.lost("a") == []


def test_writers_are_spread_evenly_over_equal_services() -> None:
    assert sorted(places(services(100, 100, 100), 9)) == sorted("abc" * 3)


def test_a_service_with_twice_the_room_gets_twice_the_writers() -> None:
    chosen = places(services(100, 200), 9)
    assert chosen.count("b") == 2 * chosen.count("a")


def test_jobs_that_start_at_once_do_not_all_begin_with_the_same_service() -> None:
    firsts = {services(100, 100, job_id=job_id).place(("v", 0)) for job_id in ("a", "b")}
    assert firsts == {"a", "b"}


def test_what_other_jobs_write_counts_as_load() -> None:
    shuffle = services(100, 100)
    shuffle.told("a", ShuffleLoad(100, open_puts=5))
    assert places(shuffle, 4) == ["b"] * 4


def test_full_and_leaving_services_are_avoided() -> None:
    shuffle = services(100, 0, 100)
    shuffle.told("c", ShuffleLoad(100, draining=True))
    assert places(shuffle, 3) == ["a"] * 3
    assert shuffle.room() == {"a": 100}


def test_a_service_that_refused_output_is_avoided_until_it_tells_its_load() -> None:
    shuffle = services(100, 90)
    assert shuffle.place(("v", 0)) == "a"
    shuffle.refused(("v", 0))
    assert places(shuffle, 3) == ["b"] * 3
    shuffle.told("a", ShuffleLoad(100))
    assert shuffle.place(("v", 3)) == "a"


def test_without_a_service_that_takes_output_there_is_no_target() -> None:
    shuffle = services(0)
    assert not shuffle.has_target
    with pytest.raises(LookupError, match="no shuffle service"):
        shuffle.place(("v", 0))
    assert shuffle.told("a", ShuffleLoad(1))
    assert not shuffle.told("a", ShuffleLoad(2)), "there was a target before"


def test_a_lost_service_names_those_who_write_to_it_and_is_chosen_no_more() -> None:
    shuffle = services(100, 100)
    written = places(shuffle, 4)
    assert shuffle.lost("a") == [("v", i) for i, target in enumerate(written) if target == "a"]
    assert shuffle.place(("v", 4)) == "b"


def test_an_attempt_that_is_over_does_not_count_as_a_writer() -> None:
    shuffle = services(100, 100)
    first = shuffle.place(("v", 0))
    assert shuffle.target_of(("v", 0)) == first
    assert shuffle.over(("v", 0)) == first
    assert shuffle.over(("v", 0)) == ""
    assert shuffle.place(("v", 1)) == first
