"""The split enumerator of a source: hands splits to attempts, once each.

The list of splits and what finished attempts have read is in the job's events, so every event is a
snapshot of the enumerator: after a replay the splits that no finished subtask has read are handed
out again. A source may say that its list is not to be recorded, because files come and go: then
no snapshot is possible, and each leader that has to run a subtask of it lists the files anew
(behaviour 5.7).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from holdover.v1 import job_pb2
from jobmanager.scheduler.states import ExecutionState
from jobmanager.scheduler.vertices import ExecutionJobVertex, ExecutionVertex


class SplitEnumerator:
    """The unread splits of one source vertex."""

    def __init__(self, owner: ExecutionJobVertex, splits: Sequence[job_pb2.Split]) -> None:
        """`splits` is the whole list, of which the owner's subtasks have read some already."""
        self.splits = splits
        self._owner = owner
        #: The subtask that was found last to be one that will ask for splits.
        self._asking = 0
        taken = {
            index
            for vertex in owner.subtasks
            for index in (*vertex.splits, *(vertex.pinned_splits or ()))
        }
        #: In the order in which they are handed out.
        self._unread = OrderedDict.fromkeys(s.index for s in splits if s.index not in taken)

    def unread(self) -> tuple[int, ...]:
        """Indexes of the splits that nobody has been handed."""
        return tuple(self._unread)

    def next_split(self, vertex: ExecutionVertex, received: int) -> job_pb2.Split | None:
        """The split after the first `received` ones of the current attempt; None when there are no
        more.

        Asking again with the same `received` gives the same answer, so a lost answer loses no
        split. A subtask that has finished before reads exactly the splits it read then.
        """
        if vertex.pinned_splits is not None:
            vertex.splits = list(vertex.pinned_splits)
        if received < len(vertex.splits):
            return self.splits[vertex.splits[received]]
        vertex.asks_for_splits = vertex.pinned_splits is None and bool(self._unread)
        if not vertex.asks_for_splits:
            return None
        index, _ = self._unread.popitem(last=False)
        vertex.splits.append(index)
        return self.splits[index]

    def give_back(self, splits: list[int]) -> None:
        """The attempt that had these splits will not finish: others may read them."""
        for index in reversed(splits):
            self._unread[index] = None
            self._unread.move_to_end(index, last=False)

    def finish(self, vertex: ExecutionVertex, splits: Sequence[int]) -> bool:
        """An attempt of a subtask has finished, and has read these splits: they are its own, or
        were nobody's. False, and nothing is changed, if not; and if splits would be left with
        nobody to ask for them, for all others have finished or heard that there are no more.
        """
        if vertex.pinned_splits is not None:
            return tuple(splits) == vertex.pinned_splits
        read = dict.fromkeys(splits)
        own = dict.fromkeys(vertex.splits)
        if not all(index in own or index in self._unread for index in read):
            return False
        left = len(self._unread) + len(own) - len(read)
        if left and not self._is_asked_by_another(vertex):
            return False
        for index in read:
            self._unread.pop(index, None)
        self.give_back([index for index in own if index not in read])
        return True

    def _is_asked_by_another(self, vertex: ExecutionVertex) -> bool:
        """Whether another subtask will ask for splits. Looked for from where one was found last,
        so that to finish all costs a walk over all."""
        subtasks = self._owner.subtasks
        for step in range(len(subtasks)):
            number = (self._asking + step) % len(subtasks)
            if subtasks[number] is not vertex and will_ask(subtasks[number]):
                self._asking = number
                return True
        return False


def will_ask(vertex: ExecutionVertex) -> bool:
    """Whether a subtask, in its current attempt or the next one, reads what splits are left."""
    if vertex.pinned_splits is not None or vertex.state is ExecutionState.FINISHED:
        return False
    return vertex.asks_for_splits or vertex.state is ExecutionState.CANCELING
