"""The files of a storage, and what of them outlives a loss of power.

Model: a file has the content that processes see and the content that is on the medium; a directory
likewise has names. `sync` moves a file's content to the medium, `sync_directory` a directory's
names; `publish` and `make_directories` do both, as their contract says. A loss forgets the rest:
names go back to what they were, unsynced content is dropped, reads as zeros, or survives in part.
Whoever wrote what is not synced is remembered, because storage that several hosts share loses only
what was in the cache of the host that died. A journal that is never synced is written out by itself
in the end: a directory has at most `UNSYNCED_NAMES_MAX` names that can be lost.

Not modelled: hard and symbolic links, permissions, times; content that is overwritten in place
(services append, cut and replace); two hosts with unsynced content in one file (the last writer
owns all of it).

Every operation is a generator: it is run to its end, or, where it is to stand still after each
system call that changed something, left in the middle as a death leaves it.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar

from simulator.world.disk_faults import DiskFaults, disk_error

ResultT = TypeVar("ResultT")
Steps = Generator[None, None, ResultT]
Unsynced = Literal["dropped", "zeroed", "torn"]

#: Names of one directory whose change can still be lost; older changes are on the medium.
UNSYNCED_NAMES_MAX = 1024
#: Paths whose parts are remembered.
_PATHS_KEPT_MAX = 1 << 16
#: What may stand behind the last slash of a path, and names nothing.
_NO_NAMES = ("", ".", "..")


class PowerLoss(Exception):
    """The power is off: raised by the operation it cut and by every one until `power_on`."""


@dataclass(eq=False, slots=True)
class FileNode:
    """A file. On the medium is `data[:clean] + lost_tail`."""

    data: bytearray = field(default_factory=bytearray)
    clean: int = 0
    #: What a cut that was not synced has taken from the content on the medium.
    lost_tail: bytes = b""
    #: Whose unsynced content it is.
    writer: str = ""
    #: Bytes that it counts as, where that is not its content.
    modelled_bytes: int | None = None
    #: Whether a directory has it: only then does it take room.
    linked: bool = True
    #: The boot in which it was locked; a lock does not outlive it.
    locked_in_boot: int | None = None

    @property
    def size_bytes(self) -> int:
        """Its size, as others are told."""
        return len(self.data) if self.modelled_bytes is None else self.modelled_bytes

    def durable(self) -> bytes:
        """The content on the medium."""
        return bytes(self.data[: self.clean]) + self.lost_tail

    def make_durable(self) -> None:
        """The content that processes see goes to the medium."""
        self.clean = len(self.data)
        self.lost_tail = b""

    def cut(self, size: int) -> None:
        """Cut or extend it to `size` bytes."""
        if size < self.clean:
            self.lost_tail = bytes(self.data[size : self.clean]) + self.lost_tail
            self.clean = size
        if size > len(self.data):
            self.data += bytes(size - len(self.data))
        del self.data[size:]


@dataclass(eq=False, slots=True)
class _Before:
    """What a name was on the medium, and who has changed it since."""

    node: FileNode | DirectoryNode | None
    writer: str


@dataclass(eq=False, slots=True)
class DirectoryNode:
    """A directory: what its names stand for, and what the unsynced ones were before."""

    entries: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    unsynced: dict[str, _Before] = field(default_factory=dict)

    def put(
        self, name: str, node: FileNode | DirectoryNode | None, writer: str
    ) -> FileNode | DirectoryNode | None:
        """Let a name stand for a node, or for nothing; returns what it stood for."""
        replaced = self.entries.get(name)
        before = self.unsynced.get(name)
        if before is None:
            self.unsynced[name] = _Before(replaced, writer)
            if len(self.unsynced) > UNSYNCED_NAMES_MAX:
                del self.unsynced[next(iter(self.unsynced))]
        else:
            before.writer = writer
        if node is None:
            del self.entries[name]
        else:
            self.entries[name] = node
        return replaced

    def make_durable(self) -> None:
        """The names go to the medium."""
        self.unsynced.clear()


Node = FileNode | DirectoryNode


def finish(steps: Steps[ResultT]) -> ResultT:
    """Run an operation to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result


@lru_cache(maxsize=_PATHS_KEPT_MAX)
def path_parts(path: str) -> tuple[str, ...]:
    """The names of an absolute path."""
    if not path.startswith("/"):
        raise ValueError(f"paths are absolute, not {path!r}")
    return tuple(part for part in posixpath.normpath(path).split("/") if part)


