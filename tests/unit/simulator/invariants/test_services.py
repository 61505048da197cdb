"""What shuffle services keep and when they leave, and whether what anybody holds is there."""

from __future__ import annotations

from typing import Any

import pytest

from holdover.ids import AttemptKey
from jobmanager.scheduler.states import JobState
from shuffle.partition_store import PartitionStore
from simulator.invariants.held import HeldIsWhole
from simulator.invariants.services import NothingLingers
from simulator.invariants.stored import as_it_is
from simulator.invariants.view import LeaderView, RunningJob, ServiceFacts, WorkerView
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import graph_with
from tests.unit.simulator.invariants.known_cluster import (
    KnownCluster,
    attempt,
    execution,
    put,
    scheduler,
    worker,
)

COUNTS = attempt("s", 0)
OLDER = attempt("s", 0, number=7)


def cluster_with(service: WorkerView, *, needed: bool = True, **leader: Any) -> KnownCluster:
    """A leader that runs a job, of which (s, 0) has finished at the service or nothing has."""
    graph = graph_with(chain(2), 2, {"s": range(1)} if needed else {})
    graph.state = JobState.RUNNING
    job = RunningJob("job", scheduler(graph, workers=["tm-0"]))
    return KnownCluster(living=[service], leading=[LeaderView("jm-0#0", 1, jobs=(job,), **leader)])


def service_with(
    *held: AttemptKey, draining: bool = False, incoming: tuple[AttemptKey, ...] = (), **facts: Any
) -> WorkerView:
    facts["service"] = ServiceFacts(draining, incoming)
    return worker("tm-0", *held, registered_epoch=1, **facts)


def findings_after(cluster: KnownCluster, seconds: float) -> list[str]:
    invariant = cluster.checked(NothingLingers)
    invariant.check()
    cluster.now_s += seconds
    invariant.check()
    return cluster.findings


def test_what_counts_may_be_held() -> None:
    assert findings_after(cluster_with(service_with(COUNTS)), 1_000) == []


@pytest.mark.parametrize("where", ["held", "incoming"])
def test_what_does_not_count_is_found_after_some_time(where: str) -> None:
    service = service_with(OLDER) if where == "held" else service_with(incoming=(OLDER,))
    assert findings_after(cluster_with(service), 5.0) == []
    (finding,) = findings_after(cluster_with(service), 11.0)
    assert str(OLDER) in finding


def test_who_cannot_know_what_counts_is_not_blamed() -> None:
    """Its leader stands still, a fault acts, it is frozen itself."""
    assert findings_after(cluster_with(service_with(OLDER), paused=True), 11.0) == []
    assert findings_after(cluster_with(service_with(OLDER, paused=True)), 11.0) == []
    cluster = cluster_with(service_with(OLDER))
    cluster.calm_since_s = None
    assert findings_after(cluster, 11.0) == []


def test_a_drained_service_that_is_not_needed_must_leave() -> None:
    drained = service_with(COUNTS, draining=True)
    assert findings_after(cluster_with(drained), 1_000) == []
    (finding,) = findings_after(cluster_with(service_with(draining=True), needed=False), 11.0)
    assert "does not leave" in finding


def test_what_is_held_must_be_there_from_the_beginning() -> None:
    """With both files, and data as long as its writer says; a fault of the disk excuses it."""
    for files, sound_since_s, found in (
        ({".index": b"i", ".data": b"12"}, 0.0, 0),
        ({".data": b"12"}, 0.0, 1),
        ({".index": b"i", ".data": b"1"}, 0.0, 1),
        ({".data": b"12"}, None, 0),
    ):
        storage, store = SimulatedStorage(), PartitionStore("/local/shuffle")
        for suffix, content in files.items():
            put(storage, f"/local/shuffle/job/s-0-0-0-1{suffix}", content)
        finished = execution(COUNTS)
        finished.partitions[0].data_bytes = 2
        store.add(COUNTS, finished)
        view = WorkerView(
            "ss-1#0", "ss-1", as_it_is(storage), store, disk_sound_since_s=sound_since_s
        )
        cluster = KnownCluster(living=[view])
        cluster.checked(HeldIsWhole).check()
        assert len(cluster.findings) == found, files


def test_what_was_lost_before_a_paused_worker_heard_of_the_end_is_nobodys_mistake() -> None:
    """A task ends while its TaskManager stands still, and a fault takes what it has left."""
    storage, store = SimulatedStorage(), PartitionStore("/local/shuffle")

    def seen(at_s: float, *, paused: bool, sound_since_s: float = 0.0) -> list[str]:
        cluster.now_s = at_s
        cluster.living = [
            WorkerView(
                "tm-1#0", "tm-1", as_it_is(storage), store, paused, disk_sound_since_s=sound_since_s
            )
        ]
        invariant.check()
        return cluster.findings

    cluster = KnownCluster()
    invariant = cluster.checked(HeldIsWhole)
    assert seen(10.0, paused=False) == []
    for at_s in (10.5, 11.0, 11.5):
        assert seen(at_s, paused=True, sound_since_s=10.7) == []
    finished = execution(COUNTS)
    finished.partitions[0].data_bytes = 2
    store.add(COUNTS, finished)
    assert seen(12.0, paused=False, sound_since_s=10.7) == []
    other = attempt("s", 1)
    store.add(other, execution(other))
    (finding,) = seen(12.5, paused=False, sound_since_s=10.7)
    assert str(other) in finding
