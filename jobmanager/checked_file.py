"""Small files with a length and a CRC32C: what a JobManager stores beside the event logs.

Layout, little endian: "HOLDFILE", u16 format version, u64 payload length, u32 CRC32C of these and
the payload, payload.
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c

from holdover.errors import StorageError
from holdover.runtime import Disk

_MAGIC: Final = b"HOLDFILE"
_FORMAT_VERSION: Final = 1
_HEAD = struct.Struct("<8sHQ")
_CRC = struct.Struct("<I")
_OVERHEAD_BYTES: Final = _HEAD.size + _CRC.size


class StoredFileDamaged(StorageError):
    """The file is there and cannot be what was stored."""


async def publish_checked(disk: Disk, path: str, payload: bytes, *, new: bool = False) -> None:
    """Store `payload` at `path`, atomically and durably (case P04). OSErrors pass through.

    `new`: only where nothing is stored yet, else FileExistsError.
    """
    head = _HEAD.pack(_MAGIC, _FORMAT_VERSION, len(payload))
    publish = disk.publish_new if new else disk.publish
    await publish(path, head + _CRC.pack(_crc_of(head, payload)) + payload)


async def read_checked(disk: Disk, path: str, bytes_max: int) -> bytes | None:
    """The payload stored at `path`, None where there is no file.

    Raises `StoredFileDamaged` when it is not what was stored, or larger than `bytes_max`.
    """
    stat = await disk.stat(path)
    if stat is None:
        return None
    if stat.bytes > bytes_max + _OVERHEAD_BYTES:
        raise StoredFileDamaged(path, f"{stat.bytes} bytes, more than the {bytes_max} allowed")
    data = await disk.read(path)
    if len(data) < _OVERHEAD_BYTES or not data.startswith(_MAGIC):
        raise StoredFileDamaged(path, "the file does not begin with HOLDFILE, or is cut off")
    _, version, length = _HEAD.unpack_from(data)
    if version > _FORMAT_VERSION:
        raise StoredFileDamaged(
            path,
            f"file format version {version} is not supported, only up to {_FORMAT_VERSION};"
            " run the version of Holdover that wrote it",
        )
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    payload = data[_OVERHEAD_BYTES:]
    if len(payload) != length or crc != _crc_of(data[: _HEAD.size], payload):
        raise StoredFileDamaged(path, "the length or the CRC is wrong")
    return payload


def _crc_of(head: bytes, payload: bytes) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(head), payload)
    return crc
