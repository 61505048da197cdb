"""How a process uses the disks of its world.

Model: an operation takes its time (`simulator.world.storages`) and takes effect at the end of it,
in the process's name: a paused process finishes what it began when it goes on, as one that was
fenced meanwhile does. A process that dies in between leaves, as the seed decides, nothing,
everything, or a part of it. Its locks are free at that moment, on the shared storage as well; a
paused process keeps them. Every change is in the trace.

Not modelled: caches (a read costs its bytes each time), locks on a network file system that outlive
their owner.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdover.runtime import AppendFile, Entry, FileLock, FileStat
from simulator.world.disk_faults import disk_error
from simulator.world.medium import FileNode, PowerLoss, Steps, finish
from simulator.world.promise import Promise
from simulator.world.storage import SimulatedStorage
from simulator.world.storages import Device

if TYPE_CHECKING:
    from simulator.world.process import Process
    from simulator.world.world import World

ResultT = TypeVar("ResultT")

_PUBLISH_SYNCS = 2
_WRITING = ("open_append", "write")
#: What an operation may raise. Anything else is an error in the simulator and goes to the loop.
_OPERATION_ERRORS = (OSError, PowerLoss, ValueError)


class NewFile(NamedTuple):
    """A file to write; it counts as at least `n_bytes` large."""

    path: str
    content: bytes
    n_bytes: int


@dataclass(eq=False, slots=True)
class _Change:
    """A mutating operation under way. `interrupted` does what a death leaves of it, where that is
    not some of its steps."""

    storage: SimulatedStorage
    steps: Steps[object]
    operation: str
    path: str
    interrupted: Callable[[random.Random], None] | None


class ProcessDisk:
    """The disks as one process has them. See `Disk`, and the module."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._storages = world.storages
        self._process = process
        #: Where a path is.
        self._device = partial(world.storages.device, process.host)
        self._writer = process.host.name
        self._under_way: dict[_Change, None] = {}
        self._held: dict[FileNode, ProcessLock] = {}
        process.on_end(self._process_ended)

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `Disk.read`."""
        device = self._device(path)
        n_bytes = 0
        with suppress(OSError):
            n_bytes = max(0, len(device.storage.file(path).data) - offset)
        n_bytes = n_bytes if length is None else min(n_bytes, length)
        work = partial(device.storage.read_now, path, offset, length)
        return await self._look(device, "read", path, work, n_bytes)

    async def publish(self, path: str, data: bytes) -> None:
        """See `Disk.publish`."""
        device = self._device(path)
        steps = device.storage.publish_steps(path, data, self._writer)
        await self.change(device, "publish", path, steps, len(data), _PUBLISH_SYNCS)

    async def publish_new(self, path: str, data: bytes) -> None:
        """See `Disk.publish_new`."""
        device = self._device(path)
        steps = device.storage.publish_new_steps(path, data, self._writer)
        await self.change(device, "publish", path, steps, len(data), _PUBLISH_SYNCS)

    async def open_append(self, path: str) -> AppendFile:
        """See `Disk.open_append`."""
        device = self._device(path)
        steps = device.storage.open_steps(path, self._writer)
        file = await self.change(device, "open_append", path, steps)
        return ProcessFile(self, device, path, file)

    async def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        device = self._device(path)
        steps = device.storage.sync_directory_steps(path)
        await self.change(device, "sync_directory", path, steps, syncs=1)

    async def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        device = self._device(source)
        if self._device(target) is not device:
            raise disk_error(errno.EXDEV, source)
        steps = device.storage.rename_steps(source, target, self._writer)
        await self.change(device, "rename", source, steps)

    async def remove(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove`."""
        device = self._device(path)
        steps = device.storage.remove_steps(path, missing_ok, self._writer)
        await self.change(device, "remove", path, steps)

    async def remove_all(self, paths: Sequence[str]) -> list[OSError]:
        """See `Disk.remove_all`. It hangs where one of them would."""
        if not paths:
            return []
        device = self._device(paths[0])
        faults = device.storage.faults
        _, path = faults.first_that_hangs(("remove", path) for path in paths) or ("", paths[0])
        steps = device.storage.remove_all_steps(paths, self._writer)
        return await self.change(device, "remove", path, steps, operations=len(paths))

    async def remove_tree(self, path: str, missing_ok: bool = False) -> None:
        """See `Disk.remove_tree`."""
        device = self._device(path)
        steps = device.storage.remove_tree_steps(path, missing_ok, self._writer)
        await self.change(device, "remove_tree", path, steps)

    async def make_directories(self, path: str) -> None:
        """See `Disk.make_directories`."""
        device = self._device(path)
        steps = device.storage.make_directories_steps(path, self._writer)
        await self.change(device, "make_directories", path, steps, syncs=1)

    async def make_directory(self, path: str) -> None:
        """Create the directory, durably; an existing one is fine, a missing parent is not: as a
        task process does it."""
        device = self._device(path)
        steps = device.storage.make_directory_steps(path, self._writer)
        await self.change(device, "make_directories", path, steps, syncs=1)

    async def list_directory(self, path: str) -> list[Entry]:
        """See `Disk.list_directory`."""
        device = self._device(path)
        work = partial(device.storage.list_directory_now, path)
        return await self._look(device, "list_directory", path, work)

    async def stat(self, path: str) -> FileStat | None:
        """See `Disk.stat`."""
        device = self._device(path)
        return await self._look(device, "stat", path, partial(device.storage.stat_now, path))

    async def glob(self, pattern: str) -> list[FileStat]:
        """See `Disk.glob`."""
        device = self._device(pattern)
        return await self._look(device, "glob", pattern, partial(device.storage.glob_now, pattern))

    async def lock(self, path: str) -> FileLock | None:
        """See `Disk.lock`."""
        device = self._device(path)
        locking = self._locking(device.storage, path)
        return await self.change(device, "lock", path, locking, interrupted=lambda _: None)

    async def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        device = self._device(path)
        work = partial(device.storage.free_bytes_now, path)
        return await self._look(device, "free_bytes", path, work)

    # ------------------------------------------------------------------ for files and locks

    def change(
        self,
        device: Device,
        operation: str,
        path: str,
        steps: Steps[ResultT],
        n_bytes: int = 0,
        syncs: int = 0,
        interrupted: Callable[[random.Random], None] | None = None,
        operations: int = 1,
    ) -> Promise[ResultT]:
        """Do something that changes the storage; it takes effect even when the caller leaves."""
        promise: Promise[ResultT] = Promise(loop=self._world.loop)
        change = _Change(device.storage, steps, operation, path, interrupted)
        self._under_way[change] = None
        work = partial(self._carry_out, change, promise)
        self._begin(device, operation, path, work, n_bytes, syncs, operations)
        return promise

    async def write_files(self, files: Sequence[NewFile]) -> None:
        """Open and write new files of one directory, each after the one before, and leave them
        unsynced. Takes the time of all these operations, and takes effect at the end of it.

        Raises the `OSError` of the first that fails; those before it are written.
        """
        device = self._device(files[0].path)
        faults = device.storage.faults
        hanging = faults.first_that_hangs(
            (operation, file.path) for file in files for operation in _WRITING
        )
        operation, path = hanging or ("write", files[-1].path)
        n_bytes = sum([len(file.content) for file in files])
        steps = _written(device.storage, files, self._writer)
        operations = len(files) * len(_WRITING)
        await self.change(device, operation, path, steps, n_bytes, operations=operations)

    def hold(self, file: FileNode, lock: ProcessLock) -> None:
        """Remember a lock that ends with the process."""
        self._held[file] = lock

    def let_go(self, file: FileNode) -> None:
        """Forget a lock."""
        self._held.pop(file, None)

    @property
    def writer(self) -> str:
        """In whose cache it is what the process writes."""
        return self._writer

    # ------------------------------------------------------------------ inside

    def _look(
        self,
        device: Device,
        operation: str,
        path: str,
        work: Callable[[], ResultT],
        n_bytes: int = 0,
    ) -> Promise[ResultT]:
        """Do something that only reads."""
        promise: Promise[ResultT] = Promise(loop=self._world.loop)
        self._begin(device, operation, path, partial(_look, promise, work), n_bytes, 0, 1)
        return promise

    def _begin(
        self,
        device: Device,
        operation: str,
        path: str,
        end: Callable[[], None],
        n_bytes: int,
        syncs: int,
        operations: int,
    ) -> None:
        """Let an operation end when its time has passed; one that hangs begins when healed."""
        faults = device.storage.faults
        process, loop = self._process, self._world.loop
        if not process.alive:
            return
        if faults.active and faults.hangs(operation, path):
            again = partial(self._begin, device, operation, path, end, n_bytes, syncs, operations)
            faults.when_healed(again)
            return
        end_s = loop.now_s + device.duration_s(loop.now_s, path, n_bytes, syncs, operations)
        loop.call_of(process, end_s, end)

    def _carry_out(self, change: _Change, promise: Promise[Any]) -> None:
        """Do it and tell whoever waits, if anybody still does."""
        del self._under_way[change]
        name, note = self._process.name, self._world.trace.note
        try:
            result = finish(change.steps)
        except _OPERATION_ERRORS as error:
            if isinstance(error, OSError):
                code = errno.errorcode.get(error.errno or 0, "?")
                note(name, change.operation, f"{change.path} {code}")
            if not promise.done():
                promise.set_exception(error)
            return
        note(name, change.operation, change.path)
        if not promise.done():
            promise.wake(result)
        elif isinstance(result, ProcessLock):
            result.free()

    def _locking(self, storage: SimulatedStorage, path: str) -> Steps[ProcessLock | None]:
        file = yield from storage.lock_steps(path, self._writer)
        return ProcessLock(self, storage, file) if file is not None else None

    def _process_ended(self) -> None:
        chance = self._storages.chance
        changes, self._under_way = list(self._under_way), {}
        for change in changes:
            done = _interrupt(change, chance)
            self._world.trace.note(
                self._process.name, "interrupted", f"{change.operation} {change.path} {done}"
            )
        for lock in list(self._held.values()):
            lock.free()


