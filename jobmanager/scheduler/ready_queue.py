"""The subtasks that wait for a slot, in the order in which they get one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from jobmanager.scheduler.vertices import SubtaskId


class ReadyQueue:
    """SCHEDULED subtasks. Those whose output has nowhere to go at present stand aside, so that the
    others (which may be the ones that make room) go first.

    A queue whose head is found at once, however many have left it.
    """

    def __init__(self) -> None:
        self._queue: OrderedDict[SubtaskId, None] = OrderedDict()
        self._aside: OrderedDict[SubtaskId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue) + len(self._aside)

    def __contains__(self, subtask: object) -> bool:
        return subtask in self._queue or subtask in self._aside

    def __iter__(self) -> Iterator[SubtaskId]:
        yield from self._aside
        yield from self._queue

    @property
    def placeable_count(self) -> int:
        """How many do not stand aside."""
        return len(self._queue)

    @property
    def aside_count(self) -> int:
        """How many stand aside."""
        return len(self._aside)

    def add(self, subtask: SubtaskId) -> None:
        """It waits from now on, after all others."""
        self._queue[subtask] = None

    def discard(self, subtask: SubtaskId) -> None:
        """It does not wait any more."""
        self._queue.pop(subtask, None)
        self._aside.pop(subtask, None)

    def pop(self) -> SubtaskId:
        """Take the first that does not stand aside.

        Raises:
            KeyError: there is none.
        """
        return self._queue.popitem(last=False)[0]

    def set_aside(self, subtask: SubtaskId) -> None:
        """Its output has nowhere to go."""
        self._aside[subtask] = None

    def bring_back(self) -> None:
        """There is somewhere to go again: those that stood aside have waited longest."""
        if self._aside:
            self._aside.update(self._queue)
            self._queue, self._aside = self._aside, OrderedDict()

    def clear(self) -> None:
        """Nobody waits."""
        self._queue.clear()
        self._aside.clear()
