"""Finished output that moves from one shuffle service to another, because its service is to leave.

The scheduler decides what is copied where, and says so in the job's events once it is there: from
then on the copy counts. The original is not deleted: readers that were told of it go on reading,
and its service may leave when they are over.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.failures import FailureHandling
from jobmanager.scheduler.optional_partitions import bytes_of
from jobmanager.scheduler.states import ACTIVE_EXECUTION_STATES, ExecutionState, JobState
from jobmanager.scheduler.vertices import ExecutionVertex, SubtaskId

#: Of one service; the next are chosen when all of these are done.
COPIES_AT_ONCE_MAX = 1000


class MovedPartitions:
    """The moves of one job's output under one leader."""

    def __init__(self, core: SchedulerCore, failures: FailureHandling) -> None:
        self._core = core
        self._graph = core.graph
        self._failures = failures
        #: (from, to) of each attempt whose output is being copied; and how many by `from`.
        self._under_way: dict[AttemptKey, tuple[str, str]] = {}
        self._copying: dict[str, int] = {}
        #: Vertices of which output has moved away from a service whose readers may be at work.
        self._moved_from: dict[str, dict[str, None]] = {}
        #: Of each leaving service that holds nothing more: attempts that may still read there.
        self._last_readers: dict[str, dict[SubtaskId, AttemptKey]] = {}

    def load_told(self, worker_id: str, load: sig.ShuffleLoad) -> None:
        """A shuffle service told how it is: what is needed of one that is to leave moves on."""
        leaves = load.draining and worker_id in self._core.workers
        if not leaves or self._graph.state is not JobState.RUNNING or worker_id in self._copying:
            return
        room = self._core.shuffle.room()
        copies: dict[str, list[AttemptKey]] = {}
        for vertex in self._graph.at_worker(worker_id):
            if self._copying.get(worker_id, 0) >= COPIES_AT_ONCE_MAX:
                break
            target = max(sorted(room), key=room.__getitem__, default="")
            size = bytes_of(vertex)
            if self._is_needed(vertex) and target and room[target] >= size:
                room[target] -= size
                key = vertex.key(self._graph.job_id)
                copies.setdefault(target, []).append(key)
                self._under_way[key] = (worker_id, target)
                self._copying[worker_id] = self._copying.get(worker_id, 0) + 1
        for target, keys in copies.items():
            address = self._core.workers[target]
            self._core.act(act.CopyPartitions(worker_id, target, address, tuple(keys)))

    def copied(self, signal: sig.PartitionsCopied) -> None:
        """A copy is published, or will not be."""
        if self._under_way.get(signal.key) != (signal.worker_id, signal.target_id):
            return  # it has been taken over already, when its holder registered
        self._over(signal.key)
        vertex = self._graph.find(signal.key)
        current = vertex is not None and self._is_at(vertex, signal.key, signal.worker_id)
        if vertex is None or not current:
            if not signal.obstacle:
                self._core.act(act.ReleasePartitions(signal.target_id, (signal.key,)))
        elif not signal.obstacle:
            self._move(vertex, signal.key, signal.target_id)
        elif signal.lost and vertex.available:
            self._graph.set_available(vertex, False)
            self._core.act(act.ReleasePartitions(signal.worker_id, (signal.key,)))
            self._failures.reset([(vertex, events_pb2.RESET_REASON_PARTITION_LOST)])
        self._core.reschedule()

    def is_offered(self, vertex: ExecutionVertex, key: AttemptKey, worker_id: str) -> bool:
        """A worker offers finished output that counts elsewhere. Whether it counts here from now
        on: it has come by a copy whose end nobody has heard, or the other holder is not there.
        """
        released = self._graph.vertices[vertex.vertex_id].released
        if vertex.key(self._graph.job_id) != key or released:
            return False
        arrives = self._under_way.get(key, ("", ""))[1] == worker_id
        if vertex.available and not arrives:
            return False
        if arrives:
            self._over(key)
        self._move(vertex, key, worker_id)
        return True

    def needs(self, worker_id: str) -> bool:
        """Whether the job may still want anything that a leaving service holds."""
        if self._graph.state in (JobState.CREATED, JobState.RECONCILING):
            return True  # what is needed is not known yet
        if self._graph.state is not JobState.RUNNING:
            return False
        there = any(map(self._is_needed, self._graph.at_worker(worker_id)))
        if there or self._core.shuffle.is_written(worker_id):
            self._last_readers.pop(worker_id, None)
            return True
        readers = self._last_readers.get(worker_id)
        if readers is None:
            readers = {v.id: v.key(self._graph.job_id) for v in self._readers(worker_id)}
        still = {s: key for s, key in readers.items() if self._is_active(s, key)}
        self._last_readers[worker_id] = still
        if not still:
            self._moved_from.pop(worker_id, None)
        return bool(still)

    def worker_lost(self, worker_id: str) -> None:
        """Who still reads from it what has moved away is started anew: it would find it lost."""
        self._last_readers.pop(worker_id, None)
        for reader in list(self._readers(worker_id)):
            self._core.cancel(reader)
        self._moved_from.pop(worker_id, None)

    def _readers(self, worker_id: str) -> Iterator[ExecutionVertex]:
        """Active subtasks that may read at a worker what has moved away from it."""
        for vertex_id in self._moved_from.get(worker_id, ()):
            for edge in self._graph.vertices[vertex_id].out_edges:
                for reader in self._graph.vertices[edge.target].subtasks:
                    if reader.state in ACTIVE_EXECUTION_STATES:
                        yield reader

    def _move(self, vertex: ExecutionVertex, key: AttemptKey, worker_id: str) -> None:
        # Whoever is deployed from now on is told of the new place.
        self._moved_from.setdefault(vertex.stored_at, {})[vertex.vertex_id] = None
        moved = events_pb2.PartitionsMoved(
            attempt=key.to_proto(), location=common_pb2.PartitionLocation(worker_id=worker_id)
        )
        self._core.emit(events_pb2.JobEvent(partitions_moved=moved))
        self._graph.set_available(vertex, worker_id in self._core.workers)

    def _over(self, key: AttemptKey) -> None:
        source, _ = self._under_way.pop(key)
        self._copying[source] -= 1
        if not self._copying[source]:
            del self._copying[source]

    def _is_needed(self, vertex: ExecutionVertex) -> bool:
        return vertex.available and self._core.wanted(vertex)

    def _is_at(self, vertex: ExecutionVertex, key: AttemptKey, worker_id: str) -> bool:
        finished = vertex.state is ExecutionState.FINISHED
        same = finished and vertex.key(self._graph.job_id) == key
        return same and vertex.stored_at == worker_id

    def _is_active(self, subtask: SubtaskId, key: AttemptKey) -> bool:
        return self._core.is_current(self._graph.vertex_at(*subtask), key)
