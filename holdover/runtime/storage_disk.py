"""One disk for paths and URLs, so that services need not know where their storage is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdover.runtime.clock import Clock, Randomness
from holdover.runtime.disk import AppendFile, Disk, Entry, FileLock, FileStat
from holdover.runtime.object_disk import ObjectDisk
from holdover.runtime.objects import ObjectVersion, VersionedObject, is_object_url

if TYPE_CHECKING:
    from holdover.runtime.object_bucket import Bucket


class ObjectStorage:
    """All buckets that a process uses, and their objects with versions. See `VersionedObjects`.

    The object store library is loaded when the first URL is seen.
    """

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness
        self._buckets: dict[str, Bucket] = {}
        self._disks: dict[str, ObjectDisk] = {}
        self._opening = asyncio.Lock()

    async def read(self, url: str) -> VersionedObject | None:
        """See `VersionedObjects.read`."""
        bucket, key = await self._open(url), _key(url)
        return await bucket.get_versioned(key)

    async def replace(self, url: str, data: bytes, version: ObjectVersion | None) -> ObjectVersion:
        """See `VersionedObjects.replace`."""
        bucket, key = await self._open(url), _key(url)
        return await bucket.replace(key, data, version)

    def fence(self, url: str, may_write: Callable[[], bool]) -> None:
        """See `VersionedObjects.fence`."""
        # Whoever may write has won the right in this bucket, so it is open.
        self._buckets[_root(url)].fence(_key(url), may_write)

    async def disk(self, url: str) -> ObjectDisk:
        """The disk for everything in the URL's bucket."""
        root = _root(url)
        bucket = await self._open(url)
        return self._disks.setdefault(root, ObjectDisk(root, bucket))

    async def _open(self, url: str) -> Bucket:
        root = _root(url)
        async with self._opening:
            if root not in self._buckets:
                # In a thread: it loads the library and reads files.
                self._buckets[root] = await asyncio.to_thread(
                    _open_bucket, root, self._clock, self._randomness
                )
        return self._buckets[root]


class StorageDisk:
    """The machine's disk for paths, an object store for URLs. See `Disk`."""

    def __init__(self, local: Disk, objects: ObjectStorage) -> None:
        self._local = local
        self._objects = objects

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        return await (await self._at(path)).read(path, offset, length)

    async def publish(self, path: str, data: bytes) -> None:
        """See `Disk.publish`."""
        await (await self._at(path)).publish(path, data)

    async def publish_new(self, path: str, data: bytes) -> None:
        """See `Disk.publish_new`."""
        await (await self._at(path)).publish_new(path, data)

    async def open_append(self, path: str) -> AppendFile:
        """See `Disk.open_append`."""
        return await (await self._at(path)).open_append(path)

    async def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        await (await self._at(path)).sync_directory(path)

    async def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`. Within one store only: nothing is ever moved between them."""
        await (await self._at(source)).rename(source, target)

    async def remove(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove`."""
        await (await self._at(path)).remove(path, missing_ok)

    async def remove_all(self, paths: Sequence[str]) -> list[OSError]:
        """See `Disk.remove_all`."""
        return await (await self._at(paths[0])).remove_all(paths) if paths else []

    async def remove_tree(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove_tree`."""
        await (await self._at(path)).remove_tree(path, missing_ok)

    async def make_directories(self, path: str) -> None:
        """See `Disk.make_directories`."""
        await (await self._at(path)).make_directories(path)

    async def list_directory(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        return await (await self._at(path)).list_directory(path)

    async def stat(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        return await (await self._at(path)).stat(path)

    async def glob(self, pattern: str) -> list[FileStat]:
        """See `Disk.glob`."""
        return await (await self._at(pattern)).glob(pattern)

    async def lock(self, path: str) -> FileLock | None:
        """See `Disk.lock`."""
        return await (await self._at(path)).lock(path)

    async def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        return await (await self._at(path)).free_bytes(path)

    async def _at(self, path: str) -> Disk:
        return await self._objects.disk(path) if is_object_url(path) else self._local


def _root(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _key(url: str) -> str:
    return url.removeprefix(_root(url)).strip("/")


def _open_bucket(root: str, clock: Clock, randomness: Randomness) -> Bucket:
    # Imported here, so that a process whose storage is local does not wait for the library.
    from holdover.runtime.object_bucket import Bucket
    from holdover.runtime.object_stores import open_store

    return Bucket(root, open_store(root), clock, randomness)
