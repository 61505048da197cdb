"""The directory of one TaskManager: `<io.tmp.dirs>/<resource id>`.

    lock        held by the owning process; free as soon as that is dead
    generated   there when the resource id was made up, so that nobody will come back for it
    shuffle/    result partitions
    scratch/    what tasks spill; deleted after each attempt
    graphs/     job graphs, one file a job
    tasks.log   what user code prints

The lock is the owner mark: what is swept belongs to a dead process and was made by this program
(P40).
"""

from __future__ import annotations

import posixpath

from holdover.errors import ConfigurationError
from holdover.runtime import Disk, FileLock, StorageNotWritable
from holdover.runtime.log import Log

_LOCK = "lock"
_GENERATED = "generated"

_log = Log(__name__)


class WorkingDirectory:
    """A directory that this process owns. Made by `claim`."""

    def __init__(self, disk: Disk, path: str, lock: FileLock) -> None:
        self._disk = disk
        self._lock = lock
        self.path = path
        self.shuffle = posixpath.join(path, "shuffle")
        self.scratch = posixpath.join(path, "scratch")
        self.graphs = posixpath.join(path, "graphs")
        self.tasks_log = posixpath.join(path, "tasks.log")

    @classmethod
    async def claim(
        cls, disk: Disk, root: str, resource_id: str, *, generated: bool
    ) -> WorkingDirectory:
        """Take the directory, and delete what a dead process left in it.

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
                f"taskmanager.resource-id {resource_id!r} belongs to a running TaskManager, which"
                f" has locked {path}: choose another one",
                key="taskmanager.resource-id",
            )
        directory = cls(disk, path, lock)
        try:
            await directory._empty()
            if generated:
                await disk.publish(posixpath.join(path, _GENERATED), b"")
        except OSError as error:
            await lock.release()
            raise StorageNotWritable(path, error) from error
        return directory

    async def _empty(self) -> None:
        # Finished partitions of the dead process go too: nobody has verified them, and the
        # JobManager counts them as missing from the moment the new process registers (P22).
        for directory in (self.shuffle, self.scratch, self.graphs):
            await self._disk.remove_tree(directory, missing_ok=True)
            await self._disk.make_directories(directory)

    async def sweep_neighbours(self) -> None:
        """Delete the directories of dead TaskManagers that nobody will come back for (P40).

        What cannot be read or deleted is logged and left.
        """
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
            _log.info("deleted the directory of a dead TaskManager", path=path)
        finally:
            await lock.release()

    async def remove(self) -> None:
        """Delete everything and give the lock up: an orderly end."""
        await self._disk.remove_tree(self.path, missing_ok=True)
        await self._lock.release()

    async def release(self) -> None:
        """Give the lock up and leave the files."""
        await self._lock.release()
