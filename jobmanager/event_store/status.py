"""How well a job's events are being recorded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdover.v1.jobmanager_pb2 import (
    RECOVERY_MODE_ACTIVE,
    RECOVERY_MODE_DEGRADED,
    RecoveryStatus,
)


class EventStoreMode(Enum):
    """Whether events become durable."""

    ACTIVE = RECOVERY_MODE_ACTIVE
    DEGRADED = RECOVERY_MODE_DEGRADED


@dataclass(frozen=True, slots=True)
class EventStoreStatus:
    """A writer's state and counters.

    Attributes:
        mode: DEGRADED from the first failed or hanging write until a snapshot is durable.
        reason: why it is degraded; empty while it is active.
        appended: events appended since the writer was made.
        sequence: of the last record that was appended.
        durable_sequence: everything up to it survives a power loss.
        buffered_bytes: encoded records in memory, those of a running flush among them.
        written_bytes: bytes that were made durable.
        syncs: successful syncs of a segment.
        last_flush_s: how long the last successful flush took.
        flush_s_total: how long all successful ones took.
        failures: flushes that failed or hung; short degradations show here after they are over.
    """

    mode: EventStoreMode
    reason: str
    appended: int
    sequence: int
    durable_sequence: int
    buffered_bytes: int
    written_bytes: int
    syncs: int
    last_flush_s: float
    flush_s_total: float
    failures: int

    def to_proto(self) -> RecoveryStatus:
        """The status as clients see it."""
        return RecoveryStatus(
            mode=self.mode.value,
            reason=self.reason,
            events_appended=self.appended,
            last_sequence=self.sequence,
            durable_sequence=self.durable_sequence,
            buffered_bytes=self.buffered_bytes,
            written_bytes=self.written_bytes,
            last_flush_ms=round(self.last_flush_s * 1000),
            flushes=self.syncs,
            flush_ms_total=round(self.flush_s_total * 1000),
            flush_failures=self.failures,
        )
