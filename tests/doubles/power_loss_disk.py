"""A disk in memory that can lose its power.

The model: a file has the content that processes see and the content that is on the medium; a
directory likewise has entries. `sync` moves a file's content to the medium, `sync_directory` a
directory's entries, `publish` and `make_directories` do both as their contract says. `power_loss`
forgets what is not on the medium. All services of one test may share the disk; handles that were
open at the loss are dead, and locks are free.

Faults are asked for by the test: an errno for an operation, or a cut of the power after the n-th
mutation, counted over all system calls that change something (a `publish` is five of them).
"""

from __future__ import annotations

import errno
import fnmatch
import os
import posixpath
import re
from dataclasses import dataclass, field
from typing import Literal

from holdover.runtime import AppendFile, Entry, FileLock, FileStat

Unsynced = Literal["dropped", "zeroed", "torn"]


class PowerLoss(Exception):
    """The power is off: raised by the operation it cut and by every one until `power_on`."""


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class _Directory:
    entries: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Directory


@dataclass
class _Fault:
    operation: str
    errno: int
    path_pattern: str
    skip: int
    times: int


class PowerLossDisk:
    """See the module's docstring. Keeps the `Disk` contract while nothing is made to fail.

    `unsynced` says what a power loss does to the unsynced part of a file whose size had grown:
    it is "dropped", reads as zeros ("zeroed"), or half of it survives ("torn").
    """

    def __init__(self, unsynced: Unsynced = "dropped", capacity_bytes: int = 1 << 30) -> None:
        self._unsynced: Unsynced = unsynced
        self._capacity_bytes = capacity_bytes
        self._root = _Directory()
        self._locked: set[str] = set()
        self._faults: list[_Fault] = []
        self._is_on = True
        self._boot = 0
        self._cut_after: int | None = None
        self._temporaries = 0
        self.mutations = 0
        """System calls that changed something, since the start."""
        self.operations: list[tuple[str, str]] = []
        """Every operation with its path, in order."""

    # What a test does.

    @property
    def is_on(self) -> bool:
        """Whether it serves; not so between a loss of power and `power_on`."""
        return self._is_on

    def power_loss(self) -> None:
        """Forget what is not on the medium, at once; operations then raise `PowerLoss`."""
        self._is_on = False
        self._boot += 1
        self._locked.clear()
        self._lose(self._root)

    def power_on(self) -> None:
        """Serve again what is on the medium."""
        self._is_on = True
        self._cut_after = None

    def cut_after_mutation(self, n: int) -> None:
        """Lose the power right after the n-th mutation from now (n = 1 is the next one)."""
        self._cut_after = self.mutations + n

    def fail(
        self, operation: str, error: int, path_pattern: str = "*", skip: int = 0, times: int = 1
    ) -> None:
        """Make an operation fail with an errno: after `skip` that succeed, `times` times.

        Operations are named by the methods: read write sync truncate publish open_append
        sync_directory rename remove remove_tree make_directories list_directory stat glob lock
        free_bytes. A failed write has written half of its bytes.
        """
        self._faults.append(_Fault(operation, error, path_pattern, skip, times))

    def overwrite(self, path: str, data: bytes) -> None:
        """Damage a file: replace its content, on the medium too."""
        file = self._file(path)
        file.data[:] = data
        file.durable = bytes(data)

    # The Disk protocol.

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        self._begin("read", path)
        data = self._file(path).data
        return bytes(data[offset:] if length is None else data[offset : offset + length])

    async def publish(self, path: str, data: bytes) -> None:
        """See `Disk.publish`."""
        self._begin("publish", path)
        directory = self._directory(posixpath.dirname(path))
        name = posixpath.basename(path)
        if isinstance(directory.entries.get(name), _Directory):
            raise _error(errno.EISDIR, path)
        self._temporaries += 1
        temporary = f".{name}.{self._temporaries}.tmp"
        file = _File()
        directory.entries[temporary] = file
        self._mutated()
        file.data += data
        self._mutated()
        file.durable = bytes(file.data)
        self._mutated()
        directory.entries[name] = directory.entries.pop(temporary)
        self._mutated()
        directory.durable = dict(directory.entries)
        self._mutated()

    async def open_append(self, path: str) -> AppendFile:
        """See `Disk.open_append`."""
        self._begin("open_append", path)
        directory = self._directory(posixpath.dirname(path))
        node = directory.entries.get(posixpath.basename(path))
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            node = directory.entries[posixpath.basename(path)] = _File()
            self._mutated()
        return _OpenFile(self, path, node, self._boot)

    async def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self._begin("sync_directory", path)
        directory = self._directory(path)
        directory.durable = dict(directory.entries)
        self._mutated()

    async def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self._begin("rename", source)
        node = self._node(source)
        target_directory = self._directory(posixpath.dirname(target))
        replaced = target_directory.entries.get(posixpath.basename(target))
        if isinstance(node, _File) and isinstance(replaced, _Directory):
            raise _error(errno.EISDIR, target)
        if isinstance(node, _Directory) and isinstance(replaced, _File):
            raise _error(errno.ENOTDIR, target)
        if isinstance(replaced, _Directory) and replaced.entries:
            raise _error(errno.ENOTEMPTY, target)
        del self._directory(posixpath.dirname(source)).entries[posixpath.basename(source)]
        target_directory.entries[posixpath.basename(target)] = node
        self._mutated()

    async def remove(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove`."""
        self._begin("remove", path)
        try:
            self._file(path)
        except FileNotFoundError:
            if missing_ok:
                return
            raise
        del self._directory(posixpath.dirname(path)).entries[posixpath.basename(path)]
        self._mutated()

    async def remove_tree(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove_tree`."""
        self._begin("remove_tree", path)
        try:
            directory = self._directory(path)
        except FileNotFoundError:
            if missing_ok:
                return
            raise
        self._empty(directory)
        del self._directory(posixpath.dirname(path)).entries[posixpath.basename(path)]
        self._mutated()

    async def make_directories(self, path: str) -> None:
        """See `Disk.make_directories`."""
        self._begin("make_directories", path)
        directory = self._root
        for name in _parts(path):
            node = directory.entries.get(name)
            if isinstance(node, _File):
                raise _error(errno.ENOTDIR, path)
            if node is None:
                node = directory.entries[name] = _Directory()
                self._mutated()
                directory.durable = dict(directory.entries)
                self._mutated()
            directory = node

    async def list_directory(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        self._begin("list_directory", path)
        return [
            Entry(name, isinstance(node, _Directory), _size(node))
            for name, node in sorted(self._directory(path).entries.items())
        ]

    async def stat(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        self._begin("stat", path)
        try:
            node = self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(path, _size(node), isinstance(node, _Directory))

    async def glob(self, pattern: str) -> list[FileStat]:
        """See `Disk.glob`."""
        self._begin("glob", pattern)
        expression = re.compile(
            "".join(
                "(?:/[^/.][^/]*)*" if part == "**" else "/" + _translate(part)
                for part in _parts(pattern)
            )
        )
        return [
            FileStat(path, len(file.data))
            for path, file in sorted(self._files("", self._root).items())
            if expression.fullmatch(path)
        ]

    async def lock(self, path: str) -> FileLock | None:
        """See `Disk.lock`."""
        self._begin("lock", path)
        if path in self._locked:
            return None
        directory = self._directory(posixpath.dirname(path))
        if posixpath.basename(path) not in directory.entries:
            directory.entries[posixpath.basename(path)] = _File()
            self._mutated()
        self._locked.add(path)
        return _HeldLock(self, path, self._boot)

    async def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        self._begin("free_bytes", path)
        self._node(path)
        used = sum(len(file.data) for file in self._files("", self._root).values())
        return max(0, self._capacity_bytes - used)

    # For open files and locks.

    def begin_on_handle(self, operation: str, path: str, boot: int) -> None:
        """Check that the handle lives and no fault is due."""
        if boot != self._boot:
            raise PowerLoss(f"{operation} {path}: the file was open when the power went")
        self._begin(operation, path)

    def mutated(self) -> None:
        """Count a system call that changed something."""
        self._mutated()

    def unlock(self, path: str, boot: int) -> None:
        """Free a lock of this boot."""
        if boot == self._boot:
            self._locked.discard(path)

    # Inside.

    def _begin(self, operation: str, path: str) -> None:
        if not self._is_on:
            raise PowerLoss(f"{operation} {path}: the power is off")
        self.operations.append((operation, path))
        for fault in self._faults:
            if fault.operation != operation or not fnmatch.fnmatch(path, fault.path_pattern):
                continue
            if fault.skip > 0:
                fault.skip -= 1
            elif fault.times > 0:
                fault.times -= 1
                raise _error(fault.errno, path)

    def _mutated(self) -> None:
        self.mutations += 1
        if self._cut_after is not None and self.mutations >= self._cut_after:
            self.power_loss()
            raise PowerLoss(f"the power went after mutation {self.mutations}")

    def _node(self, path: str) -> _Node:
        node: _Node = self._root
        for name in _parts(path):
            if isinstance(node, _File):
                raise _error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise _error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def _file(self, path: str) -> _File:
        node = self._node(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        return node

    def _files(self, prefix: str, directory: _Directory) -> dict[str, _File]:
        found = {}
        for name, node in directory.entries.items():
            path = f"{prefix}/{name}"
            if isinstance(node, _File):
                found[path] = node
            else:
                found.update(self._files(path, node))
        return found

    def _empty(self, directory: _Directory) -> None:
        for name, node in list(directory.entries.items()):
            if isinstance(node, _Directory):
                self._empty(node)
            del directory.entries[name]
            self._mutated()

    def _lose(self, node: _Node) -> None:
        if isinstance(node, _Directory):
            node.entries = dict(node.durable)
            for child in node.entries.values():
                self._lose(child)
            return
        # An overwritten part cannot be unsynced here: files only grow, or are cut.
        unsynced = bytes(node.data[len(node.durable) :])
        survivor = node.durable
        if self._unsynced == "zeroed":
            survivor += bytes(len(unsynced))
        elif self._unsynced == "torn":
            survivor += unsynced[: len(unsynced) // 2]
        node.data = bytearray(survivor)
        node.durable = survivor


class _OpenFile:
    def __init__(self, disk: PowerLossDisk, path: str, file: _File, boot: int) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._boot = boot
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    async def write(self, data: bytes) -> None:
        self._check_open()
        try:
            self._disk.begin_on_handle("write", self._path, self._boot)
        except OSError:
            self._file.data += data[: len(data) // 2]
            raise
        self._file.data += data
        self._disk.mutated()

    async def sync(self) -> None:
        self._check_open()
        self._disk.begin_on_handle("sync", self._path, self._boot)
        self._file.durable = bytes(self._file.data)
        self._disk.mutated()

    async def truncate(self, size: int) -> None:
        self._check_open()
        self._disk.begin_on_handle("truncate", self._path, self._boot)
        length = len(self._file.data)
        if size > length:
            self._file.data += bytes(size - length)
        del self._file.data[size:]
        self._disk.mutated()

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self._path} is closed")


class _HeldLock:
    def __init__(self, disk: PowerLossDisk, path: str, boot: int) -> None:
        self._disk = disk
        self._path = path
        self._boot = boot
        self._released = False

    async def release(self) -> None:
        if not self._released:
            self._released = True
            self._disk.unlock(self._path, self._boot)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"paths are absolute, not {path!r}")
    return [part for part in posixpath.normpath(path).split("/") if part]


def _size(node: _Node) -> int:
    return 0 if isinstance(node, _Directory) else len(node.data)


def _translate(part: str) -> str:
    """One component of a glob as a regular expression; a leading dot must be written out."""
    hidden = "" if part.startswith(".") else r"(?!\.)"
    body = ""
    position = 0
    while position < len(part):
        character = part[position]
        closing = part.find("]", position + 2) if character == "[" else -1
        if character == "*":
            body += "[^/]*"
        elif character == "?":
            body += "[^/]"
        elif closing > 0:
            inside = part[position + 1 : closing]
            negated = "^" if inside.startswith("!") else ""
            body += f"[{negated}{inside.removeprefix('!')}]"
            position = closing
        else:
            body += re.escape(character)
        position += 1
    return hidden + body
