"""What a TaskManager that is started again must find on its disk."""

from __future__ import annotations

from typing import Any

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2
from shuffle.finished_record import encode_record, record_name
from simulator.invariants.restarts import RestartFindsWork
from simulator.invariants.stored import as_it_is, whole_attempts
from simulator.world.storage import SimulatedStorage
from tests.unit.simulator.invariants.known_cluster import KnownCluster, attempt, put, worker

DIRECTORY = "/local/shuffle"
KEY = attempt("s", 0)
#: What a sink subtask leaves has no partition.
SINK = attempt("k", 0)


def disk_with(*keys: AttemptKey) -> SimulatedStorage:
    storage = SimulatedStorage()
    for key in keys:
        execution = common_pb2.FinishedExecution(attempt=key.to_proto())
        put(storage, f"{DIRECTORY}/{record_name(key)}", encode_record(execution))
    return storage


def findings_of(*held: AttemptKey, disk: SimulatedStorage, **facts: Any) -> list[str]:
    """tm-0 begins on the disk at 100 s, and holds this a second later."""
    cluster = KnownCluster()
    invariant = cluster.checked(RestartFindsWork)
    invariant.worker_starts("tm-0", as_it_is(disk), DIRECTORY)
    cluster.now_s += 1
    invariant.worker_ready(worker("tm-0", *held, disk=disk, **facts))
    return cluster.findings


def test_what_was_whole_on_the_disk_must_be_held() -> None:
    """Each attempt that is not is named."""
    disk = disk_with(KEY, SINK)
    assert findings_of(KEY, SINK, disk=disk) == []
    (finding,) = findings_of(KEY, disk=disk)
    assert str(SINK) in finding


def test_what_was_damaged_before_need_not_be_held() -> None:
    """A record of which any byte is wrong, and one whose partition is gone."""
    disk = disk_with(KEY)
    path = f"{DIRECTORY}/{record_name(KEY)}"
    disk.overwrite(path, bytes(disk.file(path).data[:-1]))
    assert findings_of(disk=disk) == []
    execution = common_pb2.FinishedExecution(attempt=KEY.to_proto())
    execution.partitions.add(output=0, subpartition_bytes=[1], data_bytes=1)
    put(disk, path, encode_record(execution))
    assert whole_attempts(as_it_is(disk), DIRECTORY) == []


def test_a_fault_of_the_disk_excuses_what_is_not_found() -> None:
    """One that acts, or has ended since the process began; not one that was over before."""
    for sound_since_s, findings in ((None, 0), (100.5, 0), (99.0, 1)):
        facts = {"disk_sound_since_s": sound_since_s}
        assert len(findings_of(disk=disk_with(KEY), **facts)) == findings


def test_a_directory_that_was_never_used_has_nothing() -> None:
    """The first life of a TaskManager."""
    assert findings_of(disk=SimulatedStorage()) == []
