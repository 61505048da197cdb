"""Sinks stage durable files, and leave nothing when the attempt fails."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdover.v1.common_pb2 import StagedFile
from holdover.v1.job_pb2 import FileFormat, Sink
from taskmanager.operators.errors import JobError
from taskmanager.operators.sink import write_sink
from taskmanager.operators.stream import BatchStream
from tests.unit.taskmanager.operators.chain_harness import operator_context, stream_of

TABLE = pa.table({"n": [1, 2, 3], "d": pa.array([Decimal("1.50")] * 3, pa.decimal128(9, 2))})


def write(tmp_path: Path, kind: str, stream: BatchStream) -> StagedFile:
    sink = Sink(path=str(tmp_path / "out"), format=FileFormat.Value(f"FILE_FORMAT_{kind}"))
    (tmp_path / "out/.staging-job").mkdir(parents=True)
    with operator_context(tmp_path) as context:
        rows = write_sink(context, "out", sink, stream)
        (staged,) = context.staged_files
    assert rows == staged.rows
    assert Path(staged.staged_path).stat().st_size == staged.bytes
    return staged


def test_a_parquet_file_is_staged_under_the_name_of_its_attempt(tmp_path: Path) -> None:
    staged = write(tmp_path, "PARQUET", stream_of(TABLE, 2))
    out = tmp_path / "out"
    assert staged.staged_path == f"{out}/.staging-job/v0-2-1-7/part-00002.parquet"
    assert staged.final_path == f"{out}/part-v0-00002.parquet"
    assert pq.read_table(staged.staged_path).equals(TABLE)


def test_small_batches_become_large_row_groups(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(130_000))})
    staged = write(tmp_path, "PARQUET", stream_of(table, 1000))
    assert pq.ParquetFile(staged.staged_path).metadata.num_row_groups <= 3


def test_csv_has_a_header_and_exact_decimals(tmp_path: Path) -> None:
    staged = write(tmp_path, "CSV", stream_of(TABLE.slice(0, 1)))
    assert Path(staged.staged_path).read_text() == '"n","d"\n1,1.50\n'


def test_text_is_one_value_a_line(tmp_path: Path) -> None:
    table = pa.table({"line": ["a", None, "c"]})
    staged = write(tmp_path, "TEXT", stream_of(table, 2))
    assert Path(staged.staged_path).read_text() == "a\n\nc\n"


@pytest.mark.parametrize(("kind", "content"), [("CSV", '"n","d"\n'), ("PARQUET", None)])
def test_a_subtask_without_rows_writes_a_file_with_the_columns(
    tmp_path: Path, kind: str, content: str | None
) -> None:
    staged = write(tmp_path, kind, stream_of(TABLE.slice(0, 0)))
    if content is None:
        assert pq.read_table(staged.staged_path).schema == TABLE.schema
    else:
        assert Path(staged.staged_path).read_text() == content


def test_a_text_file_takes_one_column_of_strings(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"exactly one column of strings, not \[n int64, d"):
        write(tmp_path, "TEXT", stream_of(TABLE))


def test_a_column_that_csv_cannot_hold_fails_the_job(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"cannot write \[l list<.*>\] as csv"):
        write(tmp_path, "CSV", stream_of(pa.table({"l": [[1]]})))
    assert not (tmp_path / "out/.staging-job/v0-2-1-7").exists()


def test_nothing_is_staged_of_a_job_that_is_over(tmp_path: Path) -> None:
    """Its staging directory is gone, and does not come back (P35)."""
    sink = Sink(path=str(tmp_path / "out"), format=FileFormat.FILE_FORMAT_CSV)
    with operator_context(tmp_path) as context:
        for missing in ("out", "out/.staging-job"):
            with pytest.raises(FileNotFoundError, match="staging directory is missing") as raised:
                write_sink(context, "out", sink, stream_of(TABLE))
            assert raised.value.filename == f"{tmp_path}/out/.staging-job"
            assert not (tmp_path / missing).exists()
            (tmp_path / "out").mkdir(exist_ok=True)
    assert list((tmp_path / "out").iterdir()) == []


def test_without_known_columns_no_file_is_written(tmp_path: Path) -> None:
    sink = Sink(path=str(tmp_path / "out"), format=FileFormat.FILE_FORMAT_CSV)
    with operator_context(tmp_path) as context:
        assert write_sink(context, "out", sink, BatchStream(pa.schema([]), iter(()))) == 0
        assert context.staged_files == []
    assert not (tmp_path / "out").exists()
