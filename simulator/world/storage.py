"""A storage in memory that can lose its power, usable as a `Disk` by itself.

The model is that of `simulator.world.medium`; faults are in `simulator.world.disk_faults`. Used by
itself it takes no time, and all who share it are one host; `simulator.world.disk` gives it to the
processes of a world. Handles that were open at a loss of power are dead, and locks are free.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdover.runtime import AppendFile, Entry, FileLock, FileStat
from simulator.world.medium import FileNode, PowerLoss, Unsynced, finish
from simulator.world.operations import Operations

__all__ = ["PowerLoss", "SimulatedStorage", "Unsynced"]


class SimulatedStorage(Operations):
    """See the module. Keeps the `Disk` contract while nothing is made to fail."""

    def fail(
        self,
        operation: str,
        error: int,
        path_pattern: str = "*",
        skip: int = 0,
        times: int | None = 1,
    ) -> None:
        """Make an operation fail with an errno; see `DiskFaults.fail`."""
        self.faults.fail(operation, error, path_pattern, skip, times)

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        return self.read_now(path, offset, length)

    async def publish(self, path: str, data: bytes) -> None:
        """See `Disk.publish`."""
        finish(self.publish_steps(path, data))

    async def publish_new(self, path: str, data: bytes) -> None:
        """See `Disk.publish_new`."""
        finish(self.publish_new_steps(path, data))

    async def open_append(self, path: str) -> AppendFile:
        """See `Disk.open_append`."""
        return _OpenFile(self, path, finish(self.open_steps(path)), self.boot)

    async def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        finish(self.sync_directory_steps(path))

    async def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        finish(self.rename_steps(source, target))

    async def remove(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove`."""
        finish(self.remove_steps(path, missing_ok))

    async def remove_all(self, paths: Sequence[str]) -> list[OSError]:
        """See `Disk.remove_all`."""
        return finish(self.remove_all_steps(paths))

    async def remove_tree(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove_tree`."""
        finish(self.remove_tree_steps(path, missing_ok))

    async def make_directories(self, path: str) -> None:
        """See `Disk.make_directories`."""
        finish(self.make_directories_steps(path))

    async def list_directory(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        return self.list_directory_now(path)

    async def stat(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        return self.stat_now(path)

    async def glob(self, pattern: str) -> list[FileStat]:
        """See `Disk.glob`."""
        return self.glob_now(pattern)

    async def lock(self, path: str) -> FileLock | None:
        """See `Disk.lock`."""
        file = finish(self.lock_steps(path))
        return _HeldLock(self, file, self.boot) if file is not None else None

    async def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        return self.free_bytes_now(path)


class _OpenFile:
    def __init__(self, storage: SimulatedStorage, path: str, file: FileNode, boot: int) -> None:
        self._storage = storage
        self._path = path
        self._file = file
        self._boot = boot
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    async def write(self, data: bytes) -> None:
        self._check_open()
        finish(self._storage.write_steps(self._path, self._file, self._boot, data))

    async def sync(self) -> None:
        self._check_open()
        finish(self._storage.sync_steps(self._path, self._file, self._boot))

    async def truncate(self, size: int) -> None:
        self._check_open()
        finish(self._storage.truncate_steps(self._path, self._file, self._boot, size))

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self._path} is closed")


class _HeldLock:
    def __init__(self, storage: SimulatedStorage, file: FileNode, boot: int) -> None:
        self._storage = storage
        self._file = file
        self._boot = boot
        self._released = False

    async def release(self) -> None:
        if not self._released:
            self._released = True
            self._storage.unlock(self._file, self._boot)
