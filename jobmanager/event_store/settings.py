"""Bounds and times of a writer of job events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventWriterSettings:
    """Bounds and times of a writer.

    Attributes:
        buffer_bytes: flush when so much is buffered (job-event.store.write-buffer.size).
        flush_interval_s: flush when something has been buffered for so long (...flush-interval).
        buffer_bytes_max: back pressure above it (...max-size); beyond it events are dropped for
            a snapshot, so that memory is bounded whatever callers do.
        segment_bytes_max: begin a new segment above it (job-event.store.segment-size).
        compaction_bytes: rewrite the log as a snapshot when it has grown by so much since the last
            one, and at least doubled (job-event.store.compaction-size).
        hang_limit_s: a storage call without an answer for so long counts as failed. With the flush
            interval before it, a hang shows within 5 s.
        probe_interval_s: while there is nothing to write, look so often whether the segment is
            still there.
        flush_timeout_s: how long `flush` waits unless told.
        retry_delay_first_s, retry_delay_max_s: pause after an error, doubling.
    """

    buffer_bytes: int = 1024 * 1024
    flush_interval_s: float = 1.0
    buffer_bytes_max: int = 16 * 1024 * 1024
    segment_bytes_max: int = 64 * 1024 * 1024
    compaction_bytes: int = 64 * 1024 * 1024
    hang_limit_s: float = 3.5
    probe_interval_s: float = 3.0
    flush_timeout_s: float = 30.0
    retry_delay_first_s: float = 0.1
    retry_delay_max_s: float = 5.0
