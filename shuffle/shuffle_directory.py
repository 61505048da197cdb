"""What lies in a shuffle directory, told from the names of its files alone.

Pure, so that a worker can sweep at start-up through whatever disk it was given: it lists, and this
says what each file is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shuffle.partition_name import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    JOB_PATTERN,
    PartitionIdentity,
    parse_partition_name,
)


@dataclass(frozen=True, slots=True)
class ShuffleDirectory:
    """The contents of a shuffle directory, each sorted."""

    #: Published partitions: their index exists. Neither file was looked into.
    partitions: tuple[PartitionIdentity, ...]
    #: Absolute paths of what belongs to no published partition: unfinished, half deleted, foreign.
    leftovers: tuple[str, ...]
    #: Jobs that have a directory, empty or not.
    jobs: tuple[str, ...]


def sort_out(shuffle_dir: str, listing: Mapping[str, Sequence[str] | None]) -> ShuffleDirectory:
    """Tells partitions from leftovers.

    `listing` has, for each entry of `shuffle_dir`, the names in it; None when it is no directory.
    """
    root = shuffle_dir.rstrip("/")
    partitions: list[PartitionIdentity] = []
    leftovers: list[str] = []
    jobs: list[str] = []
    for entry, files in sorted(listing.items()):
        if files is None or not JOB_PATTERN.fullmatch(entry):
            leftovers.append(f"{root}/{entry}")
            continue
        jobs.append(entry)
        known = frozenset(files)
        for file in sorted(files):
            stem = file.removesuffix(INDEX_SUFFIX).removesuffix(DATA_SUFFIX)
            identity = _identity(entry, stem)
            if identity is None or stem + INDEX_SUFFIX not in known or file == stem:
                leftovers.append(f"{root}/{entry}/{file}")
            elif file == stem + INDEX_SUFFIX:
                partitions.append(identity)
    return ShuffleDirectory(tuple(sorted(partitions)), tuple(leftovers), tuple(jobs))


def _identity(job: str, stem: str) -> PartitionIdentity | None:
    try:
        return parse_partition_name(f"{job}/{stem}")
    except ValueError:
        return None
