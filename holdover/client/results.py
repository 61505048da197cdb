"""Committed output files as one Arrow table, from their bytes in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdover.errors import RequestRefused
from holdover.v1.job_pb2 import FileFormat

if TYPE_CHECKING:
    import pyarrow as pa


def table_of(contents: Sequence[bytes], file_format: FileFormat.ValueType) -> pa.Table:
    """The rows of files of one format, in order. No file gives a table without columns.

    Text becomes one column "line". The columns of CSV files get the types that fit all files.
    """
    import pyarrow as pa  # slow to import, and only results need it

    if not contents:
        return pa.table({})
    if file_format == FileFormat.FILE_FORMAT_TEXT:
        return pa.table({"line": pa.array(_lines(contents), pa.string())})
    if file_format == FileFormat.FILE_FORMAT_CSV:
        from pyarrow import csv

        return csv.read_csv(pa.BufferReader(_one_csv(contents)))
    if file_format == FileFormat.FILE_FORMAT_PARQUET:
        from pyarrow import parquet

        tables = [parquet.read_table(pa.BufferReader(content)) for content in contents]
        return pa.concat_tables(tables, promote_options="permissive")
    raise RequestRefused(
        f"the results have a format (number {file_format}) that this client cannot read:"
        " its version is older than the cluster's"
    )


def _lines(contents: Sequence[bytes]) -> list[str]:
    lines: list[str] = []
    for content in contents:
        text = content.decode("utf-8", "replace")
        lines.extend(text.removesuffix("\n").split("\n") if text else ())
    return lines


def _one_csv(contents: Sequence[bytes]) -> bytes:
    """One CSV file with the rows of all, whose header lines are equal."""
    header, newline, _ = contents[0].partition(b"\n")
    rows = [content.removeprefix(header).removeprefix(b"\n") for content in contents]
    return (
        header
        + newline
        + b"".join(row if row.endswith(b"\n") else row + b"\n" for row in rows if row)
    )
