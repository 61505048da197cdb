"""The directory of one worker, a TaskManager or a shuffle service: `<io.tmp.dirs>/<resource id>`.

    lock        held by the owning process; free as soon as that is dead
    generated   there when the resource id was made up, so that nobody will come back for it
    shuffle/    result partitions, and a record of each finished attempt

The lock is the owner mark: what is swept belongs to a dead process and was made by this program
(P40). A process that takes the directory over under the same resource id goes on with the finished
partitions (`shuffle.stocktaking`). Workers of both kinds may share `io.tmp.dirs`; each sweeps what
dead ones of either kind have left.
"""

from __future__ import annotations

import asyncio
import posixpath
from typing import ClassVar, Self

from holdover.errors import ConfigurationError
from holdover.runtime import Disk, FileLock, StorageNotWritable
from holdover.runtime.log import Log

_LOCK = "lock"
_GENERATED = "generated"
#: A neighbour that dies later is not missed: its disk space is wanted, but not at once.
_SWEEP_INTERVAL_S = 300.0

_log = Log(__name__)


class OwnedDirectory:
    """A directory that this process owns. Made by `claim`; who derives from it says whose it is."""

    #: What the owner is called, and the option that names it.
    owner: ClassVar[str]
    resource_id_key: ClassVar[str]

    def __init__(self, disk: Disk, path: str, lock: FileLock, *, generated: bool) -> None:
        self._disk = disk
        self._lock = lock
        self.path = path
        #: Whether no later process will use it.
        self.generated = generated
        self.shuffle = posixpath.join(path, "shuffle")

    @classmethod
    async def claim(cls, disk: Disk, root: str, resource_id: str, *, generated: bool) -> Self:
        """Take the directory, and delete what a dead process left in it beside its partitions.

        `generated` says that no later process will use this resource id. Raises
        `ConfigurationError` when a living process has it, `StorageNotWritable`.
        """
        path = posixpath.join(root, resource_id)
        try:
            await disk.make_directories(path)
            lock = await disk.lock(posixpath.join(path, _LOCK))
        except OSError as error:
            raise StorageNotWritable(path, error) from error
        if lock is None:
            raise ConfigurationError(
                f"{cls.resource_id_key} {resource_id!r} belongs to a running {cls.owner}, which"
                f" has locked {path}: choose another one",
                key=cls.resource_id_key,
            )
        directory = cls(disk, path, lock, generated=generated)
        try:
            await directory._empty()
            if generated:
                await disk.publish(posixpath.join(path, _GENERATED), b"")
        except OSError as error:
            await lock.release()
            raise StorageNotWritable(path, error) from error
        return directory

    async def _empty(self) -> None:
        """Make what is to be there, and delete what is not to outlive a process."""
        await self._disk.make_directories(self.shuffle)

    async def sweep_neighbours(self) -> None:
        """Delete the directories of dead workers that nobody will come back for, now and from time
        to time (P40); a loop for a `Supervisor`.

        What cannot be read or deleted is logged and left.
        """
        while True:
            try:
                await self._sweep_once()
            except OSError as error:
                _log.warning("cannot look for dead directories", path=self.path, error=error)
            await asyncio.sleep(_SWEEP_INTERVAL_S)

    async def _sweep_once(self) -> None:
        root = posixpath.dirname(self.path)
        for entry in await self._disk.list_directory(root):
            path = posixpath.join(root, entry.name)
            if entry.is_directory and path != self.path:
                try:
                    await self._sweep(path)
                except OSError as error:
                    _log.warning("cannot sweep a dead directory", path=path, error=error)

    async def _sweep(self, path: str) -> None:
        if await self._disk.stat(posixpath.join(path, _GENERATED)) is None:
            return
        lock = await self._disk.lock(posixpath.join(path, _LOCK))
        if lock is None:
            return
        try:
            await self._disk.remove_tree(path, missing_ok=True)
            _log.info("deleted the directory of a dead worker", path=path)
        finally:
            await lock.release()

    async def remove(self) -> None:
        """Delete everything and give the lock up: an orderly end."""
        await self._disk.remove_tree(self.path, missing_ok=True)
        await self._lock.release()

    async def release(self) -> None:
        """Give the lock up and leave the files."""
        await self._lock.release()
