"""What can be wrong with a storage, by path pattern and operation.

Model: an operation fails with an errno, a given number of times or until healed; a storage is
read-only; an operation hangs until healed (then it goes on as if it had begun at that moment); an
operation takes longer. Hanging and slowness are a matter of time: a storage that is used without a
world ignores them. Not modelled: bits that rot unnoticed (`SimulatedStorage.overwrite` damages a
file), errors that strike only part of a device.

Operations are named by the methods of `Disk`: read write sync truncate publish open_append
sync_directory rename remove remove_tree make_directories list_directory stat glob lock free_bytes.
Patterns are those of `fnmatch`; a rename is judged by its source.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

#: What a read-only storage refuses. `lock` creates its file, as `open_append` does.
MUTATING_OPERATIONS = frozenset(
    (
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
)


def disk_error(number: int, path: str) -> OSError:
    """The error with its text and file name, as the operating system gives it."""
    return OSError(number, os.strerror(number), path)


@dataclass(slots=True)
class _Failure:
    operation: str
    path_pattern: str
    errno: int
    skip: int
    times: int | None


@dataclass(slots=True)
class _Slowness:
    path_pattern: str
    factor: float


@dataclass(slots=True)
class _Hang:
    operation: str
    path_pattern: str


@dataclass
class DiskFaults:
    """The faults of one storage, settable at any time."""

    #: Every operation that changes something fails with EROFS.
    read_only: bool = False
    _failures: list[_Failure] = field(default_factory=list)
    _slownesses: list[_Slowness] = field(default_factory=list)
    _hangs: list[_Hang] = field(default_factory=list)
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    def fail(
        self,
        operation: str,
        error: int,
        path_pattern: str = "*",
        skip: int = 0,
        times: int | None = 1,
    ) -> None:
        """Make operations fail: after `skip` that succeed, `times` times (None: until healed)."""
        self._failures.append(_Failure(operation, path_pattern, error, skip, times))

    def slow(self, factor: float, path_pattern: str = "*") -> None:
        """Every operation takes `factor` times as long, until healed."""
        self._slownesses.append(_Slowness(path_pattern, factor))

    def hang(self, path_pattern: str = "*", operation: str = "*") -> None:
        """Operations that begin from now on do not end before `heal`."""
        self._hangs.append(_Hang(operation, path_pattern))

    def heal(self) -> None:
        """All faults are over; what hung goes on."""
        self.read_only = False
        self._failures.clear()
        self._slownesses.clear()
        self._hangs.clear()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def check(self, operation: str, path: str) -> None:
        """Raise the `OSError` that is due."""
        if self.read_only and operation in MUTATING_OPERATIONS:
            raise disk_error(errno.EROFS, path)
        for failure in self._failures:
            if not fnmatchcase(operation, failure.operation):
                continue
            if not fnmatchcase(path, failure.path_pattern):
                continue
            if failure.skip > 0:
                failure.skip -= 1
            elif failure.times is None:
                raise disk_error(failure.errno, path)
            elif failure.times > 0:
                failure.times -= 1
                raise disk_error(failure.errno, path)

    def factor(self, path: str) -> float:
        """How many times longer an operation takes."""
        factor = 1.0
        for slowness in self._slownesses:
            if fnmatchcase(path, slowness.path_pattern):
                factor *= slowness.factor
        return factor

    def hangs(self, operation: str, path: str) -> bool:
        """Whether an operation that begins now hangs."""
        return any(
            fnmatchcase(operation, hang.operation) and fnmatchcase(path, hang.path_pattern)
            for hang in self._hangs
        )

    def when_healed(self, go_on: Callable[[], None]) -> None:
        """Call once at the next `heal`."""
        self._waiting.append(go_on)
