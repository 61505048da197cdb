"""The directory of one shuffle service: `<io.tmp.dirs>/<resource id>`.

    lock        held by the owning process; free as soon as that is dead
    generated   there when the resource id was made up, so that nobody will come back for it
    shuffle/    result partitions, and a record of each finished attempt

It looks as a TaskManager's does, so that who sweeps dead directories of the one kind sweeps those
of the other (P40).
"""

from __future__ import annotations

import posixpath

from holdover.errors import ConfigurationError
from holdover.runtime import Disk, FileLock, StorageNotWritable

_LOCK = "lock"
_GENERATED = "generated"


class ServiceDirectory:
    """A directory that this process owns. Made by `claim`."""

    def __init__(self, disk: Disk, path: str, lock: FileLock, *, generated: bool) -> None:
        self._disk = disk
        self._lock = lock
        self.path = path
        #: Whether no later process will use it.
        self.generated = generated
        self.shuffle = posixpath.join(path, "shuffle")

    @classmethod
    async def claim(
        cls, disk: Disk, root: str, resource_id: str, *, generated: bool
    ) -> ServiceDirectory:
        """Take the directory, with all that an earlier process has left in it.

        Raises `ConfigurationError` when a living process has it, `StorageNotWritable`.
        """
        path = posixpath.join(root, resource_id)
        try:
            await disk.make_directories(path)
            lock = await disk.lock(posixpath.join(path, _LOCK))
        except OSError as error:
            raise StorageNotWritable(path, error) from error
        if lock is None:
            raise ConfigurationError(
                f"shuffle.service.resource-id {resource_id!r} belongs to a running process, which"
                f" has locked {path}: choose another one",
                key="shuffle.service.resource-id",
            )
        directory = cls(disk, path, lock, generated=generated)
        try:
            await disk.make_directories(directory.shuffle)
            if generated:
                await disk.publish(posixpath.join(path, _GENERATED), b"")
        except OSError as error:
            await lock.release()
            raise StorageNotWritable(path, error) from error
        return directory

    async def remove(self) -> None:
        """Delete everything and give the lock up."""
        await self._disk.remove_tree(self.path, missing_ok=True)
        await self._lock.release()

    async def release(self) -> None:
        """Give the lock up and leave the files."""
        await self._lock.release()
