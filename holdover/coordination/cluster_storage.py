"""What a cluster's storage directory knows of the leaders that another system elects.

Under `<storage directory>/leader`:

- `cluster` holds a word that the other system holds as well, so that a JobManager that was given
  another directory, or one of its own, finds out (case P61);
- `epoch` holds the newest epoch as decimal digits. It does not come back where the other system
  lost its memory, nor where the cluster goes over to another way of electing.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterator

from holdover.coordination.leader import LeaderStateDamaged
from holdover.runtime import (
    Disk,
    ObjectStoreFenced,
    ObjectStoreUnavailable,
    StorageNotWritable,
)


class ForeignStorage(OSError):
    """The storage directory is not the one that the cluster's leaders use."""

    def __init__(self, directory: str, found: str, key: str) -> None:
        what = f"belongs to another cluster ({found})" if found else "is not the cluster's"
        super().__init__(
            errno.EBADF,
            f"storage directory {directory} {what}: is it mounted, and the same for every"
            " JobManager? Check high-availability.storageDir and high-availability.cluster-id; if"
            f" the cluster's jobs were deleted on purpose, delete {key} in etcd",
        )


class ClusterStorage:
    """See the module."""

    def __init__(self, disk: Disk, storage_directory: str) -> None:
        self._disk = disk
        self.directory = posixpath.join(storage_directory, "leader")
        self._cluster_path = posixpath.join(self.directory, "cluster")
        self._epoch_path = posixpath.join(self.directory, "epoch")

    async def check(self, word: str, key: str) -> None:
        """That this is the directory of the cluster which calls itself `word`, in `key` of the
        other system; empty when it has no word yet.

        Raises `ForeignStorage` and, like all that follow, `StorageNotWritable` and
        `ObjectStoreUnavailable`.
        """
        with self._named():
            await self._disk.make_directories(self.directory)
        found = await self.word()
        if word and found != word:
            raise ForeignStorage(self.directory, found, key)

    async def word(self) -> str:
        """What the cluster calls itself; empty when it has no name yet."""
        return (await self._read(self._cluster_path)).decode(errors="replace").strip()

    async def publish_word(self, word: str) -> None:
        """Name the cluster, durably."""
        with self._named():
            await self._disk.publish(self._cluster_path, word.encode() + b"\n")

    async def newest_epoch(self) -> int:
        """The newest epoch, 0 when there was none. Raises `LeaderStateDamaged`, too."""
        digits = (await self._read(self._epoch_path)).strip()
        if digits and not digits.isdigit():
            raise LeaderStateDamaged(self._epoch_path, "it does not hold a number")
        return int(digits or b"0")

    async def publish_epoch(self, epoch: int) -> None:
        """Raise the epoch, durably."""
        with self._named():
            await self._disk.publish(self._epoch_path, b"%d\n" % epoch)

    async def _read(self, path: str) -> bytes:
        """What the file holds; nothing when there is none."""
        with self._named():
            try:
                return await self._disk.read(path)
            except FileNotFoundError:
                return b""

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """An error names the directory, unless the store may do it later, or for another leader."""
        try:
            yield
        except (ObjectStoreUnavailable, ObjectStoreFenced):
            raise
        except OSError as error:
            raise StorageNotWritable(self.directory, error) from error
