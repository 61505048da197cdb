"""Reports that the JobManager has not acknowledged yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import EXECUTION_STATE_FINISHED, EXECUTION_STATE_RUNNING
from holdover.v1.taskmanager_pb2 import ExecutionReport


class ReportQueue:
    """The newest report of each attempt, oldest attempt first, until it is acknowledged.

    Reports of one attempt coalesce: one that ends before its RUNNING was sent is only reported as
    ended. `reports_max` bounds it: `full` is asked before an attempt is taken.
    """

    def __init__(self, reports_max: int) -> None:
        self._reports_max = reports_max
        self._pending: dict[AttemptKey, ExecutionReport] = {}
        self._urgent = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def full(self) -> bool:
        """Whether no further attempt may be started."""
        return len(self._pending) >= self._reports_max

    @property
    def urgent(self) -> bool:
        """Whether anything but RUNNING waits."""
        return self._urgent > 0

    def add(self, key: AttemptKey, report: ExecutionReport) -> None:
        """Queue a report; it replaces an earlier one of the same attempt, unless that was final."""
        earlier = self._pending.get(key)
        if earlier is None or not _final(earlier):
            self._pending[key] = report
            self._urgent += _final(report)

    def take(self, count_max: int, bytes_max: int) -> list[tuple[AttemptKey, ExecutionReport]]:
        """The oldest reports, at least one, within the bounds. They stay queued."""
        taken: list[tuple[AttemptKey, ExecutionReport]] = []
        size = 0
        for key, report in self._pending.items():
            size += report.ByteSize()
            if taken and (len(taken) == count_max or size > bytes_max):
                break
            taken.append((key, report))
        return taken

    def acknowledge(self, taken: Sequence[tuple[AttemptKey, ExecutionReport]]) -> None:
        """Forget what the JobManager knows now; a newer report of the same attempt stays."""
        for key, report in taken:
            if self._pending.get(key) is report:
                self._remove(key)

    def drop(self, condition: Callable[[AttemptKey], bool], *, keep_finished: bool = False) -> None:
        """Forget reports that nobody wants any more."""
        for key, report in list(self._pending.items()):
            if condition(key) and not (keep_finished and report.state == EXECUTION_STATE_FINISHED):
                self._remove(key)

    def _remove(self, key: AttemptKey) -> None:
        self._urgent -= _final(self._pending.pop(key))


def _final(report: ExecutionReport) -> bool:
    return report.state != EXECUTION_STATE_RUNNING
