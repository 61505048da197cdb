"""The record that a finished attempt leaves beside its partitions: what it takes to offer the
attempt again after the worker that holds it was restarted.

Layout, little endian: "HLDVFIN1", u32 length of the payload, a serialized `FinishedExecution`, u32
CRC32C of everything before. It is published after the partitions that it names; an attempt without
one was not finished, or is not to be found again. Pure, but for `write_record`, which runs within
task processes.
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
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, PART_SUFFIX

RECORD_SUFFIX = ".finished"
RECORD_MAGIC = b"HLDVFIN1"
#: A record of more bytes than this is taken for damage: some six million subpartitions.
RECORD_BYTES_MAX = 64 << 20
_WORD = struct.Struct("<I")
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
    if len(data) < _OVERHEAD_BYTES or not data.startswith(RECORD_MAGIC):
        raise RecordDamaged("it is cut off, or no record")
    (length,) = _WORD.unpack_from(data, len(RECORD_MAGIC))
    if len(data) != _OVERHEAD_BYTES + length:
        raise RecordDamaged(f"it has {len(data)} bytes, not {_OVERHEAD_BYTES + length}")
    if not ends_in_its_crc32c(data):
        raise RecordDamaged("its CRC32C is wrong")
    try:
        execution = FinishedExecution.FromString(data[len(RECORD_MAGIC) + _WORD.size : -4])
        key = AttemptKey.from_proto(execution.attempt)
    except (DecodeError, InvalidId) as error:
        raise RecordDamaged(f"it cannot be decoded: {error}") from error
    if record_name(key) != name:
        raise RecordDamaged(f"it is the record of {key}")
    return key, execution


def ends_in_its_crc32c(data: bytes) -> bool:
    """Whether the last four bytes are the CRC32C of the others, as in records and in indexes."""
    if len(data) < _WORD.size:
        return False
    (expected,) = _WORD.unpack_from(data, len(data) - _WORD.size)
    return bool(google_crc32c.value(data[: -_WORD.size]) == expected)


def index_is(data: bytes, index_crc32c: int) -> bool:
    """Whether an index file is whole, and the one that a `ResultPartition` speaks of."""
    return ends_in_its_crc32c(data) and _WORD.pack(index_crc32c) == data[-_WORD.size :]


def write_record(shuffle_dir: str, execution: FinishedExecution) -> None:
    """Publish a record by renaming, as partitions are: it outlives its process, and after a power
    loss its CRC decides. Raises `OSError`."""
    path = record_path(shuffle_dir, AttemptKey.from_proto(execution.attempt))
    try:
        _write(path + PART_SUFFIX, encode_record(execution))
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # a sink writes no partition
        _write(path + PART_SUFFIX, encode_record(execution))
    os.rename(path + PART_SUFFIX, path)


def delete_record(shuffle_dir: str, key: AttemptKey) -> None:
    """Delete an attempt's record, published or not; an absent one is fine. Raises `OSError`."""
    path = record_path(shuffle_dir, key)
    for name in (path, path + PART_SUFFIX):
        with suppress(FileNotFoundError):
            os.unlink(name)


def record_path(shuffle_dir: str, key: AttemptKey) -> str:
    """Absolute path of an attempt's record."""
    return f"{shuffle_dir.rstrip('/')}/{record_name(key)}"


def _write(path: str, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
