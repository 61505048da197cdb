"""What a step costs does not grow with the cluster or the job: counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from holdover.config import Configuration
from holdover.runtime.real import real_runtime
from holdover.runtime.supervisor import Supervisor
from jobmanager.dispatcher import Dispatcher
from jobmanager.job_master import JobServices
from jobmanager.job_status import JobHistory, job_status
from jobmanager.job_store import JobStore, StoredJob
from jobmanager.resource_manager import ResourceManager
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.signals import SlotId
from jobmanager.scheduler.slot_pool import SlotPool
from jobmanager.slot_ledger import SlotLedger
from tests.doubles.scheduler_world import OPTIONS
from tests.unit.jobmanager.scheduler.scenes import replayed
from tests.unit.jobmanager.scheduler.test_large_graph import (
    PARALLELISM,
    WORKERS,
    large_job,
    large_log,
)

MANY = 2_000
SLOTS = 4
#: Of one change among 8,000 slots: a few searches of a dozen steps each.
LOOKS_MAX = 150


@dataclass
class Looks:
    """How often the name of a worker was looked at."""

    count: int = 0


class CountingName(str):
    """The name of a worker, which counts how often it is compared or hashed."""

    looks: Looks

    def __new__(cls, name: str, looks: Looks) -> CountingName:
        new = super().__new__(cls, name)
        new.looks = looks
        return new

    def __lt__(self, other: str) -> bool:
        self.looks.count += 1
        return str.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        self.looks.count += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        self.looks.count += 1
        return str.__hash__(self)


def names(looks: Looks) -> list[CountingName]:
    """The workers of a large cluster."""
    return [CountingName(f"tm-{i:05}", looks) for i in range(MANY)]


def test_a_slot_changes_hands_at_the_cost_of_a_search() -> None:
    looks, ledger = Looks(), SlotLedger()
    for name in names(looks):
        ledger.add(name, SLOTS)
        ledger.open(name)
    free = ledger.first_free(MANY * SLOTS)
    for slot in free[:MANY]:
        ledger.grant(slot, "job")
    looks.count = 0
    ledger.take_back(free[MANY // 2], "job")
    ledger.grant(ledger.first_free(1)[0], "job")
    ledger.close(free[0].worker_id)
    ledger.open(free[0].worker_id)
    ledger.remove(free[1].worker_id)
    assert (ledger.held_by("job"), ledger.counts()[0]) == (MANY - 1, (MANY - 1) * SLOTS)
    assert looks.count <= LOOKS_MAX * SLOTS


def test_a_lost_worker_costs_a_job_its_slots_and_no_search_among_the_others() -> None:
    looks, pool = Looks(), SlotPool()
    workers = names(looks)
    pool.grant(tuple(SlotId(name, index) for name in workers for index in range(SLOTS)))
    for subtask in range(MANY * SLOTS // 2):
        pool.take(("m", subtask))
    looks.count = 0
    pool.lose_worker(workers[0])
    pool.lose_worker(workers[-1])
    assert len(pool) == (MANY - 2) * SLOTS
    assert looks.count <= LOOKS_MAX


class Unlooked(list[Any]):
    """Subtasks that nobody may walk over."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a look at a job walks over its subtasks")


def test_a_look_at_a_job_does_not_walk_over_its_subtasks() -> None:
    graph = replayed(large_job(), large_log())
    scheduler = Scheduler(graph, 1, OPTIONS, RestartStrategy(3, 1))
    for owner in graph.vertices.values():
        owner.subtasks = Unlooked(owner.subtasks)
    stored = StoredJob("job", graph.job, "digest", 1, recovery_attempts=0)
    history = JobHistory(stored, 1, real_runtime().clock)
    status = job_status(stored, scheduler, history, with_vertices=True)
    assert status.subtasks_finished == 2 * PARALLELISM
    assert [sum(vertex.state_counts) for vertex in status.vertices] == [PARALLELISM] * 3


@dataclass
class GrowingCluster:
    """Stands for the ResourceManager: workers come, one after another."""

    workers_changed: asyncio.Event = field(default_factory=asyncio.Event)
    registered: list[str] = field(default_factory=list)
    looked: int = 0

    def workers(self) -> list[Any]:
        """Those that have come."""
        self.looked += 1
        return [type("Registered", (), {"worker_id": name}) for name in self.registered]

    def register(self, name: str) -> None:
        """One more has come, or has come back."""
        if name not in self.registered:
            self.registered.append(name)
        self.workers_changed.set()


@dataclass
class CountingStore:
    """Stands for the JobStore: only counts."""

    written: list[Sequence[str]] = field(default_factory=list)

    async def write_workers(self, worker_ids: Sequence[str]) -> None:
        """See `JobStore.write_workers`."""
        self.written.append(worker_ids)
        await asyncio.sleep(0)


def remembering(cluster: GrowingCluster, store: CountingStore, ended: list[str]) -> Supervisor:
    """Keep the record of a cluster's workers."""
    supervisor = Supervisor("test", lambda name, error: ended.append(f"{name}: {error!r}"))
    services = JobServices(
        real_runtime(),
        1,
        cast(JobStore, store),
        cast(ResourceManager, cluster),
        lambda: 0.0,
        lambda: 0.0,
    )
    dispatcher = Dispatcher(services, Configuration(), supervisor)
    supervisor.run("remember workers", dispatcher.remember_workers)
    return supervisor


async def test_workers_that_register_at_once_cost_a_few_writes_of_their_record() -> None:
    """And in the end all of them are in it."""
    cluster, store = GrowingCluster(), CountingStore()
    ended: list[str] = []
    supervisor = remembering(cluster, store, ended)
    for index in range(WORKERS):
        cluster.register(f"tm-{index:03}")
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while not store.written or len(store.written[-1]) < WORKERS:
            await asyncio.sleep(0.001)
    await supervisor.close()
    assert ended == []
    assert len(store.written) <= WORKERS / 4, [len(record) for record in store.written]


async def test_workers_that_come_back_at_once_are_put_together_a_few_times() -> None:
    """As after the loss of a leader: the next one awaits them all, so that none of them changes
    the record."""
    cluster, store = GrowingCluster(), CountingStore()
    ended: list[str] = []
    supervisor = remembering(cluster, store, ended)
    for index in range(WORKERS):
        cluster.register(f"tm-{index:03}")
    async with asyncio.timeout(10):
        while not store.written:
            await asyncio.sleep(0.001)
        before = cluster.looked
        cluster.register("tm-000")
        while cluster.looked == before:
            await asyncio.sleep(0.001)
    before = cluster.looked
    for index in range(WORKERS):
        cluster.register(f"tm-{index:03}")
        await asyncio.sleep(0)
    await supervisor.close()
    assert ended == []
    assert len(store.written) == 1
    assert cluster.looked - before <= WORKERS / 4
