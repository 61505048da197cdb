"""Fetching a task's remote partitions, ahead of the task but not far.

Partitions of one holder come by one stream, one after another: the number of streams is that of the
holders, not of the partitions. Where there are fewer holders than streams are wanted, each holder's
partitions are dealt out to several.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from holdover.runtime.transport_security import CredentialFiles
from shuffle.errors import PartitionUnreachable, ShuffleError
from shuffle.flight import (
    PARTITIONS_MAX,
    FetchedBlock,
    FetchInterrupted,
    FlightPartitionClient,
    PartitionsStream,
    PartitionStream,
)

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 1.0


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A partition to read, and the data address (host:port) of who holds it."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How far a reader runs ahead, and how long it tries to reach a holder that does not answer."""

    #: Streams that run ahead at the same time, the one that is being read included.
    streams_max: int = 2
    #: Fetched bytes that wait to be read; one block more when the reader has nothing else to read.
    ahead_bytes_max: int = 64 << 20
    #: Without any progress for this long, a partition is unreachable (P41).
    retry_timeout_s: float = 60.0
    #: Bound of one Flight call; a call that is cut by it continues in the next.
    call_timeout_s: float = 30.0


@dataclass(slots=True)
class _Inbox:
    """What has arrived of one partition and was not read yet."""

    blocks: deque[FetchedBlock] = field(default_factory=deque)
    #: True once `schema` says what the partition's header said.
    has_schema: bool = False
    schema: pa.Schema | None = None
    ended: bool = False
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Lane:
    """Partitions of one holder that come by one stream, in the order of reading."""

    address: str
    positions: list[int]
    started: bool = False
    stream: PartitionStream | PartitionsStream | None = None


