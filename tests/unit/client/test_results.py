"""Output files as a table."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdover.client.results import table_of
from holdover.errors import RequestRefused
from holdover.v1.job_pb2 import FileFormat


def test_text_files_become_lines() -> None:
    contents = [b"a\n\nb\n", b"", b"c"]
    table = table_of(contents, FileFormat.FILE_FORMAT_TEXT)
    assert table.to_pydict() == {"line": ["a", "", "b", "c"]}


def test_csv_columns_get_a_type_that_fits_all_files() -> None:
    contents = [b"k,v\n1,2\n", b"k,v\n", b"k,v\nx,3\n"]
    table = table_of(contents, FileFormat.FILE_FORMAT_CSV)
    assert table.to_pydict() == {"k": ["1", "x"], "v": [2, 3]}


def test_parquet_files_keep_their_types() -> None:
    contents = []
    for value in (1, 2):
        buffer = io.BytesIO()
        pq.write_table(pa.table({"v": pa.array([value], pa.int16())}), buffer)
        contents.append(buffer.getvalue())
    table = table_of(contents, FileFormat.FILE_FORMAT_PARQUET)
    assert table.schema.field("v").type == pa.int16()
    assert table.to_pydict() == {"v": [1, 2]}


def test_an_unknown_format_is_refused_by_its_number() -> None:
    with pytest.raises(RequestRefused, match="number 0"):
        table_of([b""], FileFormat.FILE_FORMAT_UNSPECIFIED)
