"""Groups that are in one piece only need no combining; all that might be in two are combined."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdover.v1.job_pb2 import Operator, ParquetSource, Source, Sql, SqlInput
from taskmanager.operators.sql_disjoint import set_apart
from tests.unit.taskmanager.operators.chain_harness import (
    file_splits,
    operator_context,
    run_chain,
)

Keys = list[int | None]


def parted(*pieces: Keys) -> tuple[Keys, Keys]:
    tables = [pa.table({"k": pa.array(keys, pa.int64())}) for keys in pieces]
    apart, rest = set_apart(tables, ["k"])
    return (
        [key for table in apart for key in table["k"].to_pylist()],
        [key for table in rest for key in table["k"].to_pylist()],
    )


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([[1, 2], [3, 4]], ([1, 2, 3, 4], [])),
        ([[3, 4, 5], [1, 3]], ([4, 5, 1], [3, 3])),
        ([[1, 5], [5, 5], [5, 9]], ([1, 9], [5, 5, 5, 5])),
        ([[1, None], [2, 3], [None, None]], ([1, 2, 3], [None, None, None])),
        ([[1, 10], [2, 3]], ([], [1, 10, 2, 3])),
        ([[1, 9], [1, 9]], ([], [1, 9, 1, 9])),
        ([[7, 7, None]], ([7, 7, None], [])),
        ([[], [1]], ([1], [])),
        ([], ([], [])),
    ],
)
def test_only_what_might_be_in_two_pieces_is_combined(
    pieces: list[Keys], expected: tuple[Keys, Keys]
) -> None:
    assert parted(*pieces) == expected


def test_any_column_of_the_group_may_tell_the_pieces_apart() -> None:
    first = pa.table({"name": ["a", "b"], "mixed": [1, 9], "k": [1, 2]})
    second = pa.table({"name": ["a", "b"], "mixed": [1, 9], "k": [3, 4]})
    assert set_apart([first, second], ["name", "mixed", "k"]) == ([first, second], [])
    assert set_apart([first, second], ["name", "mixed"]) == ([], [first, second])


def test_all_rows_of_one_group_are_combined_when_there_is_no_column() -> None:
    only = pa.table({"total": [3]})
    assert set_apart([only], []) == ([], [only])


@pytest.mark.parametrize("memory", ["1 gb", "16 mb"])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_grouped_source_gives_what_duckdb_gives(
    tmp_path: Path, memory: str, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if memory == "16 mb":  # so little that nothing is held
        monkeypatch.setattr("taskmanager.operators.sql._TABLES_SHARE", 0.0)
    rows = pa.table({"k": [i // 7 if i % 50 else None for i in range(20_000)]})
    rows = rows.append_column("v", pa.array(range(20_000)))
    if not ordered:
        rows = rows.take([(i * 7919) % 20_000 for i in range(20_000)])
    path = tmp_path / "rows.parquet"
    pq.write_table(rows, path, row_group_size=1000)
    query = "SELECT k, sum(v) AS s, count(*) AS n FROM rows GROUP BY k"
    operators = [
        Operator(name="scan", source=Source(parquet=ParquetSource(glob=str(path)))),
        Operator(name="sql", sql=Sql(query=query, inputs=[SqlInput(name="rows", vertex_input=-1)])),
    ]
    splits = file_splits(path, 20_000)
    assert len(splits) > 3
    with operator_context(tmp_path, splits, {"taskmanager.memory.task.size": memory}) as context:
        found = run_chain(context, operators)
    session = duckdb.connect()
    session.register("rows", rows)
    expected = session.sql(query).fetchall()
    columns = [column.to_pylist() for column in found.columns]
    assert sorted(zip(*columns, strict=True), key=repr) == sorted(expected, key=repr)
