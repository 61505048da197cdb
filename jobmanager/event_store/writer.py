"""The asynchronous writer of a job's event log (FLIP-383, JobEventStore; cases P02, P05, P06, P08).

`append` only encodes into a buffer. A supervised loop writes the buffer out: one write and one sync
for all that has gathered (a backlog takes a write for each MiB or so), when the buffer is full, its
interval has passed, or somebody asks.

After any error the segment is sealed and the buffer dropped: memory stays bounded for however long
storage is away. The writer then tries a fresh segment that begins with a snapshot of the present
state, which contains whatever was dropped. The first segment of a leader that found an earlier log
begins with a snapshot too, so that it never builds on bytes that another process wrote; and so does
another one whenever the log has grown by enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import posixpath
from collections.abc import Callable, Collection

from holdover.runtime import Clock, Disk, ObjectStoreFenced
from holdover.runtime.log import Log
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.v1.events_pb2 import JobEvent, SnapshotBegin, SnapshotEnd
from jobmanager.event_store.compaction import LogGrowth
from jobmanager.event_store.errors import EventStoreDegraded, EventStoreFenced, EventTooLarge
from jobmanager.event_store.hang_guard import HangGuard
from jobmanager.event_store.record_encoder import RecordEncoder
from jobmanager.event_store.records import (
    RECORD_BYTES_MAX,
    SegmentHeader,
    SegmentId,
    encode_frame,
)
from jobmanager.event_store.segment_writer import SegmentWriter
from jobmanager.event_store.segments import next_index, remove_segments_before, sync_segments
from jobmanager.event_store.settings import EventWriterSettings
from jobmanager.event_store.status import EventStoreMode, EventStoreStatus
from jobmanager.event_store.waiters import DurabilityWaiters
from jobmanager.event_store.write_buffer import WriteBuffer

_log = Log(__name__)

_LOOP_NAME = "event log flush"
# The same trouble is logged so often at most (case P06).
_LOG_INTERVAL_S = 4.0
# Events of a snapshot that are encoded between two looks at the event loop.
_SNAPSHOT_SLICE = 256


class JobEventWriter:
    """Writes one job's events under one leader epoch.

    `snapshot_source()` returns events whose replay gives the present state. It is called on the
    event loop, at any time between two steps of it, and must contain every event that was
    appended before: apply an event and append it in one step, without an await in between. The
    events are read later, some at a time, and must still be those of the moment of the call.
    `on_status` is called after every change of mode, and after every flush.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        *,
        job_id: str,
        leader_epoch: int,
        snapshot_source: Callable[[], Collection[JobEvent]],
        replayed_sequence: int = 0,
        settings: EventWriterSettings | None = None,
        on_status: Callable[[EventStoreStatus], None] | None = None,
    ) -> None:
        """`replayed_sequence` is `LogFindings.last_sequence` of the replay, 0 without one."""
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._job_id = job_id
        self._leader_epoch = leader_epoch
        self._snapshot_source = snapshot_source
        self._replayed_sequence = replayed_sequence
        self._settings = settings or EventWriterSettings()
        self._on_status = on_status
        self._log = _log.bind(job=job_id, directory=directory)
        self._guard = HangGuard(self._settings.hang_limit_s)
        self._supervisor = Supervisor(f"event writer of {job_id}", self._loop_is_lost)
        self._encoder = RecordEncoder(leader_epoch)
        self._growth = LogGrowth(self._settings.compaction_bytes)

        self._buffer = WriteBuffer()
        self._in_flight_bytes = 0
        self._oldest_s = 0.0
        self._sequence = replayed_sequence
        self._appended = 0
        self._durable_sequence = replayed_sequence
        self._written_bytes = 0
        self._syncs = 0
        self._last_flush_s = 0.0
        self._flush_s_total = 0.0

        self._segment: SegmentWriter | None = None
        self._next_index: int | None = None  # None: the directory was not looked at yet
        self._needs_snapshot = replayed_sequence > 0
        self._superseding: SegmentId | None = None  # a snapshot whose predecessors are still there
        self._flush_requested = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._waiters = DurabilityWaiters()

        self._reason = ""
        self._fenced: EventStoreFenced | None = None
        self._failures = 0
        self._failures_total = 0
        self._logged_s: dict[str, float] = {}
        self._closed = False

    # What the JobMaster calls

    def start(self) -> None:
        """Start writing in the background."""
        restart = RestartPolicy(
            self._settings.retry_delay_first_s, self._settings.retry_delay_max_s
        )
        self._supervisor.run(_LOOP_NAME, self._run, restart)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record."""
        return self._sequence

    @property
    def unwritten(self) -> tuple[bytes, ...] | None:
        """Encoded records in memory; None while a write is under way or a snapshot is due, when
        the log's future content cannot be told from outside."""
        all_else_is_durable = self._durable_sequence + self._buffer.records == self._sequence
        return self._buffer.parts() if all_else_is_durable and not self._needs_snapshot else None

    @property
    def directory(self) -> str:
        """Where the log's segments are."""
        return self._directory

    @property
    def settings(self) -> EventWriterSettings:
        """The bounds it keeps."""
        return self._settings

    @property
    def status(self) -> EventStoreStatus:
        """The state and the counters now."""
        return EventStoreStatus(
            mode=EventStoreMode.DEGRADED if self._reason else EventStoreMode.ACTIVE,
            reason=self._reason,
            appended=self._appended,
            sequence=self._sequence,
            durable_sequence=self._durable_sequence,
            buffered_bytes=self._buffer.bytes + self._in_flight_bytes,
            written_bytes=self._written_bytes,
            syncs=self._syncs,
            last_flush_s=self._last_flush_s,
            flush_s_total=self._flush_s_total,
            failures=self._failures_total,
        )

    @property
    def all_durable(self) -> bool:
        """Whether everything appended so far survives a power loss."""
        return self._sequence <= self._durable_sequence

    def append(self, event: JobEvent) -> int:
        """Buffer an event and return its sequence. Never waits and never touches the disk.

        Raises `EventTooLarge` for an event beyond 16 MiB, `RuntimeError` after `close`.
        """
        if self._closed:
            raise RuntimeError(f"the event log of job {self._job_id} is closed")
        frame = self._frame(self._sequence + 1, event)
        self._sequence += 1
        self._appended += 1
        if not self._needs_snapshot:
            if not self._buffer.records:
                self._oldest_s = self._clock.monotonic_s()
                self._wake.set()
            self._buffer.add(frame)
            if self._buffer.bytes >= self._settings.buffer_bytes:
                self._wake.set()
            if self._buffer.bytes + self._in_flight_bytes > self._settings.buffer_bytes_max:
                self._drop_for_snapshot()
        else:
            self._wake.set()
        return self._sequence

    def has_room(self) -> bool:
        """Whether more events should be appended now."""
        used = self._buffer.bytes + self._in_flight_bytes
        return self._needs_snapshot or used < self._settings.buffer_bytes_max

    async def wait_for_room(self) -> None:
        """Back pressure: wait until `has_room`. Never waits while the store is degraded."""
        while not self.has_room():
            self._room.clear()
            await self._room.wait()

    def request_flush(self) -> None:
        """Write out soon, without waiting for it; for example when a whole vertex has finished."""
        self._flush_requested = True
        self._wake.set()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return when everything appended so far is durable.

        Raises `EventStoreDegraded` when that takes longer than `timeout_s` (default: the
        settings'); the writer goes on trying. Raises `EventStoreFenced` when it never will.
        """
        if self.all_durable:
            return
        if self._fenced is not None:
            raise self._fenced
        self._wake.set()
        limit_s = self._settings.flush_timeout_s if timeout_s is None else timeout_s
        try:
            await self._waiters.wait_for(self._sequence, limit_s)
        except TimeoutError:
            reason = self._reason or "storage is slow"
            raise EventStoreDegraded(
                self._directory, f"events are not durable after {limit_s:g} s: {reason}"
            ) from None

    async def compact(self, timeout_s: float | None = None) -> None:
        """Replace the whole log by a snapshot of the present state in a fresh segment.

        Returns when it is durable; older segments are removed soon after. Raises as `flush`.
        """
        self._drop_for_snapshot()
        self._sequence += 1  # the snapshot takes more; waiting for this one waits for all
        await self.flush(timeout_s)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flush, wait for it at most `timeout_s`, and stop. Closing twice is allowed.

        Storage errors are logged and left in `status`: call `flush` before to have them raised.
        """
        self._closed = True
        if self._supervisor.names():
            try:
                await self.flush(timeout_s)
            except EventStoreDegraded as error:
                self._log.warning("event log closed with a lost tail", reason=error.reason)
            await self._supervisor.close()
            await self._seal()
            if self._superseding is not None:
                await self._remove_superseded(self._superseding)
        self._guard.cancel()

    # The flush loop

    async def _run(self) -> None:
        while True:
            try:
                await self._wait_until_due()
                await self._guard.room()
                await self._write_out()
            except ObjectStoreFenced as error:
                return await self._rest(error)
            except OSError as error:
                await self._fail(str(error))
                await asyncio.sleep(self._retry_delay_s())
            except Exception as error:
                await self._fail(f"the event writer failed: {error!r}")
                raise  # the supervisor logs it and starts the loop again

    async def _wait_until_due(self) -> None:
        while self._sequence <= self._durable_sequence and not self._reason:
            self._flush_requested = False
            self._wake.clear()
            try:
                async with asyncio.timeout(self._settings.probe_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                if self._segment is not None:
                    await self._segment.check_present()
        waited_s = self._clock.monotonic_s() - self._oldest_s if self._buffer.records else 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._settings.flush_interval_s - waited_s)):
                while not self._is_urgent():
                    self._wake.clear()
                    await self._wake.wait()

    def _is_urgent(self) -> bool:
        return (
            self._flush_requested
            or bool(self._waiters)
            or bool(self._reason)
            or self._buffer.bytes >= self._settings.buffer_bytes
        )

    async def _write_out(self) -> None:
        """One flush: everything that is buffered now, or a snapshot, becomes durable."""
        started_s = self._clock.monotonic_s()
        self._flush_requested = False
        index = await self._prepare_directory()
        full = (
            self._segment is not None
            and self._segment.size_bytes >= self._settings.segment_bytes_max
        )
        if self._needs_snapshot or full:
            await self._seal()
        if self._needs_snapshot:
            await self._write_snapshot(index)
        else:
            await self._write_buffer(index)
        durable = self._durable_sequence
        if self._reason:
            self._log.info("event log is durable again, recovery: ACTIVE", sequence=durable)
        self._reason = ""
        self._failures = 0
        self._last_flush_s = self._clock.monotonic_s() - started_s
        self._flush_s_total += self._last_flush_s
        self._room.set()
        self._waiters.reached(self._durable_sequence)
        self._tell_status()
        if self._superseding is not None:
            await self._remove_superseded(self._superseding)
        if self._growth.is_due:
            self._drop_for_snapshot()

    async def _prepare_directory(self) -> int:
        """The index of the next segment. Looks at the directory, and at what it holds, once."""
        if self._next_index is None:
            path = self._directory
            await self._guard.call(path, self._disk.make_directories(path))
            if await self._guard.call(path, sync_segments(self._disk, path)):
                self._drop_for_snapshot()
            self._next_index = await self._guard.call(
                path, next_index(self._disk, path, self._leader_epoch)
            )
        elif self._failures:
            await self._restore_directory()
        return self._next_index

    async def _restore_directory(self) -> None:
        """Create the log's directory anew if it has vanished, but not the job's around it: without
        that there is no job to recover, and a deposed leader must not bring back one that its
        successor has ended."""
        job_directory = posixpath.dirname(self._directory)
        if await self._guard.call(job_directory, self._disk.stat(job_directory)) is None:
            raise FileNotFoundError(errno.ENOENT, "the job's directory is gone", job_directory)
        await self._guard.call(self._directory, self._disk.make_directories(self._directory))

    async def _open_segment(self, index: int) -> SegmentId:
        """Begin a segment. An index is used once, whatever becomes of its file."""
        self._next_index = index + 1
        segment_id = SegmentId(self._leader_epoch, index)
        self._segment = await SegmentWriter.create(
            self._disk, self._guard, self._directory, segment_id.file_name
        )
        return segment_id

    async def _write_buffer(self, index: int) -> None:
        header = None
        if self._segment is None:
            segment_id = await self._open_segment(index)
            if self._needs_snapshot:  # the buffer overflowed meanwhile
                return
            first = self._sequence - self._buffer.records + 1
            header = self._header(segment_id, first, is_snapshot=False)
        assert self._segment is not None
        last = self._sequence
        self._in_flight_bytes = self._buffer.bytes
        written = 0
        try:
            for block in self._buffer.take():
                written += await self._segment.write(block, header)
                header = None
            await self._segment.sync()
        finally:
            self._in_flight_bytes = 0
        self._now_durable(last, written)
        self._growth.written(written)

    async def _write_snapshot(self, index: int) -> None:
        segment_id = await self._open_segment(index)
        assert self._segment is not None
        # No await until the buffer collects again: the snapshot contains all before it.
        snapshot = self._snapshot_source()
        count = len(snapshot)
        first = self._sequence + 1
        self._sequence += count + 2
        last = self._sequence
        self._needs_snapshot = False
        header: SegmentHeader | None = self._header(segment_id, first, is_snapshot=True)
        events = itertools.chain(
            [JobEvent(snapshot_begin=SnapshotBegin(records=count))],
            snapshot,
            [JobEvent(snapshot_end=SnapshotEnd(records=count))],
        )
        numbered = enumerate(events, start=first)
        written = 0
        while part := list(itertools.islice(numbered, _SNAPSHOT_SLICE)):
            frames = [self._frame(sequence, event) for sequence, event in part]
            written += await self._segment.write(b"".join(frames), header)
            header = None
        await self._segment.sync()
        self._now_durable(last, written)
        self._growth.snapshot_written(written)
        self._superseding = segment_id

    async def _remove_superseded(self, before: SegmentId) -> None:
        try:
            await self._guard.call(
                self._directory, remove_segments_before(self._disk, self._directory, before)
            )
            self._superseding = None
        except OSError as error:  # tried again after the next flush
            self._warn("superseded segments are not removed yet", str(error))

    def _header(self, segment_id: SegmentId, first: int, *, is_snapshot: bool) -> SegmentHeader:
        return SegmentHeader(
            segment_id,
            self._job_id,
            first_sequence=first,
            replayed_sequence=self._replayed_sequence,
            durable_sequence=self._durable_sequence,
            is_snapshot=is_snapshot,
        )

    def _frame(self, sequence: int, event: JobEvent) -> bytes:
        payload = self._encoder.encode(sequence, self._clock.wall_ms(), event)
        if len(payload) > RECORD_BYTES_MAX:
            raise EventTooLarge(
                self._directory,
                f"an event of {len(payload)} bytes; at most {RECORD_BYTES_MAX} can be recorded",
            )
        return encode_frame(payload)

    def _now_durable(self, sequence: int, written_bytes: int) -> None:
        self._durable_sequence = sequence
        self._written_bytes += written_bytes
        self._syncs += 1

    # Errors

    def _drop_for_snapshot(self) -> None:
        """From now on nothing is buffered, since the next snapshot will contain it."""
        self._buffer.clear()
        self._needs_snapshot = True
        self._room.set()

    async def _rest(self, error: ObjectStoreFenced) -> None:
        """This process leads no longer: the log is its successor's, and trying again is no use."""
        await self._fail(str(error))
        self._fenced = EventStoreFenced(self._directory, f"events stay unwritten: {error}")
        self._waiters.give_up(self._fenced)
        await asyncio.Event().wait()

    async def _fail(self, reason: str) -> None:
        """Nothing more goes to this segment, and nothing in it past the last sync is trusted."""
        self._drop_for_snapshot()
        self._reason = reason
        self._failures += 1
        self._failures_total += 1
        self._warn("event log cannot be written, recovery: DEGRADED", reason)
        self._tell_status()
        await self._seal()

    def _warn(self, event: str, reason: str) -> None:
        """Log what is tried again and may fail again, but not each time (case P06)."""
        now_s = self._clock.monotonic_s()
        logged_s = self._logged_s.get(event)
        if logged_s is None or now_s - logged_s >= _LOG_INTERVAL_S:
            self._logged_s[event] = now_s
            self._log.warning(event, reason=reason, failures=self._failures)

    def _retry_delay_s(self) -> float:
        first_s = self._settings.retry_delay_first_s
        doubled_s: float = first_s * 2 ** min(self._failures - 1, 20)
        return min(self._settings.retry_delay_max_s, doubled_s)

    async def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            await segment.close()
        except OSError as error:  # what matters was synced before
            self._log.warning("closing a segment failed", path=segment.path, reason=str(error))

    def _tell_status(self) -> None:
        if self._on_status is not None:
            self._on_status(self.status)

    def _loop_is_lost(self, name: str, exception: BaseException) -> None:
        """Not reached: the loop's restart policy has no limit."""
        raise AssertionError(f"{name} ended for good") from exception
