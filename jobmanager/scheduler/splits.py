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
from jobmanager.scheduler.vertices import ExecutionJobVertex, ExecutionVertex


class SplitEnumerator:
    """The unread splits of one source vertex."""

    def __init__(self, owner: ExecutionJobVertex, splits: Sequence[job_pb2.Split]) -> None:
        """`splits` is the whole list, of which the owner's subtasks have read some already."""
        self.splits = splits
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
        if vertex.pinned_splits is not None or not self._unread:
            return None
        index, _ = self._unread.popitem(last=False)
        vertex.splits.append(index)
        return self.splits[index]

    def give_back(self, splits: list[int]) -> None:
        """The attempt that had these splits will not finish: others may read them."""
        for index in reversed(splits):
            self._unread[index] = None
            self._unread.move_to_end(index, last=False)

    def claim(self, splits: list[int]) -> bool:
        """Take splits that an adopted attempt has read; False, and nothing taken, if one is taken
        already.
        """
        if not all(index in self._unread for index in splits):
            return False
        for index in dict.fromkeys(splits):
            del self._unread[index]
        return True
