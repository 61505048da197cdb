"""Files on the machine's own file systems.

Files that stay open go through `aiofiles`; whatever is one step for the caller is one step in a
thread, of the same small pool. It belongs to the disk alone, so that name resolution or any
other user of the loop's default threads cannot delay a flush.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import glob
import io
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from aiofiles.threadpool import wrap
from aiofiles.threadpool.binary import AsyncFileIO

from holdover.runtime.disk import AppendFile, Entry, FileLock, FileStat

_THREADS_MAX = 8
# A tree in which somebody else removes names is looked through again so often.
_REMOVE_ATTEMPTS = 100
# What file systems say that have no hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=io.FileIO | None)


class LocalDisk:
    """The machine's file system."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="disk")

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        return await self._in_thread(_read, path, offset, length)

    async def publish(self, path: str, data: bytes) -> None:
        """See `Disk.publish`."""
        await self._in_thread(_publish, path, data)

    async def publish_new(self, path: str, data: bytes) -> None:
        """See `Disk.publish_new`."""
        await self._in_thread(_publish_new, path, data)

    async def open_append(self, path: str) -> AppendFile:
        """See `Disk.open_append`."""
        file = await self._kept(_open_append, path)
        return LocalAppendFile(path, wrap(file, executor=self._threads), self._threads)

    async def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        await self._in_thread(_sync_directory, path)

    async def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        await self._in_thread(os.replace, source, target)

    async def remove(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove`."""
        try:
            await self._in_thread(os.unlink, path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    async def remove_all(self, paths: Sequence[str]) -> list[OSError]:
        """See `Disk.remove_all`."""
        return await self._in_thread(_remove_all, paths)

    async def remove_tree(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove_tree`."""
        for attempt in range(1, _REMOVE_ATTEMPTS + 1):
            try:
                return await self._in_thread(shutil.rmtree, path)
            except FileNotFoundError:
                if await self.stat(path) is None:
                    if missing_ok:
                        return None
                    raise
                # A name inside has gone meanwhile, by somebody else's hand; the others must go too.
                if attempt == _REMOVE_ATTEMPTS:
                    raise
        return None

    async def make_directories(self, path: str) -> None:
        """See `Disk.make_directories`."""
        await self._in_thread(_make_directories, path)

    async def list_directory(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        return await self._in_thread(_list_directory, path)

    async def stat(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        try:
            status = await self._in_thread(os.stat, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_directory = stat.S_ISDIR(status.st_mode)
        return FileStat(path, 0 if is_directory else status.st_size, is_directory)

    async def glob(self, pattern: str) -> list[FileStat]:
        """See `Disk.glob`."""
        return await self._in_thread(_glob, pattern)

    async def lock(self, path: str) -> FileLock | None:
        """See `Disk.lock`."""
        file = await self._kept(_lock, path)
        return None if file is None else LocalFileLock(file, self._threads)

    async def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        return (await self._in_thread(shutil.disk_usage, path)).free

    async def _kept(self, open_file: Callable[[str], F], path: str) -> F:
        """Open a file in a thread, which cannot be cancelled: a file that the caller no longer
        waits for is closed here, for a lock that nobody knows of would be held for ever."""
        opening = _Opening(open_file, path)
        try:
            return await self._in_thread(opening.run)
        except asyncio.CancelledError:
            self._threads.submit(opening.abandon)
            raise

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *args, **kwargs))


class _Opening(Generic[F]):
    """One file on its way from a thread to its caller: it is closed if nobody takes it."""

    def __init__(self, open_file: Callable[[str], F], path: str) -> None:
        self._open_file = open_file
        self._path = path
        self._lock = threading.Lock()
        self._file: io.FileIO | None = None
        self._abandoned = False

    def run(self) -> F:
        """Open it."""
        file = self._open_file(self._path)
        with self._lock:
            self._file = file
            abandoned = self._abandoned
        if abandoned:
            self.abandon()
        return file

    def abandon(self) -> None:
        """The caller does not wait any more."""
        with self._lock:
            self._abandoned = True
            file, self._file = self._file, None
        if file is not None:
            file.close()


class LocalAppendFile:
    """An unbuffered file: what `write` returned for has been handed to the kernel."""

    def __init__(self, path: str, file: AsyncFileIO, threads: ThreadPoolExecutor) -> None:
        self._path = path
        self._file = file
        self._threads = threads

    @property
    def path(self) -> str:
        """See `AppendFile.path`."""
        return self._path

    async def write(self, data: bytes) -> None:
        """See `AppendFile.write`."""
        rest = memoryview(data)
        while rest:
            rest = rest[await self._file.write(rest) :]

    async def sync(self) -> None:
        """See `AppendFile.sync`."""
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._threads, os.fsync, self._file.fileno()
            )
        except OSError as error:
            raise _naming(error, self._path) from error

    async def truncate(self, size: int) -> None:
        """See `AppendFile.truncate`."""
        await self._file.truncate(size)

    async def close(self) -> None:
        """See `AppendFile.close`."""
        await self._file.close()


class LocalFileLock:
    """An flock, which the kernel gives back when the process dies."""

    def __init__(self, file: io.FileIO, threads: ThreadPoolExecutor) -> None:
        self._file = file
        self._threads = threads

    async def release(self) -> None:
        """See `FileLock.release`."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._file.close)


def _naming(error: OSError, path: str) -> OSError:
    """The same error with the file's name, which calls on descriptors leave out."""
    return OSError(error.errno, error.strerror, path)


def _exists(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _publish(path: str, data: bytes) -> None:
    _publish_by(os.replace, path, data)


def _publish_new(path: str, data: bytes) -> None:
    try:
        _publish_by(_link, path, data)
    except FileExistsError as error:
        if not os.path.isfile(path) or _read(path, 0, None) != data:
            raise _exists(path) from error
        # Whoever has put it there may not have come to this.
        _sync_directory(os.path.dirname(path))


def _link(temporary: str, path: str) -> None:
    """Give a file its name if that is free. Raises FileExistsError."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network file system may send a request twice, and answer the second one.
        if os.stat(temporary).st_nlink == 1:
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise _exists(path) from error
        os.replace(temporary, path)
        return
    os.unlink(temporary)


def _publish_by(name_it: Callable[[str, str], None], path: str, data: bytes) -> None:
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with io.FileIO(descriptor, "wb") as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(descriptor)
        name_it(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError as leftover:
            error.add_note(f"the temporary file could not be removed either: {leftover}")
        raise error if error.filename else _naming(error, path) from error
    _sync_directory(directory)


def _remove_all(paths: Sequence[str]) -> list[OSError]:
    failures: list[OSError] = []
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            failures.append(error)
    return failures


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _naming(error, path) from error
    finally:
        os.close(descriptor)


def _make_directories(path: str) -> None:
    parent = os.path.dirname(path)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    except FileNotFoundError:
        if parent == path or os.path.isdir(parent):
            raise  # some file systems, such as /proc, refuse new names in this way
        _make_directories(parent)
        _make_directories(path)
        return
    _sync_directory(parent)


def _list_directory(path: str) -> list[Entry]:
    entries = []
    with os.scandir(path) as names:
        for name in names:
            is_directory = name.is_dir(follow_symlinks=False)
            try:
                size = 0 if is_directory else name.stat(follow_symlinks=False).st_size
            except FileNotFoundError:  # removed between the listing and the look at it
                continue
            entries.append(Entry(name.name, is_directory, size))
    return sorted(entries, key=lambda entry: entry.name)


def _glob(pattern: str) -> list[FileStat]:
    found = []
    for path in sorted(set(glob.iglob(pattern, recursive=True))):
        try:
            status = os.stat(path)
        except FileNotFoundError:  # removed meanwhile, or a dangling link
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(FileStat(path, status.st_size))
    return found


def _read(path: str, offset: int, length: int | None) -> bytes:
    with open(path, "rb") as file:
        if offset:
            file.seek(offset)
        return file.read(-1 if length is None else length)


def _open_append(path: str) -> io.FileIO:
    return open(path, "ab", buffering=0)


def _lock(path: str) -> io.FileIO | None:
    file = open(path, "ab", buffering=0)  # noqa: SIM115  the lock lives as long as the file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError as error:
        file.close()
        raise _naming(error, path) from error
    return file
