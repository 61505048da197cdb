"""What the invariants look at: a cluster at one moment, as somebody sees it who knows everything.

A `ClusterView` is asked anew whenever something is checked. It hands out the living services'
own objects (schedulers, partition stores), which are read and never changed. Storages are looked
at directly, past the simulated disk: without time, without faults, whatever process is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from holdover.ids import AttemptKey
from holdover.runtime import Disk
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.job_pb2 import JobGraph
from holdover.v1.taskmanager_pb2 import TaskDeployment
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.signals import Signal
from shuffle.partition_store import PartitionStore
from simulator.observer import PartitionRead

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that was given to the cluster."""

    job_id: str
    graph: JobGraph
    #: Whether a JobManager has acknowledged it: from then on it may not be forgotten.
    acknowledged: bool = True
    #: Whether a client has asked for its cancellation.
    cancel_requested: bool = False
    #: Whether it was told that the job is being cancelled.
    cancel_acknowledged: bool = False
    #: Whether a fault of the scenario has taken synced bytes from its event log.
    log_damaged: bool = False
    #: Parts of failure messages with which this scenario may end the job.
    failures_allowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenLog:
    """A job's event log as one leader has written it so far.

    Attributes:
        directory: where its segments are.
        unwritten: encoded frames that wait in memory; None while a write is under way or a
            snapshot is due, when the log cannot be told from outside.
        buffered_bytes: bytes in memory, those under way included.
        buffered_bytes_max: the bound of them.
    """

    directory: str
    unwritten: tuple[bytes, ...] | None
    buffered_bytes: int
    buffered_bytes_max: int


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job as one leader runs it; `log` is None for a job without recovery."""

    job_id: str
    scheduler: Scheduler
    log: WrittenLog | None = None
    inbox_signals: int = 0
    releases: int = 0
    timers: int = 0


@dataclass(frozen=True, slots=True)
class OrderQueue:
    """What waits to be sent to one worker."""

    worker_id: str
    orders: int
    slots: int


@dataclass(frozen=True, slots=True)
class LeaderView:
    """A JobManager process that leads, or believes so."""

    #: Of the process, told apart by its life: "jm-0#2".
    name: str
    epoch: int
    paused: bool = False
    jobs: tuple[RunningJob, ...] = ()
    queues: tuple[OrderQueue, ...] = ()
    #: Slots that are held by jobs, by job.
    slots_held: Mapping[str, int] = field(default_factory=dict)
    #: Jobs that want more slots, while some are free.
    starving: tuple[str, ...] = ()

    def job(self, job_id: str) -> RunningJob | None:
        """The job, if this leader runs it."""
        return next((job for job in self.jobs if job.job_id == job_id), None)


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What a shuffle service knows besides what a TaskManager does."""

    #: Whether it takes nothing new, and is to leave.
    draining: bool = False
    #: Attempts of which something is being put, or waits to be published.
    incoming: tuple[AttemptKey, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A living TaskManager, or a shuffle service.

    Directories are its own, on `disk` (`stored.as_it_is`).
    """

    #: Of the process, told apart by its life: "tm-3#0".
    name: str
    worker_id: str
    disk: Disk
    finished: PartitionStore
    paused: bool = False
    #: Since when no fault has acted on its disk or taken files from it; None while one acts.
    disk_sound_since_s: float | None = 0.0
    #: Highest leader epoch that it has admitted.
    epoch_seen: int = 0
    #: Epoch of its present registration, None without one.
    registered_epoch: int | None = None
    #: Attempts that occupy slots.
    occupants: tuple[AttemptKey, ...] = ()
    slots: int = 1
    #: Jobs of which its tables know anything.
    jobs: tuple[str, ...] = ()
    reports: int = 0
    deletions: int = 0
    shuffle_directory: str = "/local/shuffle"
    scratch_directory: str = "/local/scratch"
    graphs_directory: str = "/local/graphs"
    #: Of a shuffle service.
    service: ServiceFacts | None = None


class ClusterView(Protocol):
    """The cluster now. Everything in it is in an order that the seed alone decides."""

    @property
    def now_s(self) -> float:
        """Seconds of the world."""
        ...

    @property
    def jobs(self) -> Mapping[str, SubmittedJob]:
        """All jobs that clients have given to the cluster, by id."""
        ...

    @property
    def shared(self) -> Disk:
        """The storage that all hosts share (`stored.as_it_is`), to be read with `at_once`."""
        ...

    @property
    def storage_directory(self) -> str:
        """Where JobManagers keep jobs, on `shared`: high-availability.storageDir/cluster-id."""
        ...

    @property
    def calm_since_s(self) -> float | None:
        """Since when no fault has acted on anything (pauses, cuts, slow or failing disks, clocks);
        None while one acts. The moment of a death is a fault of that moment."""
        ...

    @property
    def patience_s(self) -> float:
        """How long after a fault its effects may show: detection of a loss, retries, timeouts."""
        ...

    @property
    def leases_flap(self) -> bool:
        """Whether the network, without any fault, loses packets, and a lease is so short that a
        renewal which is lost three times in all, with the answer to the one before, comes too
        late."""
        ...

    @property
    def registration_timeout_s(self) -> float:
        """How long a TaskManager looks for a leader before it lets go of what it holds."""
        ...

    @property
    def messages_in_flight(self) -> int:
        """Messages on the network."""
        ...

    @property
    def processes(self) -> int:
        """Living processes."""
        ...

    def leaders(self) -> Sequence[LeaderView]:
        """Living JobManagers that believe that they lead."""
        ...

    def workers(self) -> Sequence[WorkerView]:
        """Living TaskManagers that have opened their directory."""
        ...

    def worker(self, worker_id: str) -> WorkerView | None:
        """The living TaskManager of that resource id."""
        ...

    def expected_rows(self, job: SubmittedJob) -> Sequence[int]:
        """Sorted row identities that the job writes in a run without faults."""
        ...

    def committed_rows(self, job: SubmittedJob) -> Sequence[int]:
        """Sorted row identities at the final paths of the job."""
        ...

    def mixed_subtasks(self, job: SubmittedJob) -> Sequence[tuple[str, int]]:
        """Subtasks of indeterminate vertices (vertex id, subtask) of which rows of several attempts
        stand at the final paths of the job."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One signal that a leader has handled for a job, just now. `scheduler` is after it."""

    leader: str
    at_s: float
    epoch: int
    job_id: str
    scheduler: Scheduler
    signal: Signal
    decision: Decision


@dataclass(frozen=True, slots=True)
class ErrorLogged:
    """A line of level error that a service has logged."""

    process: str
    at_s: float
    event: str
    fields: Mapping[str, object]
    exception: str = ""


Broken = Callable[[str], None]


class Invariant:
    """Something that is always true. Each method is told of what its name says and calls
    `broken(text)` for what contradicts; those that a kind does not need do nothing."""

    #: Short, as it stands in a finding.
    name = ""

    def __init__(self, view: ClusterView, broken: Broken) -> None:
        self.view = view
        self.broken = broken

    def is_calm(self) -> bool:
        """Whether no fault can deceive anybody any more."""
        since_s = self.view.calm_since_s
        return since_s is not None and self.view.now_s - since_s > self.view.patience_s

    def attempt_started(self, worker: str, deployment: TaskDeployment) -> None:
        """See `Observer.attempt_started`."""

    def attempt_ended(
        self, worker: str, key: AttemptKey, end: str, execution: FinishedExecution | None
    ) -> None:
        """See `Observer.attempt_ended`."""

    def partitions_read(self, reads: Sequence[PartitionRead]) -> None:
        """See `Observer.partitions_read`."""

    def step(self, step: Step) -> None:
        """A leader has made a step."""

    def check(self) -> None:
        """Some time has passed, and something has happened in it."""

    def leader_ends(self, leader: LeaderView) -> None:
        """A leader is about to die."""

    def worker_starts(self, worker_id: str, disk: Disk, shuffle_directory: str) -> None:
        """The process of a TaskManager begins, on what the one before it has left on `disk`."""

    def worker_ready(self, worker: WorkerView) -> None:
        """It has looked through its disk and is about to look for a leader."""

    def error_logged(self, error: ErrorLogged) -> None:
        """A service has logged an error."""

    def at_end(self) -> list[str]:
        """What does not hold (yet), now that all faults are healed and all jobs should be over.
        Asked repeatedly until it is nothing or time is over."""
        return []


def at_once(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of a coroutine that never waits, such as an operation of a storage."""
    try:
        work.send(None)
    except StopIteration as done:
        result: ResultT = done.value
        return result
    work.close()
    raise RuntimeError(f"{work!r} waits: only what answers at once can be looked at")
