"""A cluster that a test describes by hand, and what an invariant says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdover.ids import AttemptKey
from holdover.runtime import Disk
from holdover.v1 import archive_pb2, common_pb2, events_pb2, job_pb2
from jobmanager.job_store import JobStore
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.scheduler import Scheduler
from shuffle.partition_store import PartitionStore
from simulator.invariants.stored import as_it_is
from simulator.invariants.view import (
    Invariant,
    LeaderView,
    Step,
    SubmittedJob,
    WorkerView,
    at_once,
)
from simulator.world.storage import SimulatedStorage
from tests.doubles.scheduler_world import OPTIONS
from tests.unit.jobmanager.scheduler.job_graphs import chain

STORAGE = "/shared/ha"


@dataclass
class KnownCluster:
    """Implements `ClusterView`; a test sets what it wants to be so."""

    now_s: float = 100.0
    jobs: Mapping[str, SubmittedJob] = field(default_factory=dict)
    storage: SimulatedStorage = field(default_factory=SimulatedStorage)
    storage_directory: str = STORAGE
    calm_since_s: float | None = 0.0
    patience_s: float = 10.0
    leases_flap: bool = False
    registration_timeout_s: float = 300.0
    messages_in_flight: int = 0
    processes: int = 1
    leading: Sequence[LeaderView] = ()
    living: Sequence[WorkerView] = ()
    expected: Sequence[int] = ()
    committed: Sequence[int] = ()
    mixed: Sequence[tuple[str, int]] = ()
    findings: list[str] = field(default_factory=list)

    @property
    def shared(self) -> Disk:
        return as_it_is(self.storage)

    def leaders(self) -> Sequence[LeaderView]:
        return self.leading

    def workers(self) -> Sequence[WorkerView]:
        return self.living

    def worker(self, worker_id: str) -> WorkerView | None:
        return next((w for w in self.living if w.worker_id == worker_id), None)

    def expected_rows(self, job: SubmittedJob) -> Sequence[int]:
        return self.expected

    def mixed_subtasks(self, job: SubmittedJob) -> Sequence[tuple[str, int]]:
        return self.mixed

    def committed_rows(self, job: SubmittedJob) -> Sequence[int]:
        return self.committed

    # What a test does.

    def checked(self, kind: Callable[[Any, Callable[[str], None]], Invariant]) -> Invariant:
        """An invariant of this cluster; what it says goes to `findings`."""
        return kind(self, self.findings.append)

    def submit(self, graph: job_pb2.JobGraph, **facts: Any) -> SubmittedJob:
        job = SubmittedJob(graph.job_id, graph, **facts)
        self.jobs = {**self.jobs, job.job_id: job}
        return job

    def archive(
        self, state: common_pb2.JobState.ValueType, *, epoch: int = 1, failure: str = ""
    ) -> None:
        """The job has ended, so far as the shared storage tells."""
        archived = archive_pb2.ArchivedJob(leader_epoch=epoch)
        archived.status.job_id, archived.status.state = "job", state
        archived.status.failure.message = failure
        store = JobStore(self.storage, STORAGE)
        at_once(store.open())
        at_once(store.archive(archived))

    def put(self, path: str, data: bytes = b"x") -> None:
        """A file on the shared storage."""
        put(self.storage, path, data)


def put(storage: SimulatedStorage, path: str, data: bytes = b"x") -> None:
    """A file on a storage, with its directories."""
    at_once(storage.make_directories(path.rpartition("/")[0]))
    at_once(storage.publish(path, data))


def attempt(
    vertex_id: str, subtask: int = 0, number: int = 0, epoch: int = 1, job_id: str = "job"
) -> AttemptKey:
    return AttemptKey(job_id, vertex_id, subtask, number, epoch)


def execution(key: AttemptKey, *, partitions: int = 1) -> common_pb2.FinishedExecution:
    finished = common_pb2.FinishedExecution(attempt=key.to_proto())
    for output in range(partitions):
        finished.partitions.add(output=output, subpartition_bytes=[1])
    return finished


def worker(
    worker_id: str = "tm-0",
    *held: AttemptKey,
    disk: SimulatedStorage | None = None,
    with_files: bool = True,
    **facts: Any,
) -> WorkerView:
    """A TaskManager that holds these finished attempts, one partition each."""
    storage, store = disk or SimulatedStorage(), PartitionStore("/local/shuffle")
    for key in held:
        store.add(key, execution(key))
        if with_files:
            stem = f"{key.vertex_id}-0-{key.subtask}-{key.attempt}-{key.epoch}"
            for suffix in (".index", ".data"):
                put(storage, f"/local/shuffle/{key.job_id}/{stem}{suffix}")
    return WorkerView(f"{worker_id}#0", worker_id, as_it_is(storage), store, **facts)


def scheduler(
    graph: ExecutionGraph | None = None, *, epoch: int = 1, workers: Sequence[str] = ()
) -> Scheduler:
    """A scheduler of CHAIN(2), or of a graph; these workers are registered."""
    made = Scheduler(
        graph or ExecutionGraph(chain(2)),
        epoch,
        OPTIONS,
        RestartStrategy(attempts_max=3, delay_s=1),
    )
    made.core.workers.update({worker_id: f"{worker_id}:1" for worker_id in workers})
    return made


def step(
    of: Scheduler,
    signal: sig.Signal,
    *actions: act.Action,
    events: Sequence[events_pb2.JobEvent] = (),
    at_s: float = 100.0,
    leader: str = "jm-0#0",
) -> Step:
    """A step that a leader has made, or is said to have made."""
    decision = Decision(list(events), list(actions))
    return Step(leader, at_s, of.core.epoch, of.graph.job_id, of, signal, decision)
