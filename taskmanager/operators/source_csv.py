"""CSV files."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as pacsv

from holdover.v1.job_pb2 import CsvSource, Split
from taskmanager.operators.errors import JobError
from taskmanager.operators.source_files import ByteRange, file_splits, first_file, line_range
from taskmanager.operators.stream import BatchStream, OperatorContext, describe_schema

_BLOCK_BYTES = 1 << 20
_DECIMAL = re.compile(r"decimal(128|256)\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*tz=([^\]]+))?\]")


def open_csv(context: OperatorContext, source: CsvSource) -> BatchStream:
    """The rows of CSV files.

    Types that are not given are inferred from the first MiB of the first file (by name), the same
    in every subtask; a column that is empty there is text. A file in one split may have line ends
    within quotes; the lines of a file in several splits belong to the split in which they start.
    Raises JobError naming the file when it does not fit.
    """
    schema = _schema(source)

    def batches() -> Iterator[pa.RecordBatch]:
        for split in file_splits(context):
            yield from _rows(source, schema, split)

    return BatchStream(schema, context.counted(batches()))


def arrow_type(text: str) -> pa.DataType:
    """The Arrow type that is written so: "int64", "decimal128(15, 2)", "timestamp[us]", ...

    Raises JobError for another text.
    """
    if decimal := _DECIMAL.fullmatch(text):
        bits, precision, scale = (int(part) for part in decimal.groups())
        try:
            return (
                pa.decimal128(precision, scale) if bits == 128 else pa.decimal256(precision, scale)
            )
        except ValueError as error:
            raise JobError(f"{text!r} is not a type: {error}") from error
    if timestamp := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(timestamp.group(1), timestamp.group(2))
    try:
        return pa.type_for_alias(text)
    except ValueError as error:
        raise JobError(
            f"{text!r} is not a column type; write an Arrow type such as int64, double, string,"
            " bool, date32, timestamp[us] or decimal128(15, 2)"
        ) from error


def _schema(source: CsvSource) -> pa.Schema:
    typed = {
        name: arrow_type(text)
        for name, text in zip(source.typed_columns, source.column_types, strict=True)
    }
    path = first_file(source.glob)
    with open(path, "rb") as file:
        found = _reader(source, file, path, typed, header=source.header).schema
    for name in typed:
        if name not in found.names:
            raise JobError(
                f"{path} has no column {name!r}, which has a given type;"
                f" its columns are: {', '.join(found.names)}"
            )
    return pa.schema(
        [
            pa.field(column.name, pa.string() if pa.types.is_null(column.type) else column.type)
            for column in found
        ]
    )


def _rows(source: CsvSource, schema: pa.Schema, split: Split) -> Iterator[pa.RecordBatch]:
    with open(split.path, "rb") as file:
        whole = split.start <= 0 and split.end >= split.file_bytes
        start, end = (0, split.file_bytes) if whole else line_range(file, split)
        if start >= end:
            return
        types = {column.name: column.type for column in schema}
        part = ByteRange(file, start, end)
        header = source.header and start == 0
        reader = _reader(source, part, split.path, types, header=header, names=schema.names)
        if reader.schema.names != schema.names:
            raise JobError(
                f"{split.path} has other columns than the first file: [{describe_schema(schema)}]"
                f" was expected, [{describe_schema(reader.schema)}] was found"
            )
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except pa.ArrowInvalid as error:
                raise JobError(f"{split.path} (from byte {start}): {error}") from error
            yield batch


def _reader(
    source: CsvSource,
    file: object,
    path: str,
    types: dict[str, pa.DataType],
    *,
    header: bool,
    names: list[str] | None = None,
) -> pacsv.CSVStreamingReader:
    """A streaming reader; `header` says whether the first line names the columns."""
    columns = None if header else (names or list(source.column_names) or None)
    try:
        return pacsv.open_csv(
            pa.PythonFile(file, mode="r"),
            read_options=pacsv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK_BYTES,
                column_names=columns,
                autogenerate_column_names=not header and columns is None,
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=source.delimiter or ",", newlines_in_values=True
            ),
            convert_options=pacsv.ConvertOptions(column_types=types, strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        raise JobError(f"{path}: {error}") from error
