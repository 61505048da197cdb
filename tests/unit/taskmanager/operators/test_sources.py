"""Sources read exactly the rows of the splits that they are given."""

from __future__ import annotations

import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdover.v1.job_pb2 import (
    CsvSource,
    Operator,
    ParquetSource,
    SequenceSource,
    Source,
    Split,
    TextSource,
)
from taskmanager.operators.errors import JobError
from taskmanager.operators.source_csv import arrow_type
from tests.unit.taskmanager.operators.chain_harness import (
    file_splits,
    operator_context,
    run_chain,
    whole_file,
)


def text(path: Path, with_path: bool = False) -> Operator:
    return Operator(
        name="text", source=Source(text=TextSource(glob=str(path), with_path=with_path))
    )


def csv(path: Path, **options: object) -> Operator:
    source = CsvSource(glob=str(path), header=True)
    source.MergeFrom(CsvSource(**options))  # type: ignore[arg-type]
    return Operator(name="csv", source=Source(csv=source))


def parquet(path: Path, *columns: str) -> Operator:
    return Operator(
        name="parquet", source=Source(parquet=ParquetSource(glob=str(path), columns=columns))
    )


def rows(tmp_path: Path, operator: Operator, splits: list[Split]) -> pa.Table:
    with operator_context(tmp_path, splits) as context:
        return run_chain(context, [operator])


# --- text


