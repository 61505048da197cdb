"""Workload: spends time and writes bytes, for experiments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from holdover.v1.job_pb2 import Workload
from taskmanager.operators.stream import BatchStream, OperatorContext

WORKLOAD_SCHEMA = pa.schema([pa.field("value", pa.int64())])
_VALUE_BYTES = 8
_BATCH_VALUES = 131_072


def open_workload(
    context: OperatorContext, workload: Workload, inputs: Sequence[BatchStream]
) -> BatchStream:
    """Reads its inputs to their end, waits, then makes `output_bytes` of random int64 values.

    The values are the same in every attempt of a subtask.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        for stream in inputs:
            for _ in stream.batches:
                context.cancellation.check()
        if workload.seconds > 0:
            context.cancellation.wait(workload.seconds)
        left = -(-workload.output_bytes // _VALUE_BYTES)
        if left == 0:
            return
        generator = np.random.default_rng(context.attempt.subtask)
        while left > 0:
            count = min(left, _BATCH_VALUES)
            values = generator.integers(-(2**63), 2**63 - 1, count, np.int64)
            yield pa.RecordBatch.from_arrays([pa.array(values)], schema=WORKLOAD_SCHEMA)
            left -= count

    return BatchStream(WORKLOAD_SCHEMA, batches())
