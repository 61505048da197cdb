"""What can be wrong with a storage, by path pattern and operation.

Model: an operation fails with an errno, a given number of times or until healed; a storage is
read-only or full; an operation hangs until healed, and then goes on as if it had begun at that
moment; an operation takes longer. Hanging and slowness are a matter of time: a storage that is used
without a world ignores them.

Not modelled: bits that rot unnoticed (`SimulatedStorage.overwrite` damages a file), errors that
strike only part of a device.

Operations are named by the methods of `Disk`: read write sync truncate publish open_append
sync_directory rename remove remove_tree make_directories list_directory stat glob lock free_bytes;
`publish_new` is a publish, `remove_all` removes.
Patterns are those of `fnmatch`; a rename is judged by its source.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

#: What a read-only storage refuses. `lock` creates its file, as `open_append` does.
MUTATING_OPERATIONS = (
    "write",
    "sync",
    "truncate",
    "publish",
    "open_append",
    "sync_directory",
    "rename",
    "remove",
    "remove_tree",
    "make_directories",
    "lock",
)


def disk_error(number: int, path: str) -> OSError:
    """The error with its text and file name, as the operating system gives it."""
    return OSError(number, os.strerror(number), path)


#: Groups of operations that fail together where a device is broken.
OPERATION_GROUPS: dict[str, tuple[str, ...]] = {
    "read": ("read",),
    "write": ("write", "publish"),
    "sync": ("sync", "publish", "sync_directory"),
}


@dataclass(eq=False, slots=True)
class DiskFault:
    """One fault: the token by which it is healed.

    `times` is how often it still strikes, None for always; `factor` is slowness, `taken_bytes` the
    room that somebody else has taken.
    """

    operation_pattern: str = "*"
    path_pattern: str = "*"
    errno: int = 0
    skip: int = 0
    times: int | None = None
    factor: float = 1.0
    taken_bytes: int = 0
    hangs: bool = False

    def concerns(self, operation: str, path: str) -> bool:
        """Whether it is about this operation on this path."""
        return fnmatchcase(operation, self.operation_pattern) and fnmatchcase(
            path, self.path_pattern
        )


@dataclass
class DiskFaults:
    """The faults of one storage, settable at any time. Each method returns a token for `heal`."""

    #: Tells the room that the storage has, not counting what these faults take.
    free_bytes: Callable[[], int]
    #: Where there are none, nothing need be asked.
    active: list[DiskFault] = field(default_factory=list)
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    def fail(
        self,
        operation: str,
        error: int,
        path_pattern: str = "*",
        skip: int = 0,
        times: int | None = 1,
    ) -> DiskFault:
        """Make operations fail: after `skip` that succeed, `times` times (None: until healed)."""
        return self._add(DiskFault(operation, path_pattern, error, skip, times))

    def break_operation(
        self, group: str = "*", path_pattern: str = "*", error: int = errno.EIO
    ) -> list[DiskFault]:
        """Let all operations of a group of `OPERATION_GROUPS` (or by one name or pattern) fail."""
        operations = OPERATION_GROUPS.get(group, (group,))
        return [self.fail(name, error, path_pattern, times=None) for name in operations]

    def make_read_only(self, path_pattern: str = "*") -> list[DiskFault]:
        """Every operation that changes something fails with EROFS."""
        return [
            self.fail(name, errno.EROFS, path_pattern, times=None) for name in MUTATING_OPERATIONS
        ]

    def fill(self, left_bytes: int = 0) -> DiskFault:
        """Somebody else takes the room from now on: only so many bytes more can be written."""
        return self._add(DiskFault(taken_bytes=max(0, self.room_bytes() - left_bytes)))

    def slow(self, factor: float, path_pattern: str = "*") -> DiskFault:
        """Every operation that begins takes `factor` times as long."""
        return self._add(DiskFault(path_pattern=path_pattern, factor=factor))

    def hang(self, path_pattern: str = "*", operation: str = "*") -> DiskFault:
        """Operations that begin from now on do not end before they are healed."""
        return self._add(DiskFault(operation, path_pattern, hangs=True))

    def heal(self, token: DiskFault | list[DiskFault] | None = None) -> None:
        """A fault, or without a token every fault, is over; what hung goes on."""
        if token is None:
            self.active.clear()
        else:
            healed = token if isinstance(token, list) else [token]
            self.active = [fault for fault in self.active if fault not in healed]
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def check(self, operation: str, path: str) -> None:
        """Raise the `OSError` that is due."""
        for fault in self.active:
            if not fault.errno or not fault.concerns(operation, path):
                continue
            if fault.skip > 0:
                fault.skip -= 1
            elif fault.times is None:
                raise disk_error(fault.errno, path)
            elif fault.times > 0:
                fault.times -= 1
                raise disk_error(fault.errno, path)

    def factor(self, path: str) -> float:
        """How many times longer an operation takes: as long as the worst of all faults says."""
        concerned = [f.factor for f in self.active if f.factor != 1.0 and f.concerns("", path)]
        return max(concerned, default=1.0)

    def hangs(self, operation: str, path: str) -> bool:
        """Whether an operation that begins now hangs."""
        return any(fault.hangs and fault.concerns(operation, path) for fault in self.active)

    def first_that_hangs(self, operations: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
        """The first of several operations on paths that hangs when it begins now."""
        if not self.active:
            return None
        return next((each for each in operations if self.hangs(*each)), None)

    def room_bytes(self) -> int:
        """Bytes that can still be written."""
        taken = sum(fault.taken_bytes for fault in self.active)
        return max(0, self.free_bytes() - taken)

    def when_healed(self, go_on: Callable[[], None]) -> None:
        """Call once at the next `heal`; what still hangs then asks again."""
        self._waiting.append(go_on)

    def _add(self, fault: DiskFault) -> DiskFault:
        self.active.append(fault)
        return fault
