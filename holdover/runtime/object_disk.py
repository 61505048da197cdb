"""Files on an object store, as far as one can have them.

A file that is published is one object of its name. A file that grows is a row of objects: each
`sync` puts one, `<name>.parts/<offset in 20 digits>`, and only where there is none yet. So a part
is whole or missing, and nobody can change or replace what somebody else has put.

Where a local disk and this one differ:

- Directories exist while something is in them. Making one does nothing, and one that is missing
  is listed as empty.
- What is put is durable. Syncing directories does nothing.
- `rename` copies, and removes the beginning of a growing file first: if it is interrupted, the
  source is a file with a hole, never one that looks whole but shorter. Holes read as zeros. It
  does not remove a growing file from the target first, so that it can be repeated then.
- What was written but not synced can be read after `sync` or `close` only, and `truncate` takes
  back nothing else.
- There are no locks, no patterns, and no limit of space that could be known.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdover.runtime.disk import AppendFile, Entry, FileLock, FileStat
from holdover.runtime.errors import ObjectConflict

if TYPE_CHECKING:
    from holdover.runtime.object_bucket import Bucket

PARTS_SUFFIX: Final = ".parts"
#: A part that is larger is put before anybody asks for it, so that memory is bounded.
PART_BYTES_MAX: Final = 8 * 1024 * 1024
_PART_NAME = re.compile(r"[0-9]{20}")
# So many small parts are fetched at once, ahead of the one that is read.
_PARTS_AHEAD: Final = 16
_CACHE_BYTES_MAX: Final = 2 * PART_BYTES_MAX
_FILES_KNOWN_MAX: Final = 64
_HOLE_BYTES_MAX: Final = 64 * 1024 * 1024
_FREE_BYTES: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class _Part:
    offset: int
    bytes: int
    key: str

    @property
    def end(self) -> int:
        return self.offset + self.bytes


class ObjectDisk:
    """One bucket as a `Disk`. Paths are URLs: scheme, bucket, key."""

    def __init__(self, root: str, bucket: Bucket) -> None:
        """`root` is scheme and bucket, with which all paths begin."""
        self._root = root
        self._bucket = bucket
        self._known: OrderedDict[str, list[_Part]] = OrderedDict()
        self._read_ahead: OrderedDict[str, bytes] = OrderedDict()
        # The last part of each file that is open here and has one.
        self._growing: dict[str, _Part] = {}

    # Reading

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        key = self._key(path)
        parts = self._known.get(key)
        if parts is None:
            try:
                return await self._read_whole(key, offset, length)
            except FileNotFoundError:
                parts = await self._look_up(key)
                if not parts:
                    raise
        if length is None or offset + length > parts[-1].end:
            parts = await self._look_up(key)  # it may have grown
            if not parts:
                raise _missing(path)
        end = parts[-1].end if length is None else min(parts[-1].end, offset + length)
        return await self._assemble(path, parts, offset, end)

    async def _read_whole(self, key: str, offset: int, length: int | None) -> bytes:
        """From a file that is one object. Raises FileNotFoundError."""
        if offset == 0 and length is None:
            return await self._bucket.get(key)
        size = await self._bucket.size(key)
        if size is None:
            raise _missing(f"{self._root}/{key}")
        end = size if length is None else min(size, offset + length)
        return await self._bucket.get_range(key, offset, end) if offset < end else b""

    async def list_directory(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        prefix = self._key(path)
        objects, prefixes = await self._bucket.list_level(prefix)
        growing = [below for below in prefixes if below.endswith(PARTS_SUFFIX)]
        parts = await asyncio.gather(
            *(self._look_up(below.removesuffix(PARTS_SUFFIX)) for below in growing)
        )
        entries = [Entry(_name(key), False, size) for key, size in objects]
        entries += [Entry(_name(below), True, 0) for below in prefixes if below not in growing]
        entries += [
            Entry(_name(below).removesuffix(PARTS_SUFFIX), False, found[-1].end)
            for below, found in zip(growing, parts, strict=True)
            if found
        ]
        return sorted(entries, key=lambda entry: entry.name)

    async def stat(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        key = self._key(path)
        last = self._growing.get(key)
        if last is not None and await self._bucket.size(last.key) == last.bytes:
            return FileStat(path, last.end)  # one request, however many parts there are
        size, parts, (objects, prefixes) = await asyncio.gather(
            self._bucket.size(key), self._look_up(key), self._bucket.list_level(key)
        )
        if size is not None:
            return FileStat(path, size)
        if parts:
            return FileStat(path, parts[-1].end)
        return FileStat(path, 0, True) if objects or prefixes else None

    # Writing

    async def publish(self, path: str, data: bytes) -> None:
        """See `Disk.publish`. Leaves no temporary file."""
        await self._bucket.put(self._key(path), data)

    async def publish_new(self, path: str, data: bytes) -> None:
        """See `Disk.publish_new`."""
        try:
            await self._bucket.put_new(self._key(path), data, prompt=False)
        except ObjectConflict as error:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error

    async def open_append(self, path: str) -> AppendFile:
        """See `Disk.open_append`. A file without bytes does not exist."""
        key = self._key(path)
        parts = await self._look_up(key)
        end = parts[-1].end if parts else 0
        return ObjectAppendFile(path, key, self._bucket, end, self._growing)

    async def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`; not atomic."""
        source_key, target_key = self._key(source), self._key(target)
        keys = await self._keys_of(source_key)
        if not keys:
            raise _missing(source)
        for key in keys:
            await self._bucket.copy(key, target_key + key.removeprefix(source_key))
        await self._bucket.delete(keys[:1])
        await self._bucket.delete(keys[1:])
        self._known.pop(source_key, None)

    async def remove(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove`."""
        key = self._key(path)
        keys = [part.key for part in await self._look_up(key)]
        if not missing_ok and not keys and await self._bucket.size(key) is None:
            raise _missing(path)
        await self._bucket.delete([key, *keys])
        self._known.pop(key, None)

    async def remove_all(self, paths: Sequence[str]) -> list[OSError]:
        """See `Disk.remove_all`."""
        failures: list[OSError] = []
        for path in paths:
            try:
                await self.remove(path, missing_ok=True)
            except OSError as error:
                failures.append(error)
        return failures

    async def remove_tree(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove_tree`."""
        prefix = self._key(path)
        keys = [key for key, _ in await self._bucket.list_below(prefix)]
        if not keys and not missing_ok:
            raise _missing(path)
        await self._bucket.delete(keys)
        for known in [key for key in self._known if key.startswith(f"{prefix}/")]:
            del self._known[known]

    # What an object store has not

    async def sync_directory(self, path: str) -> None:
        """Nothing to do: what was put is durable, with its name."""

    async def make_directories(self, path: str) -> None:
        """Nothing to do: a directory is what names have in common."""

    async def glob(self, pattern: str) -> list[FileStat]:
        """Raises OSError: sources are files."""
        raise _not_supported("patterns", pattern)

    async def lock(self, path: str) -> FileLock | None:
        """Raises OSError: leadership on an object store is a lease, which is no lock."""
        raise _not_supported("locks", path)

    async def free_bytes(self, path: str) -> int:
        """More than anybody needs."""
        return _FREE_BYTES

    # Parts

    def _key(self, path: str) -> str:
        return path.removeprefix(self._root).strip("/")

    async def _keys_of(self, key: str) -> list[str]:
        """All objects of a file or directory; the parts of a growing file in their order."""
        if await self._bucket.size(key) is not None:
            return [key]
        if parts := await self._look_up(key):
            return [part.key for part in parts]
        return [below for below, _ in await self._bucket.list_below(key)]

    async def _look_up(self, key: str) -> list[_Part]:
        """The parts of a growing file by their offset; none where there is no such file."""
        parts = [
            _Part(int(_name(part)), size, part)
            for part, size in await self._bucket.list_below(f"{key}{PARTS_SUFFIX}")
            if _PART_NAME.fullmatch(_name(part))
        ]
        self._known.pop(key, None)
        if parts:
            self._known[key] = parts
            while len(self._known) > _FILES_KNOWN_MAX:
                self._known.popitem(last=False)
        return parts

    async def _assemble(self, path: str, parts: list[_Part], offset: int, end: int) -> bytes:
        data = bytearray()
        for at, part in enumerate(parts):
            position = offset + len(data)
            if part.end <= position or part.offset >= end:
                continue
            _fill_hole(path, data, part.offset - position)
            position = offset + len(data)
            content = await self._content(parts, at)
            data += content[position - part.offset : end - part.offset]
        return bytes(data)

    async def _content(self, parts: list[_Part], at: int) -> bytes:
        """A part's bytes; those of small parts behind it are fetched with it."""
        if (found := self._read_ahead.get(parts[at].key)) is not None:
            return found
        wanted = [parts[at]]
        for part in parts[at + 1 : at + _PARTS_AHEAD]:
            if sum(each.bytes for each in wanted) + part.bytes > PART_BYTES_MAX:
                break
            wanted.append(part)
        contents = await asyncio.gather(*(self._bucket.get(part.key) for part in wanted))
        for part, content in zip(wanted, contents, strict=True):
            self._read_ahead[part.key] = content
        while sum(map(len, self._read_ahead.values())) > _CACHE_BYTES_MAX:
            self._read_ahead.popitem(last=False)
        return contents[0]


class ObjectAppendFile:
    """A growing file. After an error it is only good for `close`."""

    def __init__(
        self, path: str, key: str, bucket: Bucket, end: int, growing: dict[str, _Part]
    ) -> None:
        """`growing` is told of the last part that was put, until the file is closed."""
        self._path = path
        self._key = key
        self._bucket = bucket
        self._end = end
        self._growing = growing
        self._buffer = bytearray()
        self._failed = False

    @property
    def path(self) -> str:
        """See `AppendFile.path`."""
        return self._path

    async def write(self, data: bytes) -> None:
        """See `AppendFile.write`. Collects in memory, up to the size of a part."""
        self._check()
        for start in range(0, len(data), PART_BYTES_MAX):
            self._buffer += data[start : start + PART_BYTES_MAX]
            if len(self._buffer) >= PART_BYTES_MAX:
                await self._put()

    async def sync(self) -> None:
        """See `AppendFile.sync`. One request."""
        self._check()
        if self._buffer:
            await self._put()

    async def truncate(self, size: int) -> None:
        """See `AppendFile.truncate`. Raises OSError where it would take back what was put."""
        self._check()
        if size < self._end:
            raise _not_supported("truncation", self._path)
        del self._buffer[size - self._end :]

    async def close(self) -> None:
        """See `AppendFile.close`. Puts what was written and not synced, unless something failed."""
        try:
            if self._buffer and not self._failed:
                await self._put()
        finally:
            self._growing.pop(self._key, None)

    def _check(self) -> None:
        if self._failed:
            raise OSError(errno.EIO, "a write of this file has failed before", self._path)

    async def _put(self) -> None:
        data = bytes(self._buffer)
        self._failed = True  # until it is done; being cancelled counts as a failure too
        part = _Part(self._end, len(data), f"{self._key}{PARTS_SUFFIX}/{self._end:020d}")
        await self._bucket.put_new(part.key, data)
        self._failed = False
        self._growing[self._key] = part
        self._end = part.end
        self._buffer.clear()


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def _fill_hole(path: str, data: bytearray, missing: int) -> None:
    if missing > _HOLE_BYTES_MAX:
        raise OSError(
            errno.EIO,
            f"{missing} bytes of the file are missing in the object store: restore the objects"
            f" below {path}{PARTS_SUFFIX}, or remove all of them",
            path,
        )
    data.extend(bytes(max(0, missing)))


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such object", path)


def _not_supported(what: str, path: str) -> OSError:
    return OSError(errno.EOPNOTSUPP, f"an object store has no {what}", path)
