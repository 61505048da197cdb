"""The subtasks that wait for a slot, in the order in which they get one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from jobmanager.scheduler.vertices import SubtaskId


class ReadyQueue:
    """SCHEDULED subtasks. Those whose output has nowhere to go at present stand aside, so that the
    others (which may be the ones that make room) go first.

    A queue whose head is found at once, however many have left it. `placeable` are those that do
    not stand aside, `aside` those that do; both are to be read only.
    """

    def __init__(self) -> None:
        self.placeable: OrderedDict[SubtaskId, None] = OrderedDict()
        self.aside: OrderedDict[SubtaskId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.placeable) + len(self.aside)

    def __contains__(self, subtask: object) -> bool:
        return subtask in self.placeable or subtask in self.aside

    def __iter__(self) -> Iterator[SubtaskId]:
        yield from self.aside
        yield from self.placeable

    def add(self, subtask: SubtaskId) -> None:
        """It waits from now on, after all others."""
        self.placeable[subtask] = None

    def discard(self, subtask: SubtaskId) -> None:
        """It does not wait any more."""
        self.placeable.pop(subtask, None)
        self.aside.pop(subtask, None)

    def pop(self) -> SubtaskId:
        """Take the first that does not stand aside.

        Raises:
            KeyError: there is none.
        """
        return self.placeable.popitem(last=False)[0]

    def set_aside(self, subtask: SubtaskId) -> None:
        """Its output has nowhere to go."""
        self.aside[subtask] = None

    def bring_back(self) -> None:
        """There is somewhere to go again: those that stood aside have waited longest."""
        if self.aside:
            self.aside.update(self.placeable)
            self.placeable, self.aside = self.aside, OrderedDict()

    def clear(self) -> None:
        """Nobody waits."""
        self.placeable.clear()
        self.aside.clear()
