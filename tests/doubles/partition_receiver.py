"""A shuffle service as a partition server sees it, which notes what it is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from holdover.v1.common_pb2 import ExecutionAttempt, FinishedExecution
from shuffle.errors import OutputRefused

PUT = 7


@dataclass
class NotingReceiver:
    """A `PartitionReceiver` that refuses what it is told to, and publishes what is complete."""

    directory: str = "/local/shuffle"
    #: First word of what it refuses.
    refuses: str = ""
    publishing_s: float = 0.0
    told: list[str] = field(default_factory=list)
    taken_bytes: int = 0
    published: list[FinishedExecution] = field(default_factory=list)
    _complete: int = 0

    def _note(self, what: str) -> None:
        self.told.append(what)
        if what.split()[0] == self.refuses:
            raise OutputRefused("it is full")

    def begin(self, partition_name: str, is_copy: bool) -> int:
        """See `PartitionReceiver`."""
        self._note(f"begin {partition_name} {is_copy}")
        return PUT

    def take(self, put: int, wanted_bytes: int) -> None:
        """See `PartitionReceiver`."""
        assert put == PUT
        self.taken_bytes += wanted_bytes
        if self.told[-1] != "take":
            self._note("take")  # how much at a time is the server's affair

    def complete(self, put: int) -> None:
        """See `PartitionReceiver`."""
        assert put == PUT
        self._note("complete")
        self._complete += 1

    def end(self, put: int) -> bool:
        """See `PartitionReceiver`."""
        assert put == PUT
        self.told.append("end")
        return "complete" not in self.told

    async def publish(self, execution: FinishedExecution, is_copy: bool) -> FinishedExecution:
        """See `PartitionReceiver`."""
        await asyncio.sleep(self.publishing_s)
        self._note(f"publish {is_copy}")
        if execution in self.published:
            return execution
        if self._complete < len(execution.partitions):
            raise OutputRefused("it is not put here")
        self.published.append(execution)
        return execution

    async def discard(self, attempt: ExecutionAttempt) -> None:
        """See `PartitionReceiver`."""
        self.told.append("discard")
