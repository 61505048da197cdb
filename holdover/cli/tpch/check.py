"""Whether a job's result is what DuckDB alone gives for the same query on the same files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdover.cli.tpch.data import TABLES, TpchData
from holdover.cli.tpch.query import Query

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[object, ...]
_SHOWN_ROWS_MAX = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two results side by side; `difference` is empty when they are equal."""

    rows: int
    difference: str

    @property
    def equal(self) -> bool:
        """Same columns, same rows, the order that the query asks for."""
        return not self.difference


def reference(query: Query, data: TpchData, threads: int = 2) -> pa.Table:
    """The result of DuckDB alone."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": threads}) as session:
        for table in TABLES:
            path = data.file(table).replace("'", "''")
            session.execute(f"create view {table} as select * from read_parquet('{path}')")
        return session.sql(query.sql).to_arrow_table()


def read_output(directory: Path) -> pa.Table:
    """The rows that a job has committed to a directory, in the order of its files.

    Raises FileNotFoundError when the job has not committed there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not (directory / "_SUCCESS").exists():
        raise FileNotFoundError(f"{directory} holds no committed result: _SUCCESS is missing")
    return pa.concat_tables([pq.read_table(file) for file in sorted(directory.glob("*.parquet"))])


def compare(query: Query, result: pa.Table, expected: pa.Table) -> Comparison:
    """Compare values exactly: decimals to the last digit, averages to the last bit.

    Rows that the query's ORDER BY leaves in any order may differ in their order.
    """
    return Comparison(result.num_rows, _difference(query, result, expected))


def _difference(query: Query, result: pa.Table, expected: pa.Table) -> str:
    if result.column_names != expected.column_names:
        return f"columns are {result.column_names}, DuckDB has {expected.column_names}"
    if result.num_rows != expected.num_rows:
        return f"{result.num_rows} rows, DuckDB has {expected.num_rows}"
    ours, theirs = Counter(_rows(result)), Counter(_rows(expected))
    if ours != theirs:
        surplus = list((ours - theirs).elements())[:_SHOWN_ROWS_MAX]
        missing = list((theirs - ours).elements())[:_SHOWN_ROWS_MAX]
        return f"rows that DuckDB does not have: {surplus}; rows that are missing: {missing}"
    keys = list(query.order)
    if _rows(result.select(keys)) != _rows(expected.select(keys)):
        return f"the rows are right, but not ordered by {', '.join(keys)}"
    return ""


def _rows(table: pa.Table) -> list[Row]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))