def survivor_of(unsynced: Unsynced) -> Callable[[bytes], bytes]:
    """What a loss leaves of unsynced content: nothing, zeros, or its first half."""
    survivors: dict[Unsynced, Callable[[bytes], bytes]] = {
        "dropped": lambda _: b"",
        "zeroed": lambda content: bytes(len(content)),
        "torn": lambda content: content[: len(content) // 2],
    }
    return survivors[unsynced]


class Medium:
    """The tree of files, its power and its faults. See the module."""

    def __init__(
        self,
        unsynced: Unsynced | Callable[[bytes], bytes] = "dropped",
        capacity_bytes: int = 1 << 30,
    ) -> None:
        """`unsynced` says what a loss of power does to content that grew unsynced: it is
        "dropped", reads as zeros ("zeroed"), loses its second half ("torn"), or is what the
        function makes of it."""
        self._survivor = survivor_of(unsynced) if isinstance(unsynced, str) else unsynced
        self.capacity_bytes = capacity_bytes
        #: Bytes that files take, modelled sizes included.
        self.used_bytes = 0
        self.faults = DiskFaults(lambda: self.capacity_bytes - self.used_bytes)
        self.root = DirectoryNode()
        #: Changes of content or names, since the start.
        self._changes = 0
        self._remembered: dict[Any, Any] = {}
        self._remembered_since = 0
        #: Directories that were looked into, by path: they are few, and files are many. Emptied
        #: when a directory leaves its place.
        self._directories: dict[str, DirectoryNode] = {}
        self.is_on = True
        """Whether it serves; not so between a loss of power and `power_on`."""
        self.boot = 0
        self.mutations = 0
        """System calls that changed something, since the start."""
        self.operations: list[tuple[str, str]] = []
        """Every operation with its path, in order, while `keep_operations`."""
        self.keep_operations = True
        #: Whether operations stand still at their steps, for who leaves them in the middle.
        self.stepwise = False
        self._cut_after: int | None = None
        self._temporaries = 0
        #: Hosts that have something to lose. A dict for its order.
        self.writers_unsynced: dict[str, None] = {}

    # ------------------------------------------------------------------ power

    def power_loss(self) -> None:
        """Forget what is not on the medium, at once; operations then raise `PowerLoss`."""
        self.is_on = False
        self.boot += 1
        self.writers_unsynced.clear()
        self._lose(self.root, None)
        self.used_bytes = self._count(self.root)

    def power_on(self) -> None:
        """Serve again what is on the medium."""
        self.is_on = True
        self._cut_after = None

    def lose_unsynced_of(self, writer: str) -> None:
        """Forget what this host has not synced, while the storage itself lives on."""
        if writer in self.writers_unsynced:
            del self.writers_unsynced[writer]
            self._lose(self.root, writer)
            self.used_bytes = self._count(self.root)

    def cut_after_mutation(self, n: int) -> None:
        """Lose the power right after the n-th mutation from now (n = 1 is the next one)."""
        self._cut_after = self.mutations + n

    def _lose(self, node: Node, writer: str | None) -> None:
        """Go back to the medium, below a node; for one writer only, or for all (None)."""
        self._directories.clear()
        self._changes += 1
        if isinstance(node, FileNode):
            if writer is None or node.writer == writer:
                self._lose_content(node)
            return
        for name, before in list(node.unsynced.items()):
            if writer is not None and before.writer != writer:
                continue
            del node.unsynced[name]
            gone = node.entries.pop(name, None)
            if gone is not None:
                self._unlink(gone)
            if before.node is not None:
                node.entries[name] = before.node
        for child in node.entries.values():
            self._lose(child, writer)

    def _lose_content(self, file: FileNode) -> None:
        if file.clean == len(file.data) and not file.lost_tail:
            return
        durable = file.durable()
        survivor = durable + self._survivor(bytes(file.data[len(durable) :]))
        if survivor != file.data:
            file.modelled_bytes = None
        file.data = bytearray(survivor)
        file.make_durable()

    def _count(self, node: Node) -> int:
        """The bytes that files below a node take."""
        if isinstance(node, FileNode):
            node.linked = True
            return node.size_bytes
        return sum(self._count(child) for child in node.entries.values())

    # ------------------------------------------------------------------ faults and bookkeeping

    def remembered(self) -> dict[Any, Any] | None:
        """What readers have made of files, by their paths, to be added to: empty after every change
        of the storage; None while reading could fail."""
        if not self.is_on or self.faults.active:
            return None
        if self._remembered_since != self._changes:
            self._remembered.clear()
            self._remembered_since = self._changes
        return self._remembered

    def begin(self, operation: str, path: str) -> None:
        """Note an operation; raise what is due: `PowerLoss`, or a fault's `OSError`."""
        if not self.is_on:
            raise PowerLoss(f"{operation} {path}: the power is off")
        if self.keep_operations:
            self.operations.append((operation, path))
        if self.faults.active:
            self.faults.check(operation, path)

    def begin_on_handle(self, operation: str, path: str, boot: int) -> None:
        """The same for an open file, which does not outlive its boot."""
        if boot != self.boot:
            raise PowerLoss(f"{operation} {path}: the file was open when the power went")
        self.begin(operation, path)

    def mutated(self) -> bool:
        """Count a system call that changed something; whether to stand still after it."""
        self.mutations += 1
        if self._cut_after is not None and self.mutations >= self._cut_after:
            self.power_loss()
            raise PowerLoss(f"the power went after mutation {self.mutations}")
        return self.stepwise

    def overwrite(self, path: str, data: bytes) -> None:
        """Damage a file: replace its content, on the medium too."""
        file = self.file(path)
        before = file.size_bytes
        file.data[:] = data
        file.make_durable()
        self.resized(file, file.size_bytes - before)

    def model_size(self, path: str, n_bytes: int, file: FileNode | None = None) -> None:
        """Let the file at a path, which may be given, count as `n_bytes` for `stat`, for free room
        and for the storage being full.

        Raises `OSError`: there is no such file, or no room.
        """
        file = file or self.file(path)
        more_bytes = n_bytes - file.size_bytes
        if more_bytes > self.room_bytes():
            raise disk_error(errno.ENOSPC, path)
        file.modelled_bytes = n_bytes
        self.resized(file, more_bytes)

    def room_bytes(self) -> int:
        """Bytes that can still be written."""
        return self.faults.room_bytes()

    def resized(self, file: FileNode, more_bytes: int) -> None:
        """Count a change of a file, by which it takes so much more, or less."""
        self._changes += 1
        if file.linked:
            self.used_bytes += more_bytes

    # ------------------------------------------------------------------ the tree

    def node(self, path: str) -> Node:
        """What a path stands for; the `OSError` says why it is nothing."""
        directory, _, name = path.rpartition("/")
        if not directory or name in _NO_NAMES:
            return self._below(path_parts(path), path)
        near = self._directories.get(directory)
        if near is None:
            node = self._below(path_parts(directory), path)
            if isinstance(node, FileNode):
                raise disk_error(errno.ENOTDIR, path)
            near = self._directories[directory] = node
        below = near.entries.get(name)
        if below is None:
            raise disk_error(errno.ENOENT, path)
        return below

    def _below(self, names: tuple[str, ...], path: str) -> Node:
        node: Node = self.root
        for name in names:
            if isinstance(node, FileNode):
                raise disk_error(errno.ENOTDIR, path)
            below = node.entries.get(name)
            if below is None:
                raise disk_error(errno.ENOENT, path)
            node = below
        return node

    def place(self, path: str) -> tuple[DirectoryNode, str]:
        """The directory that has, or would have, the path's last name."""
        directory, _, name = path.rpartition("/")
        near = self._directories.get(directory)
        if near is None:
            near = self._directories[directory] = self.directory(directory or "/")
        return near, name

    def file(self, path: str) -> FileNode:
        """The file at a path."""
        node = self.node(path)
        if isinstance(node, DirectoryNode):
            raise disk_error(errno.EISDIR, path)
        return node

    def directory(self, path: str) -> DirectoryNode:
        """The directory at a path."""
        node = self.node(path)
        if isinstance(node, FileNode):
            raise disk_error(errno.ENOTDIR, path)
        return node

    def files_below(self, path: str, directory: DirectoryNode) -> Iterator[tuple[str, FileNode]]:
        """All files below a directory, with their paths."""
        for name, node in directory.entries.items():
            if isinstance(node, FileNode):
                yield f"{path}/{name}", node
            else:
                yield from self.files_below(f"{path}/{name}", node)

    def put(self, directory: DirectoryNode, name: str, node: Node | None, writer: str) -> None:
        """Let a name stand for something else; what it stood for takes no room any more."""
        self._changes += 1
        replaced = directory.put(name, node, writer)
        self.writers_unsynced[writer] = None
        if replaced is not None:
            self._unlink(replaced)

    def move(
        self, source: tuple[DirectoryNode, str], target: tuple[DirectoryNode, str], writer: str
    ) -> None:
        """Give a node another name."""
        node = source[0].entries[source[1]]
        if isinstance(node, DirectoryNode):
            self._directories.clear()
        source[0].put(source[1], None, writer)
        self.put(*target, node, writer)

    def _unlink(self, node: Node) -> None:
        if isinstance(node, FileNode):
            if node.linked:
                node.linked = False
                self.used_bytes -= node.size_bytes
        else:
            self._directories.clear()
            for child in node.entries.values():
                self._unlink(child)

    def temporary_name(self, name: str) -> str:
        """A name beside `name` that nothing else has."""
        self._temporaries += 1
        return f".{name}.{self._temporaries:x}.tmp"
