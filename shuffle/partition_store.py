"""What a worker holds of finished attempts. Pure; the files are somebody else's.

An attempt is held as one whole: its partitions, the files it staged for a sink, its splits and
metrics. It is what a new leader is offered, so one that wrote no partition is held as well: the
leader's log may have lost its end (behaviour: finished but not yet logged).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.finished_record import files_of


class PartitionStore:
    """Finished attempts by key, and the paths of their partitions, which are below `directory`.

    `path_of` may be called from any thread; everything else from one.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._by_job: dict[str, dict[AttemptKey, FinishedExecution]] = {}
        self._served: dict[str, str] = {}
        #: The path of the finished partition of a name that is held, without suffix; None when
        #: there is none. Names that are held were made or checked here. Thread-safe.
        self.path_of: Callable[[str], str | None] = self._served.get
        #: The oldest first.
        self._by_age: dict[AttemptKey, None] = {}
        #: Size of the data files of all that is held.
        self.bytes = 0

    def add(self, key: AttemptKey, execution: FinishedExecution) -> None:
        """Hold a finished attempt; from now on its partitions are served. Repeating is allowed."""
        executions = self._by_job.setdefault(key.job_id, {})
        if key not in executions:
            self.bytes += _data_bytes(execution)
        executions[key] = execution
        self._by_age[key] = None
        for name in _names(key, execution):
            self._served[name] = f"{self._directory}/{name}"

    def release(self, keys: Iterable[AttemptKey]) -> list[list[str]]:
        """Let go of attempts; returns the files of each, to be deleted in this order.

        From now on none of them is served or offered. The files are relative to the shuffle
        directory. Unknown attempts are fine.
        """
        files: list[list[str]] = []
        for key in keys:
            executions = self._by_job.get(key.job_id, {})
            execution = executions.pop(key, None)
            if execution is not None:
                del self._by_age[key]
                files.append(files_of(key, execution))
                self.bytes -= _data_bytes(execution)
                for name in _names(key, execution):
                    self._served.pop(name, None)
            if not executions:
                self._by_job.pop(key.job_id, None)
        return files

    def release_job(self, job_id: str) -> list[list[str]]:
        """Let go of all attempts of a job; see `release`."""
        return self.release(list(self._by_job.get(job_id, ())))

    def holds(self, job_id: str) -> bool:
        """Whether anything finished of the job is held (P21)."""
        return job_id in self._by_job

    def get(self, key: AttemptKey) -> FinishedExecution | None:
        """The attempt, when it is held."""
        return self._by_job.get(key.job_id, {}).get(key)

    @property
    def partitions(self) -> int:
        """How many partitions are held."""
        return len(self._served)

    @property
    def jobs(self) -> list[str]:
        """Jobs of which anything is held, the longest held first."""
        return list(self._by_job)

    def inventory(self) -> list[FinishedExecution]:
        """All that is held, by job and then by age."""
        return [
            execution for executions in self._by_job.values() for execution in executions.values()
        ]

    def newest_epoch(self, job_id: str) -> int:
        """The highest leader epoch of what is held of a job; 0 for nothing."""
        return max((key.epoch for key in self._by_job.get(job_id, ())), default=0)

    def oldest(self, skipped: int, count: int) -> list[AttemptKey]:
        """At most `count` attempts, by age, without the `skipped` oldest."""
        return list(islice(self._by_age, skipped, skipped + count))

    def check(self) -> None:
        """Raise `AssertionError` when a partition is served that is not held, or the reverse."""
        held = {
            name
            for executions in self._by_job.values()
            for key, execution in executions.items()
            for name in _names(key, execution)
        }
        assert held == set(self._served), f"held {sorted(held)}, served {sorted(self._served)}"
        assert all(self._by_job.values()), "a job without executions is kept"
        keys = {key for executions in self._by_job.values() for key in executions}
        assert set(self._by_age) == keys, "some attempts have no age"
        n_bytes = sum(_data_bytes(execution) for execution in self.inventory())
        assert self.bytes == n_bytes, f"counted {self.bytes} bytes, held {n_bytes}"


def _names(key: AttemptKey, execution: FinishedExecution) -> list[str]:
    return [partition_name(key, partition.output) for partition in execution.partitions]


def _data_bytes(execution: FinishedExecution) -> int:
    n_bytes = 0
    for partition in execution.partitions:
        n_bytes += partition.data_bytes
    return n_bytes
