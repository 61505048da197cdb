"""What the scheduler wants done. The shell carries actions out in order and reports outcomes as
signals.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2, taskmanager_pb2
from jobmanager.scheduler.signals import SlotId
from jobmanager.scheduler.states import JobState


@dataclass(frozen=True, slots=True)
class Deploy:
    """Start an attempt in a slot."""

    slot: SlotId
    deployment: taskmanager_pb2.TaskDeployment


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel an attempt that may run on a worker."""

    worker_id: str
    key: AttemptKey


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """Delete the partitions of attempts on a worker.

    Carried out only when all events up to now are durable: what justifies a deletion must not be
    lost.
    """

    worker_id: str
    keys: tuple[AttemptKey, ...]


@dataclass(frozen=True, slots=True)
class CopyPartitions:
    """Have a shuffle service copy the output of attempts to another; each is answered by
    PartitionsCopied, whatever becomes of it.
    """

    worker_id: str
    target_id: str
    target_address: str
    keys: tuple[AttemptKey, ...]


@dataclass(frozen=True, slots=True)
class RejectOffers:
    """Answer a registration: the worker deletes these executions' partitions."""

    worker_id: str
    keys: tuple[AttemptKey, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DeclareSlots:
    """The job can use so many slots in all."""

    count: int


@dataclass(frozen=True, slots=True)
class ReturnSlots:
    """The job gives these slots back."""

    slots: tuple[SlotId, ...]


@dataclass(frozen=True, slots=True)
class EnumerateSplits:
    """Find the splits of a source."""

    vertex_id: str
    source: job_pb2.Source
    splits_wanted: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Report TimerFired(name) after a delay; replaces a timer of the same name."""

    name: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget a timer."""

    name: str


@dataclass(frozen=True, slots=True)
class FlushEvents:
    """Write buffered events out now (a whole vertex finished)."""


@dataclass(frozen=True, slots=True)
class MakeStaging:
    """Make the staging directories that are missing: perhaps an attempt has failed for that."""


@dataclass(frozen=True, slots=True)
class CheckStagedFiles:
    """Look whether all files to be committed are there."""

    files: tuple[common_pb2.StagedFile, ...]


@dataclass(frozen=True, slots=True)
class CommitSinks:
    """Publish files by renaming. Carried out only when JobCommitStarted is durable."""

    files: tuple[common_pb2.StagedFile, ...]
    output_directories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over: archive it durably, then clean up."""

    state: JobState
    failure: common_pb2.Failure | None


Action = (
    Deploy
    | Cancel
    | ReleasePartitions
    | CopyPartitions
    | RejectOffers
    | DeclareSlots
    | ReturnSlots
    | EnumerateSplits
    | SetTimer
    | CancelTimer
    | FlushEvents
    | MakeStaging
    | CheckStagedFiles
    | CommitSinks
    | EndJob
)
