"""The record that a finished attempt leaves beside its partitions: what it takes to offer the
attempt again after the worker that holds it was restarted.

Layout, little endian: "HLDVFIN1", u32 length of the payload, a serialized `FinishedExecution`, u32
CRC32C of everything before. It is written after the partitions that it names; an attempt without
one was not finished, or is not to be found again. A record that is cut off, because its process or
the machine has died meanwhile, tells so by its length and its CRC: it needs no name of its own
until it is whole.

An attempt that leaves files behind has a file for its record, which goes with them. To make a file
costs a small task a good part of its time: attempts that leave none behind share one, a group, to
which their process appends. What is in a group is deleted with its job.

Pure, but for `RecordWriter`, which runs within task processes.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import google_crc32c
from google.protobuf.message import DecodeError

from holdover.errors import InvalidId
from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX

RECORD_SUFFIX = ".finished"
GROUP_SUFFIX = ".attempts"
RECORD_MAGIC = b"HLDVFIN1"
#: A record of more bytes than this is taken for damage: some six million subpartitions.
RECORD_BYTES_MAX = 64 << 20
#: A larger group is taken for damage: some two or four thousand attempts.
GROUP_BYTES_MAX = 256 << 10
_GROUPED_BYTES_MAX = GROUP_BYTES_MAX // 2
_WORD = struct.Struct("<I")
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
_OVERHEAD_BYTES = len(RECORD_MAGIC) + 2 * _WORD.size


class RecordDamaged(Exception):
    """A file is not the record that its name promises; the text says why."""


def record_name(key: AttemptKey) -> str:
    """The record's file, relative to the shuffle directory: `job/vertex-subtask-attempt-epoch`
    with its suffix."""
    stem = f"{key.vertex_id}-{key.subtask}-{key.attempt}-{key.epoch}"
    return f"{key.job_id}/{stem}{RECORD_SUFFIX}"


def files_of(key: AttemptKey, execution: FinishedExecution) -> list[str]:
    """All files of a finished attempt, relative to the shuffle directory, in the order in which
    they are deleted: what is half deleted is not offered any more."""
    files = [record_name(key)]
    for partition in execution.partitions:
        name = partition_name(key, partition.output)
        files += [name + INDEX_SUFFIX, name + DATA_SUFFIX]
    return files


def encode_record(execution: FinishedExecution) -> bytes:
    """The bytes of a record."""
    body = execution.SerializeToString(deterministic=True)
    head = RECORD_MAGIC + _WORD.pack(len(body)) + body
    return head + _WORD.pack(google_crc32c.value(head))


def decode_record(data: bytes, name: str) -> tuple[AttemptKey, FinishedExecution]:
    """The attempt that a record is of; `name` is that of its file, as `record_name` gives it.

    Raises `RecordDamaged` for anything that `encode_record` would not have written.
    """
    key, execution, end = _record_at(data, 0)
    if len(data) != end:
        raise RecordDamaged(f"it has {len(data)} bytes, not {end}")
    if record_name(key) != name:
        raise RecordDamaged(f"it is the record of {key}")
    return key, execution


def decode_group(
    data: bytes, job_id: str
) -> tuple[list[tuple[AttemptKey, FinishedExecution]], RecordDamaged | None]:
    """The attempts of a group, in the order of their ends, and what is wrong behind the last one of
    them: a kill cuts a group off within a record."""
    found: list[tuple[AttemptKey, FinishedExecution]] = []
    at = 0
    while at < len(data):
        try:
            key, execution, end = _record_at(data, at)
            if key.job_id != job_id or not fits_a_group(execution):
                raise RecordDamaged(f"it is the record of {key}")
        except RecordDamaged as damage:
            return found, damage
        found.append((key, execution))
        at = end
    return found, None


def fits_a_group(execution: FinishedExecution) -> bool:
    """Whether an attempt has left no files behind."""
    return not execution.partitions and not execution.staged_files


def _record_at(data: bytes, start: int) -> tuple[AttemptKey, FinishedExecution, int]:
    """The attempt that the bytes from `start` on are a record of, and where it ends."""
    body = start + len(RECORD_MAGIC) + _WORD.size
    if len(data) < start + _OVERHEAD_BYTES or not data.startswith(RECORD_MAGIC, start):
        raise RecordDamaged("it is cut off, or no record")
    (length,) = _WORD.unpack_from(data, body - _WORD.size)
    end = start + _OVERHEAD_BYTES + length
    if len(data) < end:
        raise RecordDamaged(f"it has {len(data)} bytes, not {end}")
    if not ends_in_its_crc32c(data[start:end]):
        raise RecordDamaged("its CRC32C is wrong")
    try:
        execution = FinishedExecution.FromString(data[body : end - _WORD.size])
        return AttemptKey.from_proto(execution.attempt), execution, end
    except (DecodeError, InvalidId) as error:
        raise RecordDamaged(f"it cannot be decoded: {error}") from error


def ends_in_its_crc32c(data: bytes) -> bool:
    """Whether the last four bytes are the CRC32C of the others, as in records and in indexes."""
    if len(data) < _WORD.size:
        return False
    (expected,) = _WORD.unpack_from(data, len(data) - _WORD.size)
    return bool(google_crc32c.value(data[: -_WORD.size]) == expected)


def index_is(data: bytes, index_crc32c: int) -> bool:
    """Whether an index file is whole, and the one that a `ResultPartition` speaks of."""
    return ends_in_its_crc32c(data) and _WORD.pack(index_crc32c) == data[-_WORD.size :]


def record_path(shuffle_dir: str, key: AttemptKey) -> str:
    """Absolute path of an attempt's record."""
    return f"{shuffle_dir.rstrip('/')}/{record_name(key)}"


