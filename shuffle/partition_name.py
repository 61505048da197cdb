"""Names of partitions, and the files that carry them.

A partition is named by all that tells its producer's attempts apart (behaviour: everything durable
or remote is named by attempt), so that a late file of an older attempt can never pass for a newer
one. Names become paths only through this module, after they were validated: no name can point
outside of the shuffle directory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

INDEX_SUFFIX = ".index"
DATA_SUFFIX = ".data"
#: What an unfinished file's name ends in; such files are deleted, never offered.
PART_SUFFIX = ".part"
#: Names whose identity is remembered: one partition is asked for by many.
_NAMES_KEPT_MAX = 1 << 14

JOB_PATTERN = re.compile(r"[a-z0-9-]{1,64}")
_VERTEX = r"[A-Za-z0-9_-]{1,64}"
_FILE_PATTERN = re.compile(
    rf"(?P<vertex>{_VERTEX})-(?P<output>\d{{1,9}})-(?P<subtask>\d{{1,9}})"
    r"-(?P<attempt>\d{1,9})-(?P<epoch>\d{1,18})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, order=True)
class PartitionIdentity:
    """One output of one attempt of one subtask, under one leader.

    Raises ValueError, naming the field, when a part could not be part of a path.
    """

    job: str
    vertex: str
    output: int
    subtask: int
    attempt: int
    epoch: int

    def __post_init__(self) -> None:
        if not JOB_PATTERN.fullmatch(self.job):
            raise ValueError(f"job id {self.job!r} must match {JOB_PATTERN.pattern}")
        if not re.fullmatch(_VERTEX, self.vertex, re.ASCII):
            raise ValueError(f"vertex id {self.vertex!r} must match {_VERTEX}")
        for field in ("output", "subtask", "attempt", "epoch"):
            digits = 18 if field == "epoch" else 9
            if not 0 <= getattr(self, field) < 10**digits:
                raise ValueError(f"{field} {getattr(self, field)} must be in 0..1e{digits}")

    @property
    def name(self) -> str:
        """`job/vertex-output-subtask-attempt-epoch`."""
        return f"{self.job}/{self.file_stem}"

    @property
    def file_stem(self) -> str:
        """The name of the partition's files in the job's directory, without suffix."""
        return f"{self.vertex}-{self.output}-{self.subtask}-{self.attempt}-{self.epoch}"

    @property
    def producer(self) -> tuple[str, str, int, int, int]:
        """(job, vertex, subtask, attempt, epoch): the attempt that wrote the partition."""
        return (self.job, self.vertex, self.subtask, self.attempt, self.epoch)


@lru_cache(maxsize=_NAMES_KEPT_MAX)
def parse_partition_name(name: str) -> PartitionIdentity:
    """The identity that `name` stands for; ValueError when it is not exactly a partition's name."""
    job, separator, stem = name.partition("/")
    match = _FILE_PATTERN.fullmatch(stem)
    if not separator or match is None:
        raise ValueError(
            f"{name!r} is not a partition name (job/vertex-output-subtask-attempt-epoch)"
        )
    identity = PartitionIdentity(
        job,
        match["vertex"],
        int(match["output"]),
        int(match["subtask"]),
        int(match["attempt"]),
        int(match["epoch"]),
    )
    if identity.name != name:
        raise ValueError(f"{name!r} is not a partition name: write {identity.name!r}")
    return identity


def partition_base(shuffle_dir: str, name: str) -> str:
    """Path of the partition's files without suffix; ValueError when `name` is no partition name."""
    identity = parse_partition_name(name)
    return f"{shuffle_dir.rstrip('/')}/{identity.job}/{identity.file_stem}"
