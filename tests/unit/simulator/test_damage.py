"""Files that are lost or cut behind the services' back."""

from __future__ import annotations

import errno
import random

import pytest

from jobmanager.job_store import JobStore
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX
from simulator.damage import cut_event_logs, lose_partitions
from simulator.invariants.view import at_once
from simulator.world.storage import SimulatedStorage

SHUFFLE = "/local/tm-1/shuffle"
JOBS = "/shared/holdover/default"


def storage_with_partitions(count: int) -> SimulatedStorage:
    storage = SimulatedStorage()
    make_directories(storage, f"{SHUFFLE}/job")
    for number in range(count):
        for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
            at_once(storage.publish(f"{SHUFFLE}/job/v-{number}{suffix}", b"rows"))
    return storage


def make_directories(storage: SimulatedStorage, path: str) -> None:
    """Durable ones."""
    at_once(storage.make_directories(path))
    parts = path.strip("/").split("/")
    for depth in range(len(parts)):
        at_once(storage.sync_directory("/" + "/".join(parts[:depth])))


def names(storage: SimulatedStorage) -> list[str]:
    return [entry.name for entry in at_once(storage.list_directory(f"{SHUFFLE}/job"))]


def log_of(storage: SimulatedStorage, job_id: str) -> str:
    """A job whose log has one old and one new segment; the path of the new one."""
    directory = JobStore(storage, JOBS).events_directory(job_id)
    make_directories(storage, directory)
    for name in ("0000000000000001-000000.log", "0000000000000001-000001.log"):
        at_once(storage.publish(f"{directory}/{name}", bytes(range(100))))
    return f"{directory}/0000000000000001-000001.log"


@pytest.mark.parametrize(("part", "lost"), [(0.0, 1), (0.01, 1), (0.5, 5), (0.74, 7), (1.0, 10)])
def test_that_part_of_the_partitions_is_lost_and_one_at_least(part: float, lost: int) -> None:
    storage = storage_with_partitions(10)
    assert len(lose_partitions(storage, SHUFFLE, part, random.Random(1))) == lost
    assert len(names(storage)) == 2 * (10 - lost)


def test_a_partition_is_lost_with_its_index_and_its_data() -> None:
    storage = storage_with_partitions(3)
    [index] = lose_partitions(storage, SHUFFLE, 0.1, random.Random(1))
    base = index.rsplit("/", 1)[1].removesuffix(INDEX_SUFFIX)
    assert not [name for name in names(storage) if name.startswith(base)]


def test_where_nothing_is_held_nothing_is_lost() -> None:
    assert lose_partitions(SimulatedStorage(), SHUFFLE, 1.0, random.Random(1)) == []


def test_what_is_lost_does_not_come_back_with_the_power() -> None:
    storage = storage_with_partitions(4)
    lose_partitions(storage, SHUFFLE, 1.0, random.Random(1))
    storage.power_loss()
    storage.power_on()
    assert names(storage) == []


def test_a_storage_that_fails_is_damaged_all_the_same_and_fails_as_before() -> None:
    storage = storage_with_partitions(2)
    storage.faults.break_operation("remove")
    assert len(lose_partitions(storage, SHUFFLE, 1.0, random.Random(1))) == 2
    with pytest.raises(OSError, match="Input/output") as caught:
        at_once(storage.remove(f"{SHUFFLE}/job"))
    assert caught.value.errno == errno.EIO


def test_a_log_loses_the_end_of_its_newest_segment_only() -> None:
    storage = SimulatedStorage()
    newest = log_of(storage, "job")
    lost = cut_event_logs(storage, JOBS, ["job"], None, random.Random(1))
    content = at_once(storage.read(newest))
    assert 0 < lost["job"] <= 100
    assert content == bytes(range(100 - lost["job"]))
    assert at_once(storage.read(newest.replace("000001.log", "000000.log"))) == bytes(range(100))


def test_the_seed_decides_where_a_log_is_cut_and_a_bound_how_much_is_lost() -> None:
    cuts = []
    for seed in range(200):
        storage = SimulatedStorage()
        log_of(storage, "job")
        cuts.append(cut_event_logs(storage, JOBS, ["job"], 20, random.Random(seed))["job"])
    assert set(cuts) == set(range(21))


def test_the_end_of_a_log_stays_lost_after_a_power_loss() -> None:
    storage = SimulatedStorage()
    newest = log_of(storage, "job")
    lost = cut_event_logs(storage, JOBS, ["job"], None, random.Random(1))
    storage.power_loss()
    storage.power_on()
    assert len(at_once(storage.read(newest))) == 100 - lost["job"]


def test_a_job_without_a_log_loses_nothing() -> None:
    storage = SimulatedStorage()
    log_of(storage, "with")
    assert list(cut_event_logs(storage, JOBS, ["without", "with"], None, random.Random(1))) == [
        "with"
    ]
