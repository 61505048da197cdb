"""Workload: spends time and writes bytes, for experiments."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdover.jobgraph.workload_draws import (
    IDENTITY_BYTES,
    WorkloadDraw,
    draw_workload,
    order_shift,
    row_bytes_until,
    source_identities,
)
from holdover.v1.job_pb2 import DETERMINISM_DETERMINATE, DETERMINISM_INDETERMINATE, Operator
from taskmanager.operators.errors import JobError
from taskmanager.operators.stream import (
    BATCH_ROWS,
    BatchStream,
    OperatorContext,
    describe_schema,
)

VALUE = "value"
WORKLOAD_SCHEMA = pa.schema([pa.field(VALUE, pa.int64())])
IDENTITY_SCHEMA = pa.schema([pa.field(VALUE, pa.int64()), pa.field("payload", pa.string())])
_BATCH_VALUES = 131_072
_BATCH_BYTES = 1 << 20
# Payload is made of 64 characters that no text format has to quote.
_FIRST_CHARACTER = np.uint8(ord("0"))
_CHARACTER_BITS = np.uint8(63)


class WorkloadFailed(Exception):
    """The failure that the workload was asked for."""


def open_workload(
    context: OperatorContext, operator: Operator, inputs: Sequence[BatchStream]
) -> BatchStream:
    """Reads its inputs to their end, waits, then writes what it has drawn.

    Identities (`Workload.rows`, `pass_rows`) leave with a payload, else random int64 values. What
    it writes is the same in every attempt, as far as the operator promises that. Raises
    WorkloadFailed from its batches, and JobError when identities are missing in an input.
    """
    workload = operator.workload
    attempt = context.attempt
    draw = draw_workload(workload, attempt.vertex_id, attempt.subtask, attempt.attempt)
    if workload.pass_rows:
        for stream in inputs:
            _check_identities(operator.name, stream.schema)
    ledger = _Ledger(context, workload.ledger_path, draw) if workload.ledger_path else None

    def batches() -> Iterator[pa.RecordBatch]:
        identities = [np.array(source_identities(workload, attempt.subtask), np.int64)]
        for stream in inputs:
            for batch in stream.batches:
                context.cancellation.check()
                if workload.pass_rows:
                    identities.append(batch.column(VALUE).to_numpy())
        if draw.seconds > 0:
            context.cancellation.wait(draw.seconds)
        if draw.fails:
            raise WorkloadFailed(f"it was to fail with probability {workload.failure_probability}")
        if workload.rows or workload.pass_rows:
            yield from _padded(context, operator, np.concatenate(identities), draw.output_bytes)
        else:
            yield from _random_values(attempt.subtask, draw.output_bytes)
        if ledger is not None:
            ledger.finished = True

    is_padded = workload.rows or workload.pass_rows
    return BatchStream(IDENTITY_SCHEMA if is_padded else WORKLOAD_SCHEMA, batches())


def _check_identities(name: str, schema: pa.Schema) -> None:
    if not len(schema):
        return  # no producer had a row
    if VALUE not in schema.names or schema.field(VALUE).type != pa.int64():
        raise JobError(
            f"operator {name!r} hands on column {VALUE!r} (int64), but reads"
            f" [{describe_schema(schema)}]"
        )


def _random_values(subtask: int, output_bytes: int) -> Iterator[pa.RecordBatch]:
    left = -(-output_bytes // IDENTITY_BYTES)
    if left <= 0:
        return  # a generator takes longer to make than all else that such an attempt does
    generator = np.random.default_rng(subtask)
    while left > 0:
        count = min(left, _BATCH_VALUES)
        values = generator.integers(-(2**63), 2**63 - 1, count, np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(values)], schema=WORKLOAD_SCHEMA)
        left -= count


def _padded(
    context: OperatorContext, operator: Operator, identities: npt.NDArray[np.int64], n_bytes: int
) -> Iterator[pa.RecordBatch]:
    attempt = context.attempt
    rows = len(identities)
    ordered = operator.determinism in (0, DETERMINISM_DETERMINATE)
    identities = np.roll(identities, -order_shift(rows, attempt.attempt, ordered))
    again = operator.determinism == DETERMINISM_INDETERMINATE
    seed = [operator.workload.seed % (1 << 64), attempt.subtask, attempt.attempt if again else 0]
    generator = np.random.default_rng(seed)
    # Whole rows up to the size of a batch, and one row at least.
    batch_rows = max(1, rows * _BATCH_BYTES // max(1, row_bytes_until(rows, rows, n_bytes)))
    batch_rows = min(batch_rows, BATCH_ROWS)
    for start in range(0, rows, batch_rows):
        context.cancellation.check()
        part = identities[start : start + batch_rows]
        ends = [
            row_bytes_until(row, rows, n_bytes) - row * IDENTITY_BYTES
            for row in range(start, start + len(part) + 1)
        ]
        offsets = np.array(ends, np.int64) - ends[0]
        drawn = np.frombuffer(generator.bytes(int(offsets[-1])), np.uint8)
        text = (drawn & _CHARACTER_BITS) + _FIRST_CHARACTER
        payload = pa.Array.from_buffers(
            pa.string(),
            len(part),
            [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)],
        )
        yield pa.RecordBatch.from_arrays([pa.array(part), payload], schema=IDENTITY_SCHEMA)


class _Ledger:
    """Lines about one attempt in a file that many attempts share: each line is one write."""

    def __init__(self, context: OperatorContext, path: str, draw: WorkloadDraw) -> None:
        self._context = context
        self._path = path
        self._draw = draw
        #: Whether the operator came to its end.
        self.finished = False
        self._append("started")
        context.cleanup.callback(self._end)

    def _end(self) -> None:
        if self._context.cancellation.requested:
            self._append("canceled")
        else:
            self._append("finished" if self.finished else "failed")

    def _append(self, event: str) -> None:
        attempt = self._context.attempt
        # The scratch directory is `<resource id>/scratch/<job>/<attempt>` below `io.tmp.dirs`.
        directories = self._context.scratch_directory.split("/")
        line = json.dumps(
            {
                "event": event,
                "wall_ms": int(time.time() * 1000),
                "worker": directories[-4] if len(directories) > 3 else "",
                "job": attempt.job_id,
                "vertex": attempt.vertex_id,
                "subtask": attempt.subtask,
                "attempt": attempt.attempt,
                "epoch": attempt.epoch,
                "seconds": self._draw.seconds,
                "bytes": self._draw.output_bytes,
            }
        )
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
