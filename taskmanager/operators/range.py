"""The two steps before a range exchange: a sample of keys, and boundary rows made from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdover.v1.job_pb2 import KeySample, RangeBoundaries
from shuffle.errors import MissingKeyColumn
from taskmanager.operators.stream import BatchStream, OperatorContext


def open_key_sample(
    context: OperatorContext, sample: KeySample, upstream: BatchStream
) -> BatchStream:
    """At most `rows_max` evenly spaced rows of the key columns, in their order.

    The sample depends on nothing but the rows and their order. Every `stride`-th row is kept; when
    twice as many rows as are wanted are held, every second one of them is dropped and the stride
    doubles, so memory stays bounded however many rows come. Raises MissingKeyColumn.
    """
    schema = key_schema(upstream.schema, sample.keys)

    def batches() -> Iterator[pa.RecordBatch]:
        rows_max = max(1, sample.rows_max)
        kept = schema.empty_table()
        stride = 1
        next_row = 0
        for batch in upstream.batches:
            context.cancellation.check()
            first = -next_row % stride
            next_row += batch.num_rows
            rows = pa.array(np.arange(first, batch.num_rows, stride))
            piece = batch.select(list(sample.keys)).take(rows).replace_schema_metadata(None)
            kept = pa.concat_tables([kept, pa.Table.from_batches([piece], schema)])
            while kept.num_rows > 2 * rows_max:
                kept = kept.take(pa.array(np.arange(0, kept.num_rows, 2))).combine_chunks()
                stride *= 2
        yield from evenly_spaced(kept, min(rows_max, kept.num_rows)).to_batches()

    return BatchStream(schema, batches())


def open_range_boundaries(
    context: OperatorContext, boundaries: RangeBoundaries, upstream: BatchStream
) -> BatchStream:
    """The rows that separate `ranges` ranges of about equally many sampled rows, ascending.

    There are `ranges - 1` of them, or none when there is no sample; a range ends with its boundary,
    inclusive. Rows with a null or NaN key bound nothing. Raises MissingKeyColumn.
    """
    keys = list(boundaries.keys)
    schema = key_schema(upstream.schema, keys)

    def batches() -> Iterator[pa.RecordBatch]:
        samples = pa.Table.from_batches(
            [batch.select(keys).replace_schema_metadata(None) for batch in upstream.batches], schema
        )
        context.cancellation.check()
        for key in keys:
            samples = samples.filter(pc.invert(samples[key].is_null(nan_is_null=True)))
        order = samples.sort_by([(key, "ascending") for key in keys])
        count = max(1, boundaries.ranges) if order.num_rows else 1
        last_rows = np.arange(1, count) * order.num_rows // count - 1
        chosen = order.take(pa.array(np.maximum(last_rows, 0), pa.int64()))
        yield from chosen.combine_chunks().to_batches()

    return BatchStream(schema, batches())


def key_schema(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The key columns of a schema, in the order of the keys; raises MissingKeyColumn."""
    for key in keys:
        if key not in schema.names:
            raise MissingKeyColumn(key, schema.names)
    return pa.schema([schema.field(key).remove_metadata() for key in keys])


def evenly_spaced(table: pa.Table, count: int) -> pa.Table:
    """`count` rows of the table at equal distances, the first one included."""
    rows = np.arange(count, dtype=np.int64) * table.num_rows // max(1, count)
    return table.take(pa.array(rows)).combine_chunks()
