"""The comparison with DuckDB tells every difference."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from holdover.cli.tpch.check import compare, read_output
from holdover.cli.tpch.queries import QUERIES

Q5 = QUERIES[5]
EXPECTED = pa.table(
    {
        "n_name": ["JAPAN", "CHINA", "INDIA"],
        "revenue": [Decimal("3.10"), Decimal("2"), Decimal("2")],
    }
)


def test_equal_rows_in_order_are_equal() -> None:
    """Rows that the ORDER BY leaves open may change places."""
    assert compare(Q5, EXPECTED, EXPECTED).equal
    assert compare(Q5, EXPECTED.take([0, 2, 1]), EXPECTED).equal


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (EXPECTED.rename_columns(["name", "revenue"]), "columns are"),
        (EXPECTED.slice(0, 2), "2 rows, DuckDB has 3"),
        (EXPECTED.take([1, 0, 2]), "not ordered by revenue"),
        (EXPECTED.take([0, 1, 1]), "rows that are missing: [('INDIA'"),
        (
            EXPECTED.set_column(1, "revenue", [[Decimal("3.11"), Decimal(2), Decimal(2)]]),
            "Decimal('3.11')",
        ),
    ],
)
def test_a_difference_is_named(result: pa.Table, said: str) -> None:
    """Also of one cent, of one row twice, and of the order alone."""
    comparison = compare(Q5, result, EXPECTED)
    assert not comparison.equal
    assert said in comparison.difference


def test_output_that_is_not_committed_is_no_result(tmp_path: Path) -> None:
    """The files alone do not count."""
    with pytest.raises(FileNotFoundError, match="_SUCCESS is missing"):
        read_output(tmp_path)
