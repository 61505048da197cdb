"""Leadership by an exclusive lock on a file (`high-availability.type: file`).

Under `<storage directory>/leader`:

- `lock` is locked by the leader's process, and free as soon as that process is dead;
- `epoch` holds the newest epoch as decimal digits, raised durably before a leadership is acted on;
- `record.json` tells others `{"epoch": ..., "address": ...}`.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
from collections.abc import AsyncIterator

from holdover.coordination.leader import (
    LeaderRecord,
    Leadership,
    LeaderStateDamaged,
    polled_changes,
)
from holdover.runtime import (
    Disk,
    FileLock,
    Randomness,
    Runtime,
    StorageNotWritable,
)
from holdover.runtime.log import Log
from holdover.runtime.supervisor import RestartPolicy, Supervisor

# A poll waits between this part of its interval and the whole, so that candidates do not march in
# step.
_JITTER_FROM = 0.5

_log = Log(__name__)


class FileLeaderElection:
    """A candidate among the processes that share one directory. See `LeaderElection`."""

    def __init__(
        self, runtime: Runtime, storage_directory: str, poll_interval_s: float = 0.2
    ) -> None:
        self._disk = runtime.disk
        self._randomness = runtime.randomness
        self._files = _LeaderFiles(runtime.disk, storage_directory)
        self._poll_interval_s = poll_interval_s
        self._lock: FileLock | None = None
        self._epoch = 0
        self._lost = asyncio.Event()
        self._supervisor: Supervisor | None = None

    @property
    def lost(self) -> asyncio.Event:
        """See `LeaderElection.lost`."""
        return self._lost

    def is_leader(self) -> bool:
        """See `LeaderElection.is_leader`."""
        return self._lock is not None and not self._lost.is_set()

    async def campaign(self, address: str) -> Leadership:
        """See `LeaderElection.campaign`."""
        if self._lock is not None:
            raise RuntimeError("step down before campaigning again")
        self._lost = asyncio.Event()
        try:
            await self._disk.make_directories(self._files.directory)
            lock = await self._wait_for_lock()
        except OSError as error:
            raise StorageNotWritable(self._files.directory, error) from error
        try:
            epoch = await self._files.newest_epoch() + 1
            await self._files.publish_epoch(epoch)
            await self._files.publish_record(LeaderRecord(epoch, address))
        except BaseException as error:
            await lock.release()
            if isinstance(error, OSError) and not isinstance(error, LeaderStateDamaged):
                raise StorageNotWritable(self._files.directory, error) from error
            raise
        self._lock = lock
        self._epoch = epoch
        self._supervisor = Supervisor("file leader election", on_fatal=self._on_fatal)
        self._supervisor.run("watch for a newer leader", self._watch, restart=RestartPolicy())
        _log.info("leadership won", epoch=epoch, address=address)
        return Leadership(epoch)

    async def step_down(self) -> None:
        """See `LeaderElection.step_down`."""
        lock, self._lock = self._lock, None
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.close()
        if lock is not None:
            self._lost.set()
            await lock.release()
            _log.info("leadership given up", epoch=self._epoch)

    async def _wait_for_lock(self) -> FileLock:
        waiting = False
        while True:
            lock = await self._disk.lock(self._files.lock_path)
            if lock is not None:
                return lock
            if not waiting:
                _log.info(
                    "waiting for leadership: another process leads", lock=self._files.lock_path
                )
                waiting = True
            await asyncio.sleep(_poll_delay_s(self._randomness, self._poll_interval_s))

    async def _watch(self) -> None:
        """The lock cannot be taken away, but its directory can be replaced under it, and another
        process may then lead: a larger epoch in the file is the proof."""
        while True:
            await asyncio.sleep(_poll_delay_s(self._randomness, self._poll_interval_s))
            newest = await self._files.newest_epoch()
            if newest > self._epoch and not self._lost.is_set():
                _log.error(
                    "leadership lost: a newer leader exists", epoch=self._epoch, newer=newest
                )
                self._lost.set()

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        raise AssertionError(f"{name} restarts for ever") from exception


class FileLeaderRetrieval:
    """Finds the leader by polling the record. See `LeaderRetrieval`."""

    def __init__(
        self, runtime: Runtime, storage_directory: str, poll_interval_s: float = 0.2
    ) -> None:
        self._randomness = runtime.randomness
        self._files = _LeaderFiles(runtime.disk, storage_directory)
        self._poll_interval_s = poll_interval_s

    async def current(self) -> LeaderRecord | None:
        """See `LeaderRetrieval.current`."""
        return await self._files.record()

    def changes(self) -> AsyncIterator[LeaderRecord]:
        """See `LeaderRetrieval.changes`."""
        return polled_changes(
            self.current, lambda: _poll_delay_s(self._randomness, self._poll_interval_s)
        )


class FileLeaderService:
    """Leadership among the processes that share one directory. See `LeaderService`."""

    def __init__(self, runtime: Runtime, storage_directory: str) -> None:
        self._runtime = runtime
        self._storage_directory = storage_directory

    def election(self) -> FileLeaderElection:
        """See `LeaderService.election`."""
        return FileLeaderElection(self._runtime, self._storage_directory)

    def retrieval(self) -> FileLeaderRetrieval:
        """See `LeaderService.retrieval`."""
        return FileLeaderRetrieval(self._runtime, self._storage_directory)


class _LeaderFiles:
    """The epoch and the record on disk."""

    def __init__(self, disk: Disk, storage_directory: str) -> None:
        self._disk = disk
        self.directory = posixpath.join(storage_directory, "leader")
        self.lock_path = posixpath.join(self.directory, "lock")
        self._epoch_path = posixpath.join(self.directory, "epoch")
        self._record_path = posixpath.join(self.directory, "record.json")

    async def newest_epoch(self) -> int:
        """The largest epoch that is stored anywhere, 0 when there never was a leader.

        The record is asked too: where the epoch file was lost, its number must not come back.
        """
        record = await self.record()
        recorded = 0 if record is None else record.epoch
        try:
            text = await self._disk.read(self._epoch_path)
        except FileNotFoundError:
            return recorded
        digits = text.strip()
        if not digits.isdigit():
            raise LeaderStateDamaged(self._epoch_path, "it does not hold a number")
        return max(recorded, int(digits))

    async def publish_epoch(self, epoch: int) -> None:
        await self._disk.publish(self._epoch_path, b"%d\n" % epoch)

    async def record(self) -> LeaderRecord | None:
        try:
            text = await self._disk.read(self._record_path)
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(text)
            return LeaderRecord(epoch=int(fields["epoch"]), address=str(fields["address"]))
        except (ValueError, KeyError, TypeError) as error:
            raise LeaderStateDamaged(
                self._record_path, f"it is not a leader record: {error}"
            ) from error

    async def publish_record(self, record: LeaderRecord) -> None:
        text = json.dumps({"epoch": record.epoch, "address": record.address})
        await self._disk.publish(self._record_path, text.encode() + b"\n")


def _poll_delay_s(randomness: Randomness, interval_s: float) -> float:
    return randomness.uniform(_JITTER_FROM * interval_s, interval_s)
