"""What the modelled parts of the world tell those who watch a run: recorder and invariants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.taskmanager_pb2 import TaskDeployment


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """One partition that a task has read: whose, from where, and whether it was there."""

    reader: AttemptKey
    name: str
    data_address: str
    found: bool


class Observer(Protocol):
    """Told at the moment it happens. Must not change anything, and must not raise: what is wrong
    becomes a finding.

    Attributes:
        sees_reads: whether it is to be told of partitions that are read, of which there are many.
    """

    sees_reads: bool

    def attempt_started(self, worker: str, deployment: TaskDeployment, at_s: float) -> None:
        """A task process has begun with an attempt; `worker` is the TaskManager's host."""
        ...

    def attempt_ended(
        self, worker: str, key: AttemptKey, end: str, execution: FinishedExecution | None
    ) -> None:
        """It ended: "finished" (with what it left), "failed", "canceled" or "lost" (it died)."""
        ...

    def partitions_read(self, reads: Sequence[PartitionRead]) -> None:
        """A task has asked one holder for partitions, and this is what it got."""
        ...
