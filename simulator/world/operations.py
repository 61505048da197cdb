"""The operations of `Disk` on a medium, as steps.

What changes something is a generator: it begins with the check of power and faults, stands still
after each system call that changed something where the medium is `stepwise`, and returns the
operation's result. What only reads is a function. `writer` names the host whose cache holds what is
not synced.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from holdover.runtime import Entry, FileStat
from simulator.world.disk_faults import disk_error
from simulator.world.medium import (
    DirectoryNode,
    FileNode,
    Medium,
    Node,
    Steps,
    path_parts,
)

_WILDCARDS = frozenset("*?[")


class Operations(Medium):
    """See the module."""

    def read_now(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        self.begin("read", path)
        data = self.file(path).data
        if offset == 0 and length is None:
            return bytes(data)
        return bytes(data[offset:] if length is None else data[offset : offset + length])

    def publish_steps(self, path: str, data: bytes, writer: str = "") -> Steps[None]:
        """See `Disk.publish`. Five system calls."""
        self.begin("publish", path)
        directory, name = self.place(path)
        if isinstance(directory.entries.get(name), DirectoryNode):
            raise disk_error(errno.EISDIR, path)
        temporary = yield from self._write_temporary(directory, path, data, writer)
        self.move((directory, temporary), (directory, name), writer)
        if self.mutated():
            yield
        directory.make_durable()
        self.mutated()

    def publish_new_steps(self, path: str, data: bytes, writer: str = "") -> Steps[None]:
        """See `Disk.publish_new`. Six system calls: the new name, and the temporary one gone."""
        self.begin("publish", path)
        directory, name = self.place(path)
        temporary = yield from self._write_temporary(directory, path, data, writer)
        file, there = directory.entries[temporary], directory.entries.get(name)
        if there is None:
            self.put(directory, name, file, writer)
            if self.mutated():
                yield
            directory.put(temporary, None, writer)
        else:
            self.put(directory, temporary, None, writer)
        if self.mutated():
            yield
        if there is not None and not (isinstance(there, FileNode) and there.data == data):
            raise disk_error(errno.EEXIST, path)
        directory.make_durable()
        self.mutated()

    def open_steps(self, path: str, writer: str = "") -> Steps[FileNode]:
        """See `Disk.open_append`."""
        self.begin("open_append", path)
        directory, name = self.place(path)
        node = directory.entries.get(name)
        if isinstance(node, DirectoryNode):
            raise disk_error(errno.EISDIR, path)
        if node is None:
            node = FileNode(writer=writer)
            self.put(directory, name, node, writer)
            if self.mutated():
                yield
        return node

    def write_steps(
        self, path: str, file: FileNode, boot: int, data: bytes, writer: str = ""
    ) -> Steps[None]:
        """See `AppendFile.write`. A write that fails has written half of its bytes, or, on a full
        storage, what there was room for."""
        try:
            self.begin_on_handle("write", path, boot)
        except OSError:
            self._append(file, data[: len(data) // 2], writer)
            raise
        room = self.room_bytes()
        if file.linked and file.modelled_bytes is None and len(data) > room:
            self._append(file, data[:room], writer)
            raise disk_error(errno.ENOSPC, path)
        self._append(file, data, writer)
        if self.mutated():
            yield

    def sync_steps(self, path: str, file: FileNode, boot: int) -> Steps[None]:
        """See `AppendFile.sync`."""
        self.begin_on_handle("sync", path, boot)
        file.make_durable()
        if self.mutated():
            yield

    def truncate_steps(
        self, path: str, file: FileNode, boot: int, size: int, writer: str = ""
    ) -> Steps[None]:
        """See `AppendFile.truncate`."""
        self.begin_on_handle("truncate", path, boot)
        before = file.size_bytes
        file.cut(size)
        self._written(file, file.size_bytes - before, writer)
        if self.mutated():
            yield

    def sync_directory_steps(self, path: str) -> Steps[None]:
        """See `Disk.sync_directory`."""
        self.begin("sync_directory", path)
        self.directory(path).make_durable()
        if self.mutated():
            yield

    def rename_steps(self, source: str, target: str, writer: str = "") -> Steps[None]:
        """See `Disk.rename`."""
        self.begin("rename", source)
        node = self.node(source)
        directory, name = self.place(target)
        replaced = directory.entries.get(name)
        if isinstance(node, FileNode) and isinstance(replaced, DirectoryNode):
            raise disk_error(errno.EISDIR, target)
        if isinstance(node, DirectoryNode) and isinstance(replaced, FileNode):
            raise disk_error(errno.ENOTDIR, target)
        if isinstance(replaced, DirectoryNode) and replaced.entries:
            raise disk_error(errno.ENOTEMPTY, target)
        self.move(self.place(source), (directory, name), writer)
        if self.mutated():
            yield

    def remove_steps(self, path: str, missing_ok: bool = False, writer: str = "") -> Steps[None]:
        """See `Disk.remove`."""
        self.begin("remove", path)
        try:
            self.file(path)
        except FileNotFoundError:
            if missing_ok:
                return
            raise
        self.put(*self.place(path), None, writer)
        if self.mutated():
            yield

    def remove_all_steps(self, paths: Sequence[str], writer: str = "") -> Steps[list[OSError]]:
        """See `Disk.remove_all`."""
        failures: list[OSError] = []
        for path in paths:
            try:
                yield from self.remove_steps(path, missing_ok=True, writer=writer)
            except OSError as error:
                failures.append(error)
        return failures

    def remove_tree_steps(
        self, path: str, missing_ok: bool = False, writer: str = ""
    ) -> Steps[None]:
        """See `Disk.remove_tree`."""
        self.begin("remove_tree", path)
        try:
            directory = self.directory(path)
        except FileNotFoundError:
            if missing_ok:
                return
            raise
        yield from self._empty(directory, writer)
        parent, name = self.place(path)
        if parent.entries.get(name) is directory:
            self.put(parent, name, None, writer)
            if self.mutated():
                yield

    def make_directories_steps(self, path: str, writer: str = "") -> Steps[None]:
        """See `Disk.make_directories`. Two system calls for each that is missing."""
        self.begin("make_directories", path)
        directory = self.root
        for name in path_parts(path):
            node = directory.entries.get(name)
            if isinstance(node, FileNode):
                raise disk_error(errno.ENOTDIR, path)
            if node is None:
                node = DirectoryNode()
                self.put(directory, name, node, writer)
                if self.mutated():
                    yield
                directory.make_durable()
                if self.mutated():
                    yield
            directory = node

    def make_directory_steps(self, path: str, writer: str = "") -> Steps[None]:
        """The same for the directory alone: raises FileNotFoundError where it has no parent."""
        self.directory(path.rpartition("/")[0])
        yield from self.make_directories_steps(path, writer)

    def list_directory_now(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        self.begin("list_directory", path)
        return [
            Entry(name, isinstance(node, DirectoryNode), _size_bytes(node))
            for name, node in sorted(self.directory(path).entries.items(), key=lambda e: e[0])
        ]

    def stat_now(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        self.begin("stat", path)
        try:
            node = self.node(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(path, _size_bytes(node), isinstance(node, DirectoryNode))

    def glob_now(self, pattern: str) -> list[FileStat]:
        """See `Disk.glob`."""
        self.begin("glob", pattern)
        expression = _glob_expression(pattern)
        return [
            FileStat(path, file.size_bytes)
            for path, file in sorted(self._files_for(pattern), key=lambda found: found[0])
            if expression.fullmatch(path)
        ]

    def lock_steps(self, path: str, writer: str = "") -> Steps[FileNode | None]:
        """See `Disk.lock`. The lock is the file's, whatever name it gets later."""
        self.begin("lock", path)
        directory, name = self.place(path)
        node = directory.entries.get(name)
        if isinstance(node, DirectoryNode):
            raise disk_error(errno.EISDIR, path)
        if node is None:
            node = FileNode(writer=writer)
            self.put(directory, name, node, writer)
            if self.mutated():
                yield
        if node.locked_in_boot == self.boot:
            return None
        node.locked_in_boot = self.boot
        return node

    def unlock(self, file: FileNode, boot: int) -> None:
        """Free a lock of this boot."""
        if boot == self.boot:
            file.locked_in_boot = None

    def free_bytes_now(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        self.begin("free_bytes", path)
        self.node(path)
        return self.room_bytes()

    # ------------------------------------------------------------------ parts

    def _write_temporary(
        self, directory: DirectoryNode, path: str, data: bytes, writer: str
    ) -> Steps[str]:
        """A file that is durable, beside its place; the name that it has there."""
        if len(data) > self.room_bytes():
            raise disk_error(errno.ENOSPC, path)
        temporary, file = self.temporary_name(path.rpartition("/")[2]), FileNode(writer=writer)
        self.put(directory, temporary, file, writer)
        if self.mutated():
            yield
        file.data += data
        self.resized(file, len(data))
        if self.mutated():
            yield
        file.make_durable()
        if self.mutated():
            yield
        return temporary

    def _append(self, file: FileNode, data: bytes, writer: str) -> None:
        file.data += data
        self._written(file, len(data) if file.modelled_bytes is None else 0, writer)

    def _written(self, file: FileNode, more_bytes: int, writer: str) -> None:
        file.writer = writer
        self.writers_unsynced[writer] = None
        self.resized(file, more_bytes)

    def _empty(self, directory: DirectoryNode, writer: str) -> Steps[None]:
        for name, node in list(directory.entries.items()):
            if directory.entries.get(name) is not node:
                continue  # somebody else removed it meanwhile
            if isinstance(node, DirectoryNode):
                yield from self._empty(node, writer)
            self.put(directory, name, None, writer)
            if self.mutated():
                yield

    def _files_for(self, pattern: str) -> Iterator[tuple[str, FileNode]]:
        """The files below the part of a pattern that has no wildcards."""
        start: Node = self.root
        at = ""
        for part in path_parts(pattern):
            if not isinstance(start, DirectoryNode):
                return
            if not _WILDCARDS.isdisjoint(part):
                break
            below = start.entries.get(part)
            if below is None:
                return
            start, at = below, f"{at}/{part}"
        if isinstance(start, FileNode):
            yield at, start
        else:
            yield from self.files_below(at, start)


def _size_bytes(node: Node) -> int:
    return 0 if isinstance(node, DirectoryNode) else node.size_bytes


@lru_cache(maxsize=256)
def _glob_expression(pattern: str) -> re.Pattern[str]:
    return re.compile(
        "".join(
            "(?:/[^/.][^/]*)*" if part == "**" else "/" + _translate(part)
            for part in path_parts(pattern)
        )
    )


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
