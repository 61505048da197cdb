"""What can happen to a job. Each signal is a fact that a shell observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2


class SlotId(NamedTuple):
    """One slot of one registered TaskManager."""

    worker_id: str
    index: int  # type: ignore[assignment]  # nobody asks where in this tuple something is


class ShuffleLoad(NamedTuple):
    """By what a target is chosen among shuffle services."""

    #: Bytes of partitions that it still takes.
    room_bytes: int
    #: Streams of output that were being written to it, of all jobs.
    open_puts: int = 0
    #: It takes nothing new, and leaves once no live job needs what it holds.
    draining: bool = False


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job starts from its beginning."""


@dataclass(frozen=True, slots=True)
class RecoveryStarted:
    """The job's events were replayed and this leader accepts registrations from now on.

    `previous_workers` are the resource ids that the leaders before knew; the wait for them starts
    now.
    """

    previous_workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerRegistered:
    """A worker registered with all that it holds of this job.

    `refreshed` tells that the same incarnation had registered with this leader before.
    `running` are the attempts that still occupy its slots. `shuffle` is set for a shuffle service.
    """

    worker_id: str
    data_address: str
    refreshed: bool
    finished: Sequence[common_pb2.FinishedExecution] = ()
    running: Sequence[AttemptKey] = ()
    shuffle: ShuffleLoad | None = None


@dataclass(frozen=True, slots=True)
class ShuffleLoadTold:
    """A registered shuffle service told how it is."""

    worker_id: str
    load: ShuffleLoad


@dataclass(frozen=True, slots=True)
class PartitionsCopied:
    """What became of copying an attempt's output from one shuffle service to another.

    `obstacle` says why it was not copied, and is empty where it was; `lost` that it cannot be, for
    it is gone or damaged.
    """

    worker_id: str
    target_id: str
    key: AttemptKey
    obstacle: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone with all that it holds."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerRestarted:
    """A new process registers in the place of a worker; what it has found of the old one's finished
    work, its registration tells next."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class RoomWanted:
    """A worker holds so many bytes of partitions more than it is to hold; `oldest` are attempts of
    this job that it holds, the oldest first."""

    worker_id: str
    bytes_over: int
    oldest: Sequence[AttemptKey]


@dataclass(frozen=True, slots=True)
class SlotsGranted:
    """Slots that the job may use until it returns them."""

    slots: tuple[SlotId, ...]


@dataclass(frozen=True, slots=True)
class SlotsReclaimed:
    """Other jobs wait: so many slots are to be returned as they become free."""

    count: int


@dataclass(frozen=True, slots=True)
class ExecutionReported:
    """A TaskManager reported what became of an attempt."""

    worker_id: str
    key: AttemptKey
    state: int
    finished: common_pb2.FinishedExecution | None = None
    failure: common_pb2.Failure | None = None


@dataclass(frozen=True, slots=True)
class DeploymentRefused:
    """An attempt did not start: the TaskManager refused it or could not be reached."""

    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class CancellationUnknown:
    """A TaskManager says that an attempt which was to be cancelled does not run there."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class SplitsEnumerated:
    """The splits of a source are known."""

    vertex_id: str
    splits: tuple[job_pb2.Split, ...]


@dataclass(frozen=True, slots=True)
class SplitEnumerationFailed:
    """The splits of a source cannot be made; the job is at fault."""

    vertex_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A client wants the job cancelled."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that an action set has run out."""

    name: str


@dataclass(frozen=True, slots=True)
class StagedFilesChecked:
    """Which of the files to be committed are missing, by staged path."""

    missing: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class CommitFinished:
    """All files of all sinks are published."""


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The commit cannot be completed."""

    reason: str


Signal = (
    JobStarted
    | RecoveryStarted
    | WorkerRegistered
    | ShuffleLoadTold
    | PartitionsCopied
    | WorkerLost
    | WorkerRestarted
    | RoomWanted
    | SlotsGranted
    | SlotsReclaimed
    | ExecutionReported
    | DeploymentRefused
    | CancellationUnknown
    | SplitsEnumerated
    | SplitEnumerationFailed
    | CancelRequested
    | TimerFired
    | StagedFilesChecked
    | CommitFinished
    | CommitFailed
)
