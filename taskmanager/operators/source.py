"""Sources: streams over the splits that the JobMaster hands out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from holdover.v1.job_pb2 import Source
from taskmanager.operators.errors import JobError
from taskmanager.operators.source_csv import open_csv
from taskmanager.operators.source_parquet import open_parquet
from taskmanager.operators.source_text import open_text
from taskmanager.operators.stream import BatchStream, OperatorContext

SEQUENCE_SCHEMA = pa.schema([pa.field("value", pa.int64())])
_SEQUENCE_BATCH_ROWS = 131_072


def open_source(context: OperatorContext, source: Source) -> BatchStream:
    """The rows of the splits that this subtask is given."""
    kind = source.WhichOneof("kind")
    if kind == "text":
        return open_text(context, source.text)
    if kind == "csv":
        return open_csv(context, source.csv)
    if kind == "parquet":
        return open_parquet(context, source.parquet)
    if kind == "sequence":
        return BatchStream(SEQUENCE_SCHEMA, context.counted(_sequence(context)))
    raise JobError("the source has no kind")


def _sequence(context: OperatorContext) -> Iterator[pa.RecordBatch]:
    for split in context.taken_splits():
        for start in range(split.start, split.end, _SEQUENCE_BATCH_ROWS):
            end = min(split.end, start + _SEQUENCE_BATCH_ROWS)
            values = pa.array(np.arange(start, end, dtype=np.int64))
            yield pa.RecordBatch.from_arrays([values], schema=SEQUENCE_SCHEMA)
