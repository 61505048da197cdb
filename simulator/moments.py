"""The steps of leaderships and jobs in a run, counted, so that a fault can wait for the next one.

What a step is stands with `simulator.fault_kinds.StepReached`. They are seen in what the services
log, and in what their schedulers decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from jobmanager.scheduler.core import Decision
from simulator.fault_kinds import StepName

_LOGGED: Final[Mapping[str, StepName]] = {
    "JobManager lost": "noticed",
    "leadership won": "elected",
    "taskmanager registered": "registered",
    "jobmanager leads": "ready",
}
_STATES: Final[Mapping[str, StepName]] = {
    "RECONCILING": "reconciling",
    "RUNNING": "running",
    "CANCELLING": "cancelling",
    "FAILING": "failing",
}


class Moments:
    """See the module."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._changed = asyncio.Event()

    def log_line(self, event: str, fields: Mapping[str, object]) -> None:
        """A service has logged an event."""
        step = _LOGGED.get(event)
        if event == "job state":
            step = _STATES.get(str(fields["state"]))
        if step is not None:
            self._reached(step)

    def decided(self, decision: Decision) -> None:
        """A scheduler has handled a signal."""
        for event in decision.events:
            if event.HasField("commit_started"):
                self._reached("committing")

    def _reached(self, step: StepName) -> None:
        self._counts[step] = self._counts.get(step, 0) + 1
        self._changed.set()

    def so_far(self) -> Mapping[str, int]:
        """How often each step was made up to now."""
        return dict(self._counts)

    async def beyond(self, step: StepName, count: int) -> None:
        """Wait until a step was made more than so many times."""
        while self._counts.get(step, 0) <= count:
            self._changed.clear()
            await self._changed.wait()