@pytest.mark.parametrize("split_bytes", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize("content", [b"one\ntwo\n\nthree\n", b"one\r\ntwo", b"\n\n", b"", b"x"])
def test_each_line_belongs_to_the_split_in_which_it_starts(
    tmp_path: Path, content: bytes, split_bytes: int
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    found: list[str] = []
    for split in file_splits(file, split_bytes):
        found += rows(tmp_path, text(file), [split])["line"].to_pylist()
    assert found == content.decode().splitlines()


def test_a_line_may_be_longer_than_a_chunk(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    lines = ["x" * 3_000_000, "y", "z" * 1_500_000]
    file.write_text("\n".join(lines))
    assert rows(tmp_path, text(file), [whole_file(file)])["line"].to_pylist() == lines


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("caf\u00e9\nna\u00efve".encode("latin-1"))
    found = rows(tmp_path, text(file), [whole_file(file)])["line"].to_pylist()
    assert found == ["caf\ufffd", "na\ufffdve"]


def test_text_names_the_file_of_each_line_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo")
    found = rows(tmp_path, text(file, with_path=True), [whole_file(file)])
    assert found.to_pydict() == {"line": ["one", "two"], "path": [str(file)] * 2}


def test_splits_are_reported_in_reading_order_and_rows_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    splits = [whole_file(file, index=4), whole_file(file, index=1)]
    with operator_context(tmp_path, splits) as context:
        run_chain(context, [text(file)])
        assert (context.splits, context.rows_in) == ([4, 1], 4)


def test_a_file_that_changed_since_the_splits_were_made_fails_the_job(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    split = whole_file(file)
    file.write_text("one\n")
    with pytest.raises(JobError, match=r"a\.txt changed .* has 4 bytes, and had 8"):
        rows(tmp_path, text(file), [split])


# --- CSV


def test_csv_types_are_inferred_from_the_first_file_or_given(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id,price,name,empty\n1,2.50,a,\n2,3.75,b,\n")
    (tmp_path / "2.csv").write_text("id,price,name,empty\n3,1.00,7,x\n")
    operator = csv(tmp_path / "*.csv", typed_columns=["price"], column_types=["decimal128(9, 2)"])
    splits = [whole_file(tmp_path / "2.csv"), whole_file(tmp_path / "1.csv")]
    found = rows(tmp_path, operator, splits)
    assert found.schema.types == [pa.int64(), pa.decimal128(9, 2), pa.string(), pa.string()]
    assert found["price"].to_pylist() == [decimal.Decimal(x) for x in ("1.00", "2.50", "3.75")]
    assert found["name"].to_pylist() == ["7", "a", "b"]


def test_csv_line_ends_within_quotes_belong_to_the_value(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('id,text\n1,"two\nlines"\n2,one\n')
    found = rows(tmp_path, csv(file), [whole_file(file)])
    assert found["text"].to_pylist() == ["two\nlines", "one"]


@pytest.mark.parametrize("split_bytes", [3, 10, 17, 1000])
def test_csv_splits_together_give_each_row_once(tmp_path: Path, split_bytes: int) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id;name\n" + "".join(f"{i};n{i}\n" for i in range(40)))
    found = rows(tmp_path, csv(file, delimiter=";"), file_splits(file, split_bytes))
    assert found["id"].to_pylist() == list(range(40))


def test_csv_without_header_takes_the_given_names(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("1|x\n2|y\n")
    source = CsvSource(glob=str(file), delimiter="|", column_names=["id", "name"])
    found = rows(tmp_path, Operator(source=Source(csv=source)), [whole_file(file)])
    assert found.to_pydict() == {"id": [1, 2], "name": ["x", "y"]}


def test_a_csv_value_of_another_type_fails_the_job_naming_the_file(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id\n1\n")
    (tmp_path / "2.csv").write_text("id\nmany\n")
    with pytest.raises(JobError, match=r"2\.csv.*many"):
        rows(tmp_path, csv(tmp_path / "*.csv"), [whole_file(tmp_path / "2.csv")])


def test_csv_files_of_other_columns_fail_the_job(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id\n1\n")
    (tmp_path / "2.csv").write_text("key\n1\n")
    with pytest.raises(JobError, match=r"2\.csv has other columns than the first file"):
        rows(tmp_path, csv(tmp_path / "*.csv"), [whole_file(tmp_path / "2.csv")])


def test_a_type_that_is_none_is_refused() -> None:
    assert arrow_type("timestamp[us, tz=UTC]") == pa.timestamp("us", "UTC")
    with pytest.raises(JobError, match="'number' is not a column type; write an Arrow type"):
        arrow_type("number")


# --- Parquet


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """1,000 rows in ten row groups."""
    path = tmp_path / "numbers.parquet"
    table = pa.table(
        {
            "n": pa.array(range(1000), pa.int64()),
            "s": pa.array([f"v{i}" for i in range(1000)]).cast(pa.string_view()),
            "d": pa.array([decimal.Decimal(i) / 4 for i in range(1000)], pa.decimal128(15, 2)),
        }
    )
    pq.write_table(table, path, row_group_size=100)
    return path


@pytest.mark.parametrize("split_bytes", [50, 700, 3000, 10**6])
def test_each_row_group_belongs_to_one_split(
    tmp_path: Path, numbers: Path, split_bytes: int
) -> None:
    found = rows(tmp_path, parquet(numbers), file_splits(numbers, split_bytes))
    assert found["n"].to_pylist() == list(range(1000))
    assert found.schema.types == [pa.int64(), pa.string(), pa.decimal128(15, 2)]


def test_parquet_reads_the_chosen_columns_in_the_chosen_order(
    tmp_path: Path, numbers: Path
) -> None:
    found = rows(tmp_path, parquet(numbers, "d", "n"), [whole_file(numbers)])
    assert found.schema.names == ["d", "n"]
    assert found["d"].to_pylist()[3] == decimal.Decimal("0.75")


def test_types_that_duckdb_would_change_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    table = pa.table(
        {
            "wide": pa.array([decimal.Decimal(10) ** 40], pa.decimal256(42, 0)),
            "time": pa.array([1], pa.timestamp("ns", "UTC")),
            "word": pa.array(["a"]).dictionary_encode(),
        }
    )
    pq.write_table(table, path)
    found = rows(tmp_path, parquet(path), [whole_file(path)])
    expected = table.set_column(2, "word", table["word"].cast(pa.string()))
    assert found.equals(expected)


def test_a_subtask_without_splits_still_knows_the_columns(tmp_path: Path, numbers: Path) -> None:
    found = rows(tmp_path, parquet(numbers, "n"), [])
    assert (found.schema.names, found.num_rows) == (["n"], 0)


def test_a_file_whose_name_is_a_pattern_or_has_quotes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "it's [a] *.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    found = rows(tmp_path, parquet(tmp_path / "*.parquet"), [whole_file(path)])
    assert found["n"].to_pylist() == [1]


def test_a_missing_column_is_named_with_the_ones_there_are(tmp_path: Path, numbers: Path) -> None:
    with pytest.raises(JobError, match=r"has no column 'x'; its columns are: n, s, d"):
        rows(tmp_path, parquet(numbers, "x"), [])


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("no")
    with pytest.raises(JobError, match=r"a\.parquet is not a Parquet file"):
        rows(tmp_path, parquet(path), [whole_file(path)])


def test_a_parquet_file_of_other_columns_fails_the_job(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"n": ["x"]}), tmp_path / "2.parquet")
    with pytest.raises(JobError, match=r"2\.parquet has other columns .* n int64 was expected"):
        rows(tmp_path, parquet(tmp_path / "*.parquet"), [whole_file(tmp_path / "2.parquet")])


# --- sequence


def test_a_sequence_counts_from_start_up_to_end(tmp_path: Path) -> None:
    operator = Operator(source=Source(sequence=SequenceSource(start=0, end=300_000)))
    splits = [Split(index=0, start=200_000, end=300_000), Split(index=1, start=0, end=2)]
    found = rows(tmp_path, operator, splits)
    assert found["value"].to_pylist() == [*range(200_000, 300_000), 0, 1]
