"""What the execution graph is made of: vertices, their subtasks, and the exchanges between them."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2
from jobmanager.scheduler.signals import SlotId
from jobmanager.scheduler.states import ExecutionState

SubtaskId = tuple[str, int]
"""(vertex id, subtask)."""


@dataclass(slots=True)
class ExecutionVertex:
    """One subtask with its current attempt."""

    vertex_id: str
    subtask: int
    #: Number of the current attempt, or of the next one while the state is CREATED or SCHEDULED.
    attempt: int = 0
    #: The next attempt's number is at least this: a finished attempt that was adopted may have a
    #: lower one than those that were begun after it.
    next_attempt: int = 0
    #: Epoch of the leader that deployed the current attempt; 0 before.
    epoch: int = 0
    state: ExecutionState = ExecutionState.CREATED
    #: Where the current attempt runs or ran; None while CREATED or SCHEDULED.
    slot: SlotId | None = None
    #: What the finished attempt left behind; set exactly while FINISHED.
    finished: common_pb2.FinishedExecution | None = None
    #: The worker that stores the partitions of the finished attempt, whether it is registered or
    #: not.
    stored_at: str = ""
    #: Whether that worker is registered with this leader and holds them.
    available: bool = False
    #: Splits handed to the current attempt, in order (sources).
    splits: list[int] = field(default_factory=list)
    #: Whether the current attempt has not heard that there are no more, or has not begun.
    asks_for_splits: bool = True
    #: Splits that every later attempt must read, because an earlier attempt's output of exactly
    #: these was promised to consumers (sources that finished once); None if there are none.
    pinned_splits: tuple[int, ...] | None = None
    #: Not before a restart delay has passed.
    held: bool = False
    #: Which subtask this is.
    id: SubtaskId = field(init=False)

    def __post_init__(self) -> None:
        self.id = (self.vertex_id, self.subtask)

    @property
    def worker_id(self) -> str:
        """The worker where the current attempt occupies a slot, or has left its partitions; empty
        if there is none.
        """
        return self.stored_at or (self.slot.worker_id if self.slot is not None else "")

    def key(self, job_id: str) -> AttemptKey:
        """The name of the current attempt."""
        return AttemptKey(job_id, self.vertex_id, self.subtask, self.attempt, self.epoch)


@dataclass(slots=True)
class Edge:
    """One exchange, seen from both ends."""

    index: int
    source: str
    source_output: int
    target: str
    target_input: int
    kind: int
    #: Whether a second run of the producer may bring a consumer other rows than the first
    #: (`holdover.jobgraph.determinism`).
    rows_differ: bool = False
    #: Whether subtask i reads only subtask i.
    forward: bool = field(init=False)
    #: Whether every subtask reads everything.
    broadcast: bool = field(init=False)

    def __post_init__(self) -> None:
        self.forward = self.kind == job_pb2.DISTRIBUTION_KIND_FORWARD
        self.broadcast = self.kind == job_pb2.DISTRIBUTION_KIND_BROADCAST


class ExecutionJobVertex:
    """A vertex with its subtasks; has none until it is initialized."""

    def __init__(self, vertex: job_pb2.JobVertex, determinism: int) -> None:
        self.vertex = vertex
        self.vertex_id = vertex.vertex_id
        self.determinism = determinism
        self.in_edges: list[Edge] = []
        self.out_edges: list[Edge] = []
        #: The number of subpartitions of each output.
        self.output_subpartitions = [output.subpartitions for output in vertex.outputs]
        self.subtasks: list[ExecutionVertex] = []
        #: Whether its shape is decided.
        self.initialized = False
        #: Number of subtasks; 0 until it is initialized.
        self.parallelism = 0
        #: For each in-edge the bounds of ExecutionJobVertexInitialized; empty for broadcast and
        #: forward.
        self.input_bounds: list[tuple[int, ...]] = []
        self.splits: tuple[job_pb2.Split, ...] = ()
        self._shape_digest = 0
        #: Number of subtasks in each ExecutionState, by its number: kept up to date, because every
        #: watcher of a job asks for it after every change.
        self.state_counts = [0] * (max(ExecutionState) + 1)
        #: Number of FINISHED subtasks whose partitions are at a registered worker.
        self.available_count = 0
        #: What the FINISHED subtasks have read and left behind, in all.
        self.rows_in = 0
        self.rows_out = 0
        self.bytes_out = 0
        #: Bytes of each subpartition over all FINISHED subtasks, for each output: kept up to date,
        #: because to sum them up for a large vertex would hold up the event loop.
        self.subpartition_bytes: list[list[int]] = [
            [0] * subpartitions for subpartitions in self.output_subpartitions
        ]
        #: Grows whenever a subtask leaves its output, another output than before, or is reset.
        self.output_version = 0
        #: Its partitions were released because every consumer had finished.
        self.released = False
        #: Whether the splits are in the log (also where there are none: this is no source).
        self.splits_recorded = self.source is None or not self.source.splits_unrecorded
        #: Whether splits must be listed before a subtask of it can run.
        self.splits_unknown = not self.splits_recorded

    def initialize(self, parallelism: int) -> None:
        """Its shape is decided: it has so many subtasks, all CREATED."""
        self.initialized = True
        self.parallelism = parallelism
        self.subtasks = [ExecutionVertex(self.vertex_id, index) for index in range(parallelism)]
        self.state_counts[ExecutionState.CREATED] = parallelism

    @property
    def shape_digest(self) -> int:
        """Names in 64 bits what was decided of an initialized vertex: its parallelism, the ranges
        of its inputs, its splits. Never 0."""
        if not self._shape_digest:
            digest = hashlib.blake2b(digest_size=8)
            digest.update(repr((self.parallelism, self.input_bounds)).encode())
            for split in self.splits:
                digest.update(split.SerializeToString(deterministic=True))
            self._shape_digest = int.from_bytes(digest.digest(), "big") or 1
        return self._shape_digest

    def add_output(self, execution: common_pb2.FinishedExecution) -> None:
        """A subtask has left this behind."""
        self._sum(execution, 1, operator.add)

    def remove_output(self, execution: common_pb2.FinishedExecution) -> None:
        """What a subtask had left behind does not count any more."""
        self._sum(execution, -1, operator.sub)

    def _sum(
        self,
        execution: common_pb2.FinishedExecution,
        sign: int,
        count: Callable[[int, int], int],
    ) -> None:
        self.rows_in += sign * execution.rows_in
        self.rows_out += sign * execution.rows_out
        for partition in execution.partitions:
            self.bytes_out += sign * partition.data_bytes
            if 0 <= partition.output < len(self.subpartition_bytes):
                sums = self.subpartition_bytes[partition.output]
                counts = partition.subpartition_bytes
                sums[: len(counts)] = map(count, sums, counts)

    @property
    def finished_count(self) -> int:
        """Number of FINISHED subtasks."""
        return self.state_counts[ExecutionState.FINISHED]

    @property
    def all_finished(self) -> bool:
        """Whether every subtask is FINISHED."""
        finished = self.state_counts[ExecutionState.FINISHED]
        return self.initialized and finished == self.parallelism

    @property
    def sink_paths(self) -> list[str]:
        """The output directories of its sinks."""
        return [op.sink.path for op in self.vertex.operators if op.HasField("sink")]

    @property
    def source(self) -> job_pb2.Source | None:
        """The source operator, if the vertex starts with one."""
        first = self.vertex.operators[0] if self.vertex.operators else None
        return first.source if first is not None and first.HasField("source") else None
