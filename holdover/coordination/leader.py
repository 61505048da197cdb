"""Who leads, as services see it (behaviour: leader epoch, high availability)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from holdover.runtime.log import Log

_RESTORE_THE_FILE = (
    "restore the file, or, when no process of the cluster runs, write a number into the epoch file"
    " that is larger than every epoch in the logs and remove record.json"
)

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """The leader, as others find it: `address` is `host:port`, a name that others can resolve."""

    epoch: int
    address: str


class LeaderStateDamaged(OSError):
    """What the leader service has stored cannot be read. Never guessed at: an epoch that came back
    would let two leaders look like one."""

    def __init__(self, path: str, reason: str, remedy: str = _RESTORE_THE_FILE) -> None:
        super().__init__(errno.EBADMSG, f"leader state in {path} is damaged: {reason}; {remedy}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Leadership:
    """A leadership that was won. `epoch` is larger than that of every leadership before it."""

    epoch: int


class LeaderElection(Protocol):
    """A candidate. One campaign at a time; after a loss or `step_down` it may campaign again."""

    @property
    def lost(self) -> asyncio.Event:
        """Set when the leadership of the last campaign has ended, for whatever reason."""
        ...

    def is_leader(self) -> bool:
        """Whether this candidate leads, as far as it knows."""
        ...

    async def campaign(self, address: str) -> Leadership:
        """Wait until this candidate leads, with its epoch durable and its record published.

        Cancel it to withdraw. Raises `StorageNotWritable`, `LeaderStateDamaged`.
        """
        ...

    async def step_down(self) -> None:
        """Give the leadership up, so that another can lead at once. No-op when not leading."""
        ...


class LeaderRetrieval(Protocol):
    """The way to find the leader."""

    async def current(self) -> LeaderRecord | None:
        """The newest leader record; its process may have died since. None when there is none."""
        ...

    def changes(self) -> AsyncIterator[LeaderRecord]:
        """The present record at once, if any, then each newer one; never ends by itself.

        Errors of the leader service are logged and retried.
        """
        ...


class LeaderService(Protocol):
    """What a process is given to elect and to find the leader of its cluster."""

    def election(self) -> LeaderElection:
        """A new candidate."""
        ...

    def retrieval(self) -> LeaderRetrieval:
        """The way to find the leader; of one leader service all are alike."""
        ...


async def polled_changes(
    current: Callable[[], Awaitable[LeaderRecord | None]], delay_s: Callable[[], float]
) -> AsyncIterator[LeaderRecord]:
    """`LeaderRetrieval.changes` where nobody tells: `current` is asked again after each
    `delay_s()`. Errors are logged, the first of a row, and retried."""
    epoch = 0
    failing = False
    while True:
        try:
            record = await current()
            failing = False
        except OSError as error:
            record = None
            if not failing:
                _log.warning("cannot read the leader record, will retry", error=error)
            failing = True
        if record is not None and record.epoch > epoch:
            epoch = record.epoch
            yield record
        await asyncio.sleep(delay_s())
