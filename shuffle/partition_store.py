"""What a worker holds of finished attempts. Pure; the files are somebody else's.

An attempt is held as one whole: its partitions, the files it staged for a sink, its splits and
metrics. It is what a new leader is offered, so one that wrote no partition is held as well: the
leader's log may have lost its end (behaviour: finished but not yet logged).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import FinishedExecution


class PartitionStore:
    """Finished attempts by key, and the names of their partitions.

    `serves` may be called from any thread; everything else from one.
    """

    def __init__(self) -> None:
        self._by_job: dict[str, dict[AttemptKey, FinishedExecution]] = {}
        self._served: dict[str, AttemptKey] = {}

    def add(self, key: AttemptKey, execution: FinishedExecution) -> None:
        """Hold a finished attempt; from now on its partitions are served. Repeating is allowed."""
        self._by_job.setdefault(key.job_id, {})[key] = execution
        for name in _names(key, execution):
            self._served[name] = key

    def release(self, keys: Iterable[AttemptKey]) -> list[str]:
        """Let go of attempts; returns the names of the partitions to delete. Unknown ones are fine.

        From now on none of them is served or offered.
        """
        names: list[str] = []
        for key in keys:
            executions = self._by_job.get(key.job_id, {})
            execution = executions.pop(key, None)
            if execution is not None:
                names += _names(key, execution)
            if not executions:
                self._by_job.pop(key.job_id, None)
        for name in names:
            self._served.pop(name, None)
        return names

    def release_job(self, job_id: str) -> list[str]:
        """Let go of all attempts of a job; see `release`."""
        return self.release(list(self._by_job.get(job_id, ())))

    def holds(self, job_id: str) -> bool:
        """Whether anything finished of the job is held (P21)."""
        return job_id in self._by_job

    def get(self, key: AttemptKey) -> FinishedExecution | None:
        """The attempt, when it is held."""
        return self._by_job.get(key.job_id, {}).get(key)

    def serves(self, name: str) -> bool:
        """Whether a finished partition of this name is held. Thread-safe."""
        return name in self._served

    def inventory(self) -> list[FinishedExecution]:
        """All that is held, by job and then by age."""
        return [
            execution for executions in self._by_job.values() for execution in executions.values()
        ]

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


def _names(key: AttemptKey, execution: FinishedExecution) -> list[str]:
    return [partition_name(key, partition.output) for partition in execution.partitions]
