"""Runs chains of operators in the test's own process, with splits from a list."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from holdover.config import Configuration
from holdover.ids import AttemptKey
from holdover.v1.job_pb2 import JobVertex, Operator, Split, Sql, SqlInput
from taskmanager.operators.cancellation import Cancellation
from taskmanager.operators.chain import open_chain
from taskmanager.operators.stream import BatchStream, OperatorContext

ATTEMPT = AttemptKey("job", "v0", 2, 1, 7)


@contextmanager
def operator_context(
    tmp_path: Path, splits: Sequence[Split] = (), options: Mapping[str, str] | None = None
) -> Iterator[OperatorContext]:
    """A context whose splits come from a list; cleaned up at the end."""
    left = list(splits)
    with ExitStack() as cleanup:
        yield OperatorContext(
            attempt=ATTEMPT,
            parallelism=4,
            options=Configuration.of(options or {}),
            scratch_directory=str(tmp_path / "scratch"),
            next_split=lambda: left.pop(0) if left else None,
            cancellation=Cancellation(),
            cleanup=cleanup,
        )


def run_chain(
    context: OperatorContext,
    operators: Sequence[Operator],
    inputs: Mapping[int, BatchStream] | None = None,
) -> pa.Table:
    """All rows that leave the chain."""
    vertex = JobVertex(vertex_id="v0", operators=operators)
    stream = open_chain(context, vertex, inputs or {})
    return pa.Table.from_batches(stream.batches, stream.schema)


def stream_of(table: pa.Table, batch_rows: int = 1000) -> BatchStream:
    """A table as a stream of small batches."""
    return BatchStream(table.schema, iter(table.to_batches(batch_rows)))


def whole_file(path: Path, index: int = 0) -> Split:
    """One split that is the file."""
    size = os.path.getsize(path)
    return Split(index=index, path=str(path), start=0, end=size, file_bytes=size)


def file_splits(path: Path, split_bytes: int) -> list[Split]:
    """The file in splits of so many bytes."""
    size = os.path.getsize(path)
    return [
        Split(
            index=index,
            path=str(path),
            start=start,
            end=min(start + split_bytes, size),
            file_bytes=size,
        )
        for index, start in enumerate(range(0, size, split_bytes))
    ]


def sql_operator(query: str, **inputs: int) -> Operator:
    """A query whose tables are these vertex inputs; -1 is the operator before."""
    tables = [SqlInput(name=name, vertex_input=number) for name, number in inputs.items()]
    return Operator(name="query", sql=Sql(query=query, inputs=tables))