def _lanes(sources: dict[int, PartitionSource], streams_max: int) -> list[_Lane]:
    """The lanes of all partitions, by the first of each."""
    by_holder: dict[str, list[int]] = {}
    for position, source in sources.items():
        by_holder.setdefault(source.address, []).append(position)
    each = max(1, -(-streams_max // max(1, len(by_holder))))
    lanes = [
        _Lane(address, positions[start::each])
        for address, positions in by_holder.items()
        for start in range(min(each, len(positions)))
    ]
    return sorted(lanes, key=lambda lane: lane.positions[0])


class PartitionFetcher:
    """Threads that fetch remote partitions, each a lane of them.

    One condition guards all fields. The partition that is being read is always among those that
    are fetched, and may always deliver a block when it has none waiting: the others can fill the
    budget but not block it. When its lane is not begun, because those that run are full, a thread
    of its own begins it.
    """

    def __init__(
        self,
        sources: dict[int, PartitionSource],
        subpartitions: tuple[int, int],
        limits: FetchLimits,
        credentials: CredentialFiles | None,
    ) -> None:
        """`sources` are by their position in the reader's order, in that order."""
        self._sources = sources
        self._range = subpartitions
        self._limits = limits
        self._credentials = credentials
        self._changed = threading.Condition()
        self._lanes = _lanes(sources, limits.streams_max)
        self._lane_of = {p: lane for lane in self._lanes for p in lane.positions}
        self._inboxes = {position: _Inbox() for position in sources}
        self._unread = deque(sources)
        self._ahead_bytes = 0
        self._closed = False
        self._clients: dict[str, FlightPartitionClient] = {}
        self._threads: list[threading.Thread] = []
        with self._changed:
            for lane in self._lanes[: limits.streams_max]:
                self._start(lane, self._work)

    # --- the reader's side

    def schema(self, position: int) -> pa.Schema | None:
        """Waits for the header of a partition; raises what ended its fetch."""
        inbox = self._inboxes[position]
        with self._changed:
            self._begin(position)
            self._changed.wait_for(lambda: inbox.has_schema or inbox.ended)
            if not inbox.has_schema and inbox.error is not None:
                raise inbox.error
            return inbox.schema

    def blocks(self, position: int) -> Iterator[FetchedBlock]:
        """The blocks of a partition as they arrive; raises what ended its fetch."""
        inbox = self._inboxes[position]
        while True:
            with self._changed:
                self._begin(position)
                self._changed.wait_for(lambda: bool(inbox.blocks) or inbox.ended)
                if not inbox.blocks:
                    if inbox.error is not None:
                        raise inbox.error
                    return
                block = inbox.blocks.popleft()
                self._ahead_bytes -= block.data.size
                self._changed.notify_all()
            yield block

    def done_with(self, position: int) -> None:
        """The reader goes on to the next partition."""
        with self._changed:
            self._unread.remove(position)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all fetches and waits, briefly, for the threads."""
        with self._changed:
            self._closed = True
            streams = [lane.stream for lane in self._lanes if lane.stream is not None]
            threads = list(self._threads)
            self._changed.notify_all()
        for stream in streams:
            stream.cancel()
        for thread in threads:
            thread.join(timeout=2.0)
        for client in self._clients.values():
            client.close()

    def _begin(self, position: int) -> None:
        lane = self._lane_of[position]
        if not lane.started and not self._closed:
            self._start(lane, self._fetch)

    def _start(self, lane: _Lane, run: Callable[[_Lane], None]) -> None:
        lane.started = True
        name = f"fetch-{len(self._threads)}"
        thread = threading.Thread(target=run, args=(lane,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # --- the threads' side

    def _work(self, first: _Lane) -> None:
        """Fetch lane after lane."""
        lane: _Lane | None = first
        while lane is not None:
            self._fetch(lane)
            with self._changed:
                waiting = (lane for lane in self._lanes if not lane.started)
                lane = None if self._closed else next(waiting, None)
                if lane is not None:
                    lane.started = True

    def _fetch(self, lane: _Lane) -> None:
        """Fetch the partitions of a lane to their end, or to the first that cannot be had."""
        waiting = deque(lane.positions)
        try:
            self._fetch_all(lane, waiting)
        except Exception as failure:  # noqa: BLE001  (raised where the reader waits for it)
            with self._changed:
                for position in waiting:
                    self._inboxes[position].ended = True
                    self._inboxes[position].error = failure
                self._changed.notify_all()

    def _fetch_all(self, lane: _Lane, waiting: deque[int]) -> None:
        """Fetch over as many calls as it takes; what has arrived whole is taken from `waiting`."""
        received = 0
        progress_s = time.monotonic()
        pause_s = _PAUSE_FIRST_S
        while waiting and not self._closed:
            before = (len(waiting), received)
            interruption: FetchInterrupted | None = None
            try:
                for stream in self._open(lane, waiting, received):
                    position = waiting[0]
                    self._say_schema(position, stream.schema)
                    for block in stream:
                        self._deliver(position, block)
                        received += 1
                    self._end(position)
                    waiting.popleft()
                    received = 0
            except FetchInterrupted as error:
                interruption = error
            finally:
                with self._changed:
                    lane.stream = None
            now_s = time.monotonic()
            if (len(waiting), received) != before:
                progress_s, pause_s = now_s, _PAUSE_FIRST_S
            if interruption is None:
                continue
            if now_s - progress_s >= self._limits.retry_timeout_s:
                name = self._sources[waiting[0]].name
                raise PartitionUnreachable(name, lane.address, str(interruption))
            with self._changed:
                self._changed.wait_for(lambda: self._closed, timeout=pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _open(self, lane: _Lane, waiting: deque[int], received: int) -> Iterator[PartitionStream]:
        """The partitions that wait, or the first of them that one stream takes; the first without
        the blocks that were received of it."""
        client = self._client(lane.address)
        names = [self._sources[position].name for position in waiting][:PARTITIONS_MAX]
        stream: PartitionStream | PartitionsStream
        if len(names) == 1:
            stream = client.fetch(names[0], *self._range, received)
        else:
            stream = client.fetch_many(names, *self._range, received)
        with self._changed:
            lane.stream = stream
            if self._closed:
                stream.cancel()
        return iter([stream]) if isinstance(stream, PartitionStream) else iter(stream)

    def _client(self, address: str) -> FlightPartitionClient:
        with self._changed:
            client = self._clients.get(address)
            if client is None:
                client = FlightPartitionClient(
                    address,
                    call_timeout_s=self._limits.call_timeout_s,
                    files=self._credentials,
                )
                self._clients[address] = client
            return client

    def _say_schema(self, position: int, schema: pa.Schema | None) -> None:
        with self._changed:
            inbox = self._inboxes[position]
            inbox.schema, inbox.has_schema = schema, True
            self._changed.notify_all()

    def _end(self, position: int) -> None:
        with self._changed:
            self._inboxes[position].ended = True
            self._changed.notify_all()

    def _deliver(self, position: int, block: FetchedBlock) -> None:
        inbox = self._inboxes[position]
        fits: Callable[[], bool] = lambda: (  # noqa: E731
            self._closed
            or self._ahead_bytes + block.data.size <= self._limits.ahead_bytes_max
            or (self._unread[0] == position and not inbox.blocks)
        )
        with self._changed:
            self._changed.wait_for(fits)
            if self._closed:
                raise ShuffleError(f"the reader of {self._sources[position].name} was closed")
            inbox.blocks.append(block)
            self._ahead_bytes += block.data.size
            self._changed.notify_all()