class ProcessFile:
    """An open file of a process. See `AppendFile`."""

    def __init__(self, disk: ProcessDisk, device: Device, path: str, file: FileNode) -> None:
        self._disk = disk
        self._device = device
        self._storage = device.storage
        self._path = path
        self._file = file
        self._boot = device.storage.boot
        self._closed = False

    @property
    def path(self) -> str:
        """See `AppendFile.path`."""
        return self._path

    async def write(self, data: bytes) -> None:
        """See `AppendFile.write`."""
        self._check_open()
        steps = self._storage.write_steps(
            self._path, self._file, self._boot, data, self._disk.writer
        )

        def interrupted(chance: random.Random) -> None:
            part = data[: int(chance.random() * (len(data) + 1))]
            finish(
                self._storage.write_steps(
                    self._path, self._file, self._boot, part, self._disk.writer
                )
            )

        await self._disk.change(
            self._device, "write", self._path, steps, len(data), interrupted=interrupted
        )

    async def sync(self) -> None:
        """See `AppendFile.sync`."""
        self._check_open()
        steps = self._storage.sync_steps(self._path, self._file, self._boot)
        n_bytes = len(self._file.data) - self._file.clean
        await self._disk.change(self._device, "sync", self._path, steps, n_bytes, syncs=1)

    async def truncate(self, size: int) -> None:
        """See `AppendFile.truncate`."""
        self._check_open()
        steps = self._storage.truncate_steps(
            self._path, self._file, self._boot, size, self._disk.writer
        )
        await self._disk.change(self._device, "truncate", self._path, steps)

    async def close(self) -> None:
        """See `AppendFile.close`."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self._path} is closed")


class ProcessLock:
    """A lock that ends with its process. See `FileLock`."""

    def __init__(self, disk: ProcessDisk, storage: SimulatedStorage, file: FileNode) -> None:
        self._disk = disk
        self._storage = storage
        self._file = file
        self._boot = storage.boot
        self._free = False
        disk.hold(file, self)

    async def release(self) -> None:
        """See `FileLock.release`."""
        self.free()

    def free(self) -> None:
        """Let others have it, now."""
        if not self._free:
            self._free = True
            self._disk.let_go(self._file)
            self._storage.unlock(self._file, self._boot)


def _written(storage: SimulatedStorage, files: Sequence[NewFile], writer: str) -> Steps[None]:
    for path, content, n_bytes in files:
        file = yield from storage.open_steps(path, writer)
        yield from storage.write_steps(path, file, storage.boot, content, writer)
        if n_bytes > len(content):
            storage.model_size(path, n_bytes, file)


def _look(promise: Promise[ResultT], work: Callable[[], ResultT]) -> None:
    """Tell whoever waits what there is, if anybody still waits."""
    try:
        result = work()
    except _OPERATION_ERRORS as error:
        if not promise.done():
            promise.set_exception(error)
        return
    if not promise.done():
        promise.wake(result)


def _interrupt(change: _Change, chance: random.Random) -> str:
    """Leave an operation as a death leaves it: not begun, all done, or somewhere in between."""
    draw = chance.random()
    try:
        if draw < 1 / 3:
            return "undone"
        if change.interrupted is not None:
            change.interrupted(chance)
            return "partly"
        if draw < 2 / 3:
            finish(change.steps)
            return "done"
        change.storage.stepwise = True
        while chance.random() < 2 / 3:
            next(change.steps)
    except StopIteration:
        return "done"
    except _OPERATION_ERRORS:
        return "failed"
    finally:
        change.storage.stepwise = False
        change.steps.close()
    return "partly"
