"""The books of a worker that stores partitions: which it holds, and what may be deleted when.

Pure: it says what must be deleted and deletes nothing. The states of one execution's partitions:

    begin -> WRITING -> finish -> FINISHED -> release -> (forgotten)
                 abort -> (forgotten)

`lookup`, which Flight calls from its own threads, reads one dict and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from shuffle.partition_index import PartitionMetrics
from shuffle.partition_name import PartitionIdentity, partition_base

#: (job, vertex, subtask, attempt, epoch): an attempt, which writes one partition for each output.
Producer = tuple[str, str, int, int, int]
_Choice = Callable[[PartitionIdentity], bool]


class PartitionState(Enum):
    """What a worker knows of a partition that it has not forgotten."""

    WRITING = "writing"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class FinishedPartition:
    """A partition that can be offered, with what its producer left for a new leader."""

    identity: PartitionIdentity
    metrics: PartitionMetrics
    #: Indexes of the source splits that the producer read, in reading order.
    splits: tuple[int, ...] = ()
    #: What else its holder reports of the producer, opaque here.
    producer_record: bytes = b""

    @property
    def checksum(self) -> int:
        """CRC32C that stands for the whole content."""
        return self.metrics.index_crc32c


class PartitionStore:
    """All partitions of one worker. Changed by one thread; `lookup` may be called from any.

    A *retained* job has lost its JobManager: its finished partitions are kept until a leader says
    what becomes of them, or until the registration timeout (behaviour 4).
    """

    def __init__(self, shuffle_dir: str) -> None:
        self._shuffle_dir = shuffle_dir
        self._writing: dict[str, PartitionIdentity] = {}
        self._finished: dict[str, FinishedPartition] = {}
        self._retained: dict[str, None] = {}
        # Replaced entries only ever appear and disappear whole: safe to read without a lock.
        self._published: dict[str, str] = {}

    # --- the life of a partition

    def begin(self, identities: Iterable[PartitionIdentity]) -> None:
        """An attempt starts to write these. Raises ValueError for one that is known already."""
        for identity in identities:
            if self.state(identity.name) is not None:
                raise ValueError(f"partition {identity.name} was begun before")
            self._writing[identity.name] = identity

    def finish(
        self,
        identity: PartitionIdentity,
        metrics: PartitionMetrics,
        *,
        splits: Sequence[int] = (),
        producer_record: bytes = b"",
    ) -> bool:
        """Its files are complete: it is offered and served from now on.

        False when it was aborted or released meanwhile; then its files must be deleted. Repeating
        it with the same metrics changes nothing; with others it raises ValueError.
        """
        name = identity.name
        if (known := self._finished.get(name)) is not None:
            if known.metrics != metrics:
                raise ValueError(f"partition {name} was finished before, with other content")
            return True
        if self._writing.pop(name, None) is None:
            return False
        self._add(FinishedPartition(identity, metrics, tuple(splits), producer_record))
        return True

    def restore(self, partition: FinishedPartition) -> None:
        """A finished partition was found on disk at start-up.

        It belongs to no JobManager that this process knows, so its job is retained. Raises
        ValueError when it is known already.
        """
        if self.state(partition.identity.name) is not None:
            raise ValueError(f"partition {partition.identity.name} is known already")
        self._add(partition)
        self._retained[partition.identity.job] = None

    def _add(self, partition: FinishedPartition) -> None:
        name = partition.identity.name
        self._finished[name] = partition
        self._published[name] = partition_base(self._shuffle_dir, name)

    def abort(self, producer: Producer) -> tuple[PartitionIdentity, ...]:
        """The attempt failed or was cancelled: its unfinished partitions, to be deleted."""
        aborted = [i for i in self._writing.values() if i.producer == producer]
        for identity in aborted:
            del self._writing[identity.name]
        return tuple(aborted)

    def release(self, producers: Iterable[Producer]) -> tuple[PartitionIdentity, ...]:
        """Nobody needs these attempts' results: their partitions, to be deleted.

        Unknown attempts are skipped: a release may come twice, or late.
        """
        wanted = frozenset(producers)
        return self._forget(lambda identity: identity.producer in wanted)

    def release_job(self, job: str) -> tuple[PartitionIdentity, ...]:
        """The job is over here: all its partitions, finished or not, to be deleted."""
        self._retained.pop(job, None)
        return self._forget(lambda identity: identity.job == job)

    def retain(self, job: str) -> tuple[PartitionIdentity, ...]:
        """The job's JobManager is lost: finished partitions stay, the others are to be deleted.

        When nothing finished is held, nothing of the job is kept (`holds` is false afterwards).
        """
        partial = [i for i in self._writing.values() if i.job == job]
        for identity in partial:
            del self._writing[identity.name]
        if any(p.identity.job == job for p in self._finished.values()):
            self._retained[job] = None
        return tuple(partial)

    def accept(self, job: str) -> None:
        """A leader has taken over the job: what remains of it is no longer retained."""
        self._retained.pop(job, None)

    def _forget(self, chosen: _Choice) -> tuple[PartitionIdentity, ...]:
        finished = [p.identity for p in self._finished.values() if chosen(p.identity)]
        writing = [i for i in self._writing.values() if chosen(i)]
        for identity in finished:
            # Nobody can look it up any more before its files go.
            del self._published[identity.name]
            del self._finished[identity.name]
        for identity in writing:
            del self._writing[identity.name]
        for job in sorted({identity.job for identity in finished}):
            if job in self._retained and not self.holds(job):
                del self._retained[job]
        return (*finished, *writing)

    # --- questions

    def state(self, name: str) -> PartitionState | None:
        """The state of a partition; None when it is unknown or was released."""
        if name in self._finished:
            return PartitionState.FINISHED
        return PartitionState.WRITING if name in self._writing else None

    def jobs(self) -> tuple[str, ...]:
        """Jobs of which there is any partition, sorted."""
        held = {p.identity.job for p in self._finished.values()}
        return tuple(sorted(held | {i.job for i in self._writing.values()}))

    def retained_jobs(self) -> tuple[str, ...]:
        """Jobs whose finished partitions wait for a leader, sorted."""
        return tuple(sorted(self._retained))

    def holds(self, job: str) -> bool:
        """Whether there is a finished partition of the job."""
        return any(p.identity.job == job for p in self._finished.values())

    def inventory(self, job: str | None = None) -> tuple[FinishedPartition, ...]:
        """All finished partitions (of one job), sorted by identity: what is offered to a leader."""
        chosen = [p for p in self._finished.values() if job is None or p.identity.job == job]
        return tuple(sorted(chosen, key=lambda p: p.identity))

    def data_bytes(self) -> int:
        """Bytes of all finished partitions' data files."""
        return sum(p.metrics.data_bytes for p in self._finished.values())

    def lookup(self, name: str) -> str | None:
        """Path of a finished partition's files without suffix; None when it is not offered."""
        return self._published.get(name)

    def check_invariants(self) -> None:
        """Raises AssertionError naming what does not fit. For tests and the simulator."""
        both = sorted(self._writing.keys() & self._finished.keys())
        if both:
            raise AssertionError(f"writing and finished at once: {both}")
        if self._published.keys() != self._finished.keys():
            raise AssertionError("what is served is not what is finished")
        idle = [job for job in self._retained if not self.holds(job)]
        if idle:
            raise AssertionError(f"jobs retained without a finished partition: {idle}")
        partial = [i.name for i in self._writing.values() if i.job in self._retained]
        if partial:
            raise AssertionError(f"unfinished partitions of retained jobs: {partial}")
