"""One segment file that is being written."""

from __future__ import annotations

import errno

from holdover.runtime import AppendFile, Disk
from jobmanager.event_store.hang_guard import HangGuard
from jobmanager.event_store.records import SegmentHeader, encode_header


class SegmentWriter:
    """Appends to one new segment. After any error it is only good for `close` (case P02)."""

    def __init__(self, disk: Disk, guard: HangGuard, directory: str, file: AppendFile) -> None:
        self._disk = disk
        self._guard = guard
        self._directory = directory
        self._file = file
        self._size_bytes = 0
        self._name_is_durable = False

    @classmethod
    async def create(
        cls, disk: Disk, guard: HangGuard, directory: str, file_name: str
    ) -> SegmentWriter:
        """Create the file, which must not exist yet. OSErrors pass through."""
        path = f"{directory}/{file_name}"
        file = await guard.call(path, disk.open_append(path))
        return cls(disk, guard, directory, file)

    @property
    def path(self) -> str:
        """The segment's path."""
        return self._file.path

    @property
    def size_bytes(self) -> int:
        """Bytes handed to the file so far."""
        return self._size_bytes

    async def write(self, data: bytes, header: SegmentHeader | None = None) -> int:
        """Append `data`, after the header in the same write if one is given; return the bytes."""
        if header is not None:
            data = encode_header(header) + data
        await self._guard.call(self.path, self._file.write(data))
        self._size_bytes += len(data)
        return len(data)

    async def sync(self) -> None:
        """Make everything written durable, the file's name too (case P04)."""
        await self._guard.call(self.path, self._file.sync())
        if not self._name_is_durable:
            await self._guard.call(self._directory, self._disk.sync_directory(self._directory))
            self._name_is_durable = True
        await self.check_present()

    async def check_present(self) -> None:
        """Raise `FileNotFoundError` when the segment is not where it was begun, or not whole.

        An open file can be written and synced although its directory has been removed or renamed;
        no later leader would see it.
        """
        found = await self._guard.call(self.path, self._disk.stat(self.path))
        if found is None or found.bytes < self._size_bytes:
            raise FileNotFoundError(errno.ENOENT, "the segment has vanished or was cut", self.path)

    async def close(self) -> None:
        """Close the file without a sync."""
        await self._guard.close_file(self._file)
