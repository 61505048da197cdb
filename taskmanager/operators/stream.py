"""What flows between the operators of a chain, and what an operator may use while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from holdover.config import Configuration
from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import StagedFile
from holdover.v1.job_pb2 import Split
from taskmanager.operators.cancellation import Cancellation

#: Rows that an operator aims at in a batch that it makes itself: large enough that the work per
#: batch does not show, small enough to stay in the processor's cache (measured on a scan of
#: TPC-H's lineitem: 1.3 s with 16,384 to 32,768 rows, 1.6 s with 122,880).
BATCH_ROWS = 32_768


@dataclass(slots=True)
class BatchStream:
    """Record batches of one schema, pulled by whoever needs them; nothing is read before.

    Attributes:
        schema: the schema of all batches. Without columns when nobody knows it: no producer made a
        batch. batches: one pass over the batches. scan: set when the stream is a Parquet source
        that nobody has begun to read. A consumer that
            can read it better than batch by batch takes this instead of `batches`.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    scan: ParquetPieces | None = None


@dataclass(frozen=True, slots=True)
class ParquetPiece:
    """One split of a Parquet source as DuckDB reads it: the text of a FROM clause, and its rows."""

    relation: str
    rows: int


class ParquetPieces(Protocol):
    """A Parquet source that can be read by DuckDB itself."""

    @property
    def example(self) -> str:
        """The source's first file, whole, as the text of a FROM clause: for planning only."""
        ...

    def pieces(self) -> Iterator[ParquetPiece]:
        """Takes the subtask's splits, one at a time."""
        ...

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of the subtask's splits, of these columns only (None: of all)."""
        ...


@dataclass(slots=True)
class OperatorContext:
    """What an operator may use, and where it leaves its counts. One per attempt.

    Attributes:
        attempt: which attempt it is.
        parallelism: number of subtasks of the vertex.
        options: the options of the job and the TaskManager.
        scratch_directory: for files that nobody needs after the attempt.
        next_split: asks the JobMaster for the next split; None when there are no more.
        cancellation: the attempt's.
        cleanup: what must be closed when the attempt is over, however it ends.
        splits: indexes of the splits that were read, in reading order.
        staged_files: what a sink has written.
        rows_in: rows read, from splits and from other vertices.
    """

    attempt: AttemptKey
    parallelism: int
    options: Configuration
    scratch_directory: str
    next_split: Callable[[], Split | None]
    cancellation: Cancellation
    cleanup: ExitStack
    splits: list[int] = field(default_factory=list)
    staged_files: list[StagedFile] = field(default_factory=list)
    rows_in: int = 0

    def taken_splits(self) -> Iterator[Split]:
        """The splits that the JobMaster gives this subtask, until there are no more."""
        while (split := self.next_split()) is not None:
            self.splits.append(split.index)
            yield split

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; their rows are counted as read."""
        for batch in batches:
            self.rows_in += batch.num_rows
            yield batch


def describe_schema(schema: pa.Schema) -> str:
    """For messages: "a int64, b string"."""
    return ", ".join(f"{column.name} {column.type}" for column in schema) or "no columns"


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays(
        [pa.array([], column.type) for column in schema], schema=schema
    )
