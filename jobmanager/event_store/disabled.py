"""The event log of a job whose recovery is switched off: nothing is recorded, and its status says
so (P18).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdover.v1.events_pb2 import JobEvent
from holdover.v1.jobmanager_pb2 import RECOVERY_MODE_DISABLED, RecoveryStatus


@dataclass(frozen=True, slots=True)
class DisabledStatus:
    """What stands for `EventStoreStatus`."""

    def to_proto(self) -> RecoveryStatus:
        """The status as clients see it."""
        return RecoveryStatus(
            mode=RECOVERY_MODE_DISABLED,
            reason="execution.batch.job-recovery.enabled is false for this job",
        )


class DisabledJobEventWriter:
    """Takes events like `JobEventWriter` and forgets them."""

    def __init__(self) -> None:
        self._appended = 0

    @property
    def all_durable(self) -> bool:
        """Nothing is ever missing."""
        return True

    @property
    def status(self) -> DisabledStatus:
        """The job's recovery is switched off."""
        return DisabledStatus()

    def append(self, event: JobEvent) -> int:
        """Count the event."""
        self._appended += 1
        return self._appended

    def has_room(self) -> bool:
        """There always is."""
        return True

    async def wait_for_room(self) -> None:
        """There is always room."""

    def request_flush(self) -> None:
        """There is nothing to flush."""

    async def flush(self, timeout_s: float | None = None) -> None:
        """There is nothing to flush."""

    async def close(self, timeout_s: float = 5.0) -> None:
        """There is nothing to close."""