class RecordWriter:
    """Writes the records of the attempts of one task process, one after another."""

    def __init__(self) -> None:
        self._group: _Group | None = None

    def write(self, shuffle_dir: str, execution: FinishedExecution) -> None:
        """Leave a record. It outlives its process, but a power loss only by luck, as partitions do.

        Raises `OSError`; what is there then is to be deleted.
        """
        key = AttemptKey.from_proto(execution.attempt)
        path = record_path(shuffle_dir, key)
        data = encode_record(execution)
        if not fits_a_group(execution) or len(data) > _GROUPED_BYTES_MAX:
            descriptor = _opened(path, _WRITING | os.O_TRUNC)
            try:
                _write(descriptor, data)
            finally:
                os.close(descriptor)
            return
        if self._group is None or not self._group.takes(path):
            self.close()
            # No other process writes to a group that is named by an attempt of this one.
            self._group = _Group(path.removesuffix(RECORD_SUFFIX) + GROUP_SUFFIX)
        self._group.append(key, data)

    def delete(self, shuffle_dir: str, key: AttemptKey) -> None:
        """Delete the record of this process's last attempt, whole or not; an absent one is fine.
        Raises `OSError`."""
        if self._group is not None and self._group.last == key:
            self._group.cut_off_last()
        with suppress(FileNotFoundError):
            os.unlink(record_path(shuffle_dir, key))

    def close(self) -> None:
        """Nothing more is appended to the present group."""
        if self._group is not None:
            group, self._group = self._group, None
            os.close(group.descriptor)


class _Group:
    """A group that is open for more."""

    def __init__(self, path: str) -> None:
        self.descriptor = _opened(path, _WRITING | os.O_APPEND)
        self._directory = os.path.dirname(path)
        self._bytes = self._bytes_before_last = os.fstat(self.descriptor).st_size
        self.last: AttemptKey | None = None

    def takes(self, record_path: str) -> bool:
        """Whether an attempt's record is to be appended: of the same job, of which not everything
        was deleted meanwhile."""
        return (
            os.path.dirname(record_path) == self._directory
            and self._bytes <= GROUP_BYTES_MAX - _GROUPED_BYTES_MAX
            and os.fstat(self.descriptor).st_nlink > 0
        )

    def append(self, key: AttemptKey, data: bytes) -> None:
        """One more."""
        self._bytes_before_last = self._bytes
        self.last = key
        _write(self.descriptor, data)
        self._bytes += len(data)

    def cut_off_last(self) -> None:
        """As before the last `append`, whatever came of it."""
        os.ftruncate(self.descriptor, self._bytes_before_last)
        self._bytes = self._bytes_before_last
        self.last = None


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # no partition was written before
        return os.open(path, flags, 0o666)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
