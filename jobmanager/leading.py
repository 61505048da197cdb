"""Whether this process still leads, asked before it does what no file can refuse it.

A leader that was frozen goes on, when it wakes, where it was; its successor may have done much by
then. Events and jobs are fenced by epochs, output is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

POLL_S = 0.1


class LeadershipLost(OSError):
    """Another JobManager goes on with what this one was about to do."""


@dataclass(frozen=True, slots=True)
class Leading:
    """What the election knows of it.

    Attributes:
        is_leader: whether this process leads for certain: `LeaderElection.is_leader`.
        is_over: whether it is known to lead no more.
    """

    is_leader: Callable[[], bool] = lambda: True
    is_over: Callable[[], bool] = lambda: False

    async def certain(self) -> None:
        """Wait for certainty, in work that is cancelled at the end of the leadership."""
        while not self.is_leader():  # noqa: ASYNC110 - nobody tells that time has passed
            await asyncio.sleep(POLL_S)

    async def certain_or_over(self) -> None:
        """The same in work that is not: raises LeadershipLost."""
        while not self.is_leader():
            if self.is_over():
                raise LeadershipLost("this JobManager leads no more")
            await asyncio.sleep(POLL_S)
