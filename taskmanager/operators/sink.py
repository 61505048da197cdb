"""Sinks: files under a staging directory of the attempt, which the job's end publishes by renaming.

A subtask writes one file, also when it has no rows, so that a reader of the directory finds the
columns; it writes none when nobody knows the columns. What is reported as staged is on the disk:
the commit only renames (behaviour: the sink's commit is exactly-once).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from holdover.v1.common_pb2 import StagedFile
from holdover.v1.job_pb2 import FileFormat, Sink
from taskmanager.operators.errors import JobError
from taskmanager.operators.stream import BatchStream, OperatorContext, describe_schema

# A row group: large enough to compress and scan well, and what is held in memory at most.
_ROW_GROUP_ROWS = 122_880
_ROW_GROUP_BYTES = 64 << 20

_Write = Callable[[pa.RecordBatch], None]


def staging_directory(context: OperatorContext, sink: Sink) -> str:
    """Where the attempt writes; below the job's directory, named by vertex and attempt."""
    attempt = context.attempt
    name = f"{attempt.vertex_id}-{attempt.subtask}-{attempt.attempt}-{attempt.epoch}"
    return os.path.join(sink.path, f".staging-{attempt.job_id}", name)


def write_sink(context: OperatorContext, name: str, sink: Sink, upstream: BatchStream) -> int:
    """Writes all batches; returns the number of rows, and leaves a StagedFile in the context.

    Raises JobError when the columns do not fit the format, OSError of the disk. After any exception
    the attempt's staging directory is gone once the context's cleanup has run.
    """
    check_columns(name, sink.format, upstream.schema)
    if not len(upstream.schema):
        for batch in upstream.batches:
            raise JobError(f"operator {name!r}: {batch.num_rows} rows without a column")
        return 0
    directory = staging_directory(context, sink)
    subtask = f"{context.attempt.subtask:05d}"
    extension = _EXTENSIONS[sink.format]
    path = os.path.join(directory, f"part-{subtask}.{extension}")
    context.cleanup.callback(_remove_unless_staged, context, directory)
    _make_directory(directory)
    rows = 0
    refused = partial(_refused_columns, name, extension, upstream.schema)
    with open(path, "wb") as file, ExitStack() as closing:
        with refused():
            write = closing.enter_context(_WRITERS[sink.format](file, upstream.schema))
        for batch in upstream.batches:
            context.cancellation.check()
            with refused():
                write(batch)
            rows += batch.num_rows
        with refused():
            closing.close()
        file.flush()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    _sync_directories(directory, sink.path)
    final = f"part-{context.attempt.vertex_id}-{subtask}.{extension}"
    context.staged_files.append(
        StagedFile(
            staged_path=path, final_path=os.path.join(sink.path, final), bytes=size, rows=rows
        )
    )
    return rows


def _make_directory(path: str) -> None:
    """The attempt's own, and none above it: those are gone when the job is over, or has begun to
    publish, and then nothing may be left here."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path)
    except FileNotFoundError as error:
        above = os.path.dirname(path)
        text = "the staging directory is missing: its job has ended, or it could not be made"
        raise FileNotFoundError(error.errno, text, above) from error


@contextmanager
def _refused_columns(name: str, extension: str, schema: pa.Schema) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise JobError(
            f"operator {name!r} cannot write [{describe_schema(schema)}] as {extension}: {error}"
        ) from error


def check_columns(name: str, file_format: FileFormat.ValueType, schema: pa.Schema) -> None:
    """Raises JobError when rows of this schema cannot be written in the format."""
    if file_format not in _WRITERS:
        raise JobError(f"operator {name!r}: file format {file_format} is not known")
    is_text = file_format == FileFormat.FILE_FORMAT_TEXT
    if is_text and len(schema) and [_is_string(kind) for kind in schema.types] != [True]:
        raise JobError(
            f"operator {name!r}: a text file takes exactly one column of strings, not"
            f" [{describe_schema(schema)}]; select one, or write CSV or Parquet"
        )


def _is_string(kind: pa.DataType) -> bool:
    plain: bool = (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    )
    return plain


@contextmanager
def _text_writer(file: BinaryIO, schema: pa.Schema) -> Iterator[_Write]:
    """One value a line; a null is an empty line, and a line end within a value stays one."""

    def write(batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            values = pc.fill_null(batch.column(0), "").to_pylist()
            file.write(("\n".join(values) + "\n").encode())

    yield write


@contextmanager
def _csv_writer(file: BinaryIO, schema: pa.Schema) -> Iterator[_Write]:
    with pacsv.CSVWriter(file, schema) as writer:
        yield writer.write_batch


@contextmanager
def _parquet_writer(file: BinaryIO, schema: pa.Schema) -> Iterator[_Write]:
    held: list[pa.RecordBatch] = []

    with pq.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            if held:
                table = pa.Table.from_batches(held, schema)
                writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
                held.clear()

        def write(batch: pa.RecordBatch) -> None:
            held.append(batch)
            if (
                sum(part.num_rows for part in held) >= _ROW_GROUP_ROWS
                or sum(part.nbytes for part in held) >= _ROW_GROUP_BYTES
            ):
                flush()

        yield write
        flush()


_WRITERS: dict[
    FileFormat.ValueType, Callable[[BinaryIO, pa.Schema], AbstractContextManager[_Write]]
] = {
    FileFormat.FILE_FORMAT_TEXT: _text_writer,
    FileFormat.FILE_FORMAT_CSV: _csv_writer,
    FileFormat.FILE_FORMAT_PARQUET: _parquet_writer,
}
_EXTENSIONS: dict[FileFormat.ValueType, str] = {
    FileFormat.FILE_FORMAT_TEXT: "txt",
    FileFormat.FILE_FORMAT_CSV: "csv",
    FileFormat.FILE_FORMAT_PARQUET: "parquet",
}


def _sync_directories(directory: str, root: str) -> None:
    """Makes the entries of `directory` durable, and its own, up to the output directory's own."""
    stop = os.path.dirname(os.path.normpath(root))
    while True:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if directory in (stop, os.path.dirname(directory)):
            return
        directory = os.path.dirname(directory)


def _remove_unless_staged(context: OperatorContext, directory: str) -> None:
    if not context.staged_files:
        shutil.rmtree(directory, ignore_errors=True)
