"""Finding the splits of a source, and saying at submission what is wrong with it.

The JobManager never opens the data: a split is a byte range of a file, and the task that reads it
picks the lines or row groups that belong to the range. Only the first and last bytes of Parquet
files are looked at, so that a file that is not Parquet is named before anything runs.
"""

from __future__ import annotations

from itertools import pairwise

from holdover.runtime import Disk, FileStat
from holdover.v1 import job_pb2

FILES_MAX = 100_000
SPLITS_MAX = 100_000
#: They must fit into one event of the log.
SPLITS_BYTES_MAX = 8 * 1024 * 1024
PARQUET_MAGIC = b"PAR1"
PARQUET_BYTES_MIN = 12


class SourceUnreadable(Exception):
    """A source names nothing, or something that is not what it says; the message names the file."""


async def enumerate_splits(
    disk: Disk, source: job_pb2.Source, splits_wanted: int, split_bytes_max: int
) -> tuple[job_pb2.Split, ...]:
    """All splits of a source, in order.

    Files are cut so that there are about `splits_wanted` splits or more and none is larger than
    `split_bytes_max` bytes. CSV files are not cut (a quoted field may hold a line's end).

    Raises:
        SourceUnreadable: no file matches, a file cannot be read, or there are too many.
    """
    kind = source.WhichOneof("kind")
    if kind == "sequence":
        return _sequence_splits(source.sequence, splits_wanted)
    files = await source_files(disk, source)
    total = sum(file.bytes for file in files)
    target = min(split_bytes_max, max(1, -(-total // max(1, splits_wanted))))
    splits: list[job_pb2.Split] = []
    for file in files:
        pieces = 1 if kind == "csv" else max(1, -(-file.bytes // target))
        bounds = [file.bytes * piece // pieces for piece in range(pieces + 1)]
        for start, end in pairwise(bounds):
            splits.append(
                job_pb2.Split(
                    index=len(splits),
                    path=file.path,
                    start=start,
                    end=end,
                    file_bytes=file.bytes,
                )
            )
        if len(splits) > SPLITS_MAX:
            raise SourceUnreadable(
                f"the source {_glob(source)!r} has more than {SPLITS_MAX} splits; raise "
                "source.split.max-bytes or read fewer files"
            )
    split_bytes = sum(split.ByteSize() for split in splits)
    if split_bytes > SPLITS_BYTES_MAX:
        raise SourceUnreadable(
            f"the names and ranges of the {len(splits)} splits of the source {_glob(source)!r} take"
            f" {split_bytes} bytes, more than {SPLITS_BYTES_MAX}; read fewer files"
        )
    return tuple(splits)


def _sequence_splits(
    sequence: job_pb2.SequenceSource, splits_wanted: int
) -> tuple[job_pb2.Split, ...]:
    length = max(0, sequence.end - sequence.start)
    pieces = max(1, min(splits_wanted, length, SPLITS_MAX))
    bounds = [sequence.start + length * piece // pieces for piece in range(pieces + 1)]
    return tuple(
        job_pb2.Split(index=index, start=bounds[index], end=bounds[index + 1])
        for index in range(pieces)
    )


async def source_files(disk: Disk, source: job_pb2.Source) -> list[FileStat]:
    """The files of a source, checked as far as their first and last bytes tell.

    Raises:
        SourceUnreadable: as for `enumerate_splits`.
    """
    pattern = _glob(source)
    try:
        files = await disk.glob(pattern)
    except OSError as error:
        raise SourceUnreadable(f"the source {pattern!r} cannot be read: {error}") from error
    if not files:
        raise SourceUnreadable(
            f"no file matches the source {pattern!r}; the path must be readable by the JobManager "
            "and by every TaskManager"
        )
    if len(files) > FILES_MAX:
        raise SourceUnreadable(f"more than {FILES_MAX} files match the source {pattern!r}")
    for file in files:
        try:
            await _check(disk, source, file)
        except OSError as error:
            raise SourceUnreadable(f"{file.path} cannot be read: {error.strerror}") from error
    return files


async def _check(disk: Disk, source: job_pb2.Source, file: FileStat) -> None:
    if source.WhichOneof("kind") != "parquet":
        await disk.read(file.path, 0, 1)
        return
    magic = len(PARQUET_MAGIC)
    head = await disk.read(file.path, 0, magic)
    tail = await disk.read(file.path, max(0, file.bytes - magic), magic)
    if file.bytes < PARQUET_BYTES_MIN or head != PARQUET_MAGIC or tail != PARQUET_MAGIC:
        raise SourceUnreadable(
            f"{file.path} is not a Parquet file (it does not begin and end with PAR1)"
        )


def _glob(source: job_pb2.Source) -> str:
    kind = source.WhichOneof("kind")
    if kind == "text":
        return source.text.glob
    if kind == "csv":
        return source.csv.glob
    return source.parquet.glob
