"""Files, as services see them.

All paths are absolute. Nothing blocks the event loop. Cancelling a call leaves nothing open or
locked, but what it was doing may still happen, and later than the cancellation. Every `OSError`
passes through with its errno and file name. What is durable (survives a power loss) is said per
method; everything else survives the death of the process only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory. `bytes` is the file's size, 0 for a directory."""

    name: str
    is_directory: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class FileStat:
    """A path that exists. `bytes` is the file's size, 0 for a directory."""

    path: str
    bytes: int
    is_directory: bool = False


class AppendFile(Protocol):
    """An open file that grows at its end. One caller at a time."""

    @property
    def path(self) -> str:
        """Where the file was when it was opened."""
        ...

    async def write(self, data: bytes) -> None:
        """Append all of `data`. After an error an unknown prefix of it may be in the file."""
        ...

    async def sync(self) -> None:
        """Make everything written durable.

        After an error nothing on this handle may be called durable any more, even if a later
        `sync` succeeds (case P02): close it and go on in another file.
        """
        ...

    async def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; durable after `sync`."""
        ...

    async def close(self) -> None:
        """Close the handle, which does not sync. Closing twice is allowed."""
        ...


class FileLock(Protocol):
    """An exclusive lock that is held until `release` or the death of the process."""

    async def release(self) -> None:
        """Give the lock up. Releasing twice is allowed."""
        ...


class Disk(Protocol):
    """The local file system."""

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """The file's bytes from `offset`, at most `length`; fewer when the file ends before."""
        ...

    async def publish(self, path: str, data: bytes) -> None:
        """Put a whole file at `path`, atomically and durably (case P04).

        Readers see the old file or the new one, and when this returns the new one is durable.
        A crash in between may leave a temporary file named `.<name>.<hex digits>.tmp` beside it.
        """
        ...

    async def publish_new(self, path: str, data: bytes) -> None:
        """The same where there is no file of that name yet, else FileExistsError: of several who
        publish at once, or long after each other, one does, and the others learn of it.

        Where the file is there with these very bytes, this is done, and durable, as after a call
        whose outcome got lost. A file system that has no hard links cannot refuse for certain what
        somebody else publishes in the same moment.
        """
        ...

    async def open_append(self, path: str) -> AppendFile:
        """Open for appending, creating the file if it is missing.

        The new name is durable after `sync_directory` of its directory.
        """
        ...

    async def sync_directory(self, path: str) -> None:
        """Make the creations, renames and removals in the directory durable."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Move a file or directory, replacing a file at `target`; durable after the directories'
        `sync_directory`."""
        ...

    async def remove(self, path: str, missing_ok: bool = False) -> None:
        """Remove a file; durable after `sync_directory`."""
        ...

    async def remove_all(self, paths: Sequence[str]) -> list[OSError]:
        """Remove files of one file system or object store, in this order; those that are missing
        are fine.

        Each is tried. Returned is what went wrong, for each that could not be removed; durable
        after the directories' `sync_directory`.
        """
        ...

    async def remove_tree(self, path: str, missing_ok: bool = False) -> None:
        """Remove a directory and all below it; symbolic links are removed, not followed."""
        ...

    async def make_directories(self, path: str) -> None:
        """Create the directory and its missing parents, durably; an existing one is fine."""
        ...

    async def list_directory(self, path: str) -> list[Entry]:
        """What the directory holds, sorted by name."""
        ...

    async def stat(self, path: str) -> FileStat | None:
        """The file or directory at `path`, or None where there is none."""
        ...

    async def glob(self, pattern: str) -> list[FileStat]:
        """The files (not directories) that match, sorted by path; `**` goes into directories."""
        ...

    async def lock(self, path: str) -> FileLock | None:
        """Take the exclusive lock on the file, creating it if missing, without waiting.

        None when somebody else holds it, in this process or another.
        """
        ...

    async def free_bytes(self, path: str) -> int:
        """Bytes that can still be written to the file system that holds `path`."""
        ...
