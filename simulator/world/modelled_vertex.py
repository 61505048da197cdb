"""What one attempt of a vertex does: its time, its rows, its bytes, whether it fails. Pure.

MODEL: see `simulator.world.modelled_task`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdover.ids import AttemptKey
from holdover.jobgraph.workload_draws import WorkloadDraw, draw_workload, source_identities
from holdover.v1.job_pb2 import (
    DETERMINISM_INDETERMINATE,
    DETERMINISM_UNORDERED,
    DISTRIBUTION_KIND_RANGE,
    JobVertex,
    Operator,
    SequenceSource,
    Sink,
    Split,
    Workload,
)
from simulator.world.rows import Rows, maker_of
from taskmanager.operators.errors import JobError

#: Numbers of a sequence that become rows.
SEQUENCE_ROWS_MAX = 10_000


class WorkloadFailure(Exception):
    """The failure that a workload has drawn."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What an attempt comes to.

    Attributes:
        seconds: how long it computes after reading its inputs.
        rows: what leaves its chain.
        output_bytes: of each output, or of the sink's file.
        rows_from_splits: rows that it read from splits.
        failure: how it fails after `seconds`, if it does.
        sink: where its rows end, if they end here.
    """

    seconds: float
    rows: Rows
    output_bytes: int
    rows_from_splits: int = 0
    failure: WorkloadFailure | None = None
    sink: Sink | None = None


class ModelledVertex:
    """A vertex of a job's graph; `place` is its position there."""

    def __init__(self, vertex: JobVertex, place: int, otherwise: Workload) -> None:
        """`otherwise` gives time and bytes where no operator is a workload."""
        self._vertex = vertex
        self._place = place
        self._otherwise = otherwise

    def outcome(
        self, key: AttemptKey, by_input: Mapping[int, Rows], splits: Sequence[Split]
    ) -> TaskOutcome:
        """What the attempt does with its inputs. Raises JobError for what is not modelled."""
        operators = self._vertex.operators
        boundaries = [
            output.distribution.boundaries_input
            for output in self._vertex.outputs
            if output.distribution.kind == DISTRIBUTION_KIND_RANGE
        ]
        rows = Rows()
        for number in sorted(by_input):
            if number not in boundaries:
                rows.extend(by_input[number])
        seconds, output_bytes, drawn = 0.0, 0, False
        from_splits = 0
        for operator in operators:
            if operator.HasField("source"):
                rows = _source_rows(operator, splits)
                from_splits = len(rows)
            elif operator.HasField("workload"):
                draw, rows = _through_workload(operator.workload, key, rows)
                seconds, drawn = seconds + draw.seconds, True
                output_bytes = _written_bytes(operator.workload, draw, rows)
                if draw.fails:
                    return TaskOutcome(seconds, Rows(), 0, failure=_failure(operator))
            elif operator.HasField("key_sample") or operator.HasField("range_boundaries"):
                rows = Rows()
            rows = self._reordered(operator, key, rows)
        if not drawn:
            draw = draw_workload(self._otherwise, key.vertex_id, key.subtask, key.attempt)
            if draw.fails:
                return TaskOutcome(draw.seconds, Rows(), 0, failure=_failure(operators[0]))
            seconds, output_bytes = draw.seconds, draw.output_bytes
        sink = operators[-1].sink if operators[-1].HasField("sink") else None
        return TaskOutcome(seconds, rows, output_bytes, from_splits, sink=sink)

    def _reordered(self, operator: Operator, key: AttemptKey, rows: Rows) -> Rows:
        if operator.determinism == DETERMINISM_UNORDERED:
            return rows.rotated(key.attempt)
        if operator.determinism == DETERMINISM_INDETERMINATE:
            return rows.rotated(key.attempt).made_by(maker_of(key, self._place))
        return rows


def sequence_rows(sequence: SequenceSource, start: int, end: int) -> range:
    """The rows that a part of a sequence gives, the same however it is split."""
    step = max(1, -(-(sequence.end - sequence.start) // SEQUENCE_ROWS_MAX))
    first = start + (sequence.start - start) % step
    return range(first, max(first, end), step)


def _through_workload(workload: Workload, key: AttemptKey, rows: Rows) -> tuple[WorkloadDraw, Rows]:
    draw = draw_workload(workload, key.vertex_id, key.subtask, key.attempt)
    if workload.rows:
        return draw, Rows(array("q", source_identities(workload, key.subtask)))
    return draw, rows if workload.pass_rows else Rows()


def _written_bytes(workload: Workload, draw: WorkloadDraw, rows: Rows) -> int:
    """Payload is part of a row: where rows are told apart, no row means no byte."""
    has_identities = workload.rows or workload.pass_rows
    return 0 if has_identities and not len(rows) else draw.output_bytes


def _source_rows(operator: Operator, splits: Sequence[Split]) -> Rows:
    kind = operator.source.WhichOneof("kind")
    if kind != "sequence":
        raise JobError(
            f"operator {operator.name!r}: a {kind} source cannot be simulated; put a sequence or a"
            " workload in its place"
        )
    rows = Rows()
    for split in splits:
        rows.ids.extend(sequence_rows(operator.source.sequence, split.start, split.end))
    return rows


def _failure(operator: Operator) -> WorkloadFailure:
    return WorkloadFailure(f"operator {operator.name!r} was to fail with a probability")
