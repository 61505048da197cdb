"""What all file sources share: splits that fit their file, byte ranges that end at lines."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterator
from typing import BinaryIO

from holdover.v1.job_pb2 import Split
from taskmanager.operators.errors import JobError
from taskmanager.operators.stream import OperatorContext

#: The longest line that a byte range may have to look through for its end.
LINE_BYTES_MAX = 64 << 20


def file_splits(context: OperatorContext) -> Iterator[Split]:
    """The subtask's splits, each checked against its file.

    Raises JobError when the file is not the one that the splits were made from, OSError when it
    cannot be read.
    """
    for split in context.taken_splits():
        check_unchanged(split)
        yield split


def check_unchanged(split: Split) -> None:
    """Raises JobError unless the file has the size it had when the splits were made."""
    size = os.stat(split.path).st_size
    if size != split.file_bytes:
        raise JobError(
            f"{split.path} changed while the job ran: it has {size} bytes, and had"
            f" {split.file_bytes} when its splits were made; submit the job again"
        )


def first_file(pattern: str) -> str:
    """The first of the source's files, by name: what all of them look like.

    Raises JobError when there is none.
    """
    files = sorted(path for path in glob.iglob(pattern, recursive=True) if os.path.isfile(path))
    if not files:
        raise JobError(f"no file matches {pattern}")
    return files[0]


def line_range(file: BinaryIO, split: Split) -> tuple[int, int]:
    """The bytes of the lines that start within the split.

    A line belongs to the split in which its first byte lies, so neighbouring splits share no line
    and leave none out. Raises JobError for a line over `LINE_BYTES_MAX`.
    """
    return _line_start(file, split.start, split), _line_start(file, split.end, split)


def _line_start(file: BinaryIO, position: int, split: Split) -> int:
    """The first byte at or after `position` that begins a line, or the end of the file."""
    if position <= 0:
        return 0
    if position >= split.file_bytes:
        return split.file_bytes
    file.seek(position - 1)
    line = file.readline(LINE_BYTES_MAX)
    start = position - 1 + len(line)
    if not line.endswith(b"\n") and start < split.file_bytes:
        raise JobError(
            f"{split.path} has a line of more than {LINE_BYTES_MAX} bytes at byte {position}"
        )
    return start


class ByteRange(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._file = file
        self._left = max(0, end - start)
        file.seek(start)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes (-1: all that is left); empty at the end."""
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= len(data)
        return data
