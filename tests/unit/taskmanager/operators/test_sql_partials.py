"""Which queries can be computed split by split and combined, and how."""

from __future__ import annotations

import duckdb
import pytest

from taskmanager.operators.sql_partials import combination_of


def combining(query: str) -> str | None:
    session = duckdb.connect()
    session.execute("CREATE TABLE t (k BIGINT, v INTEGER, price DECIMAL(15, 2))")
    relation = session.sql(query)
    (syntax,) = session.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0]
    found = combination_of(syntax, relation.columns, [str(k) for k in relation.types], "parts")
    return None if found is None else found.query


def test_sums_of_sums_keep_the_type_of_the_result() -> None:
    assert combining("SELECT k, sum(price) AS s, count(*) AS n, max(v) AS m FROM t GROUP BY k") == (
        'SELECT "k", CAST(sum("s") AS DECIMAL(38,2)) AS "s", CAST(sum("n") AS BIGINT) AS "n",'
        ' CAST(max("m") AS INTEGER) AS "m" FROM parts GROUP BY "k"'
    )


def test_without_groups_there_is_one_row() -> None:
    assert combining("SELECT sum(v) AS s FROM t") == (
        'SELECT CAST(sum("s") AS HUGEINT) AS "s" FROM parts'
    )


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, v FROM t",
        "SELECT DISTINCT k FROM t",
        "SELECT k, avg(v) AS a FROM t GROUP BY k",
        "SELECT k, sum(v) + 1 AS s FROM t GROUP BY k",
        "SELECT k, sum(DISTINCT v) AS s FROM t GROUP BY k",
        "SELECT k, sum(v) FILTER (v > 1) AS s FROM t GROUP BY k",
        "SELECT k, max(v, 2) AS s FROM t GROUP BY k",
        "SELECT k, sum(v) AS s FROM t GROUP BY k HAVING sum(v) > 1",
        "SELECT k, sum(v) AS s FROM t GROUP BY k ORDER BY s",
        "SELECT k, sum(v) AS s FROM t GROUP BY k LIMIT 1",
        "SELECT k, sum(v) AS s FROM t GROUP BY k, price",
        "SELECT 1 AS one, sum(v) AS s FROM t",
        "SELECT v AS k, sum(v) AS s FROM t GROUP BY v, k",
        "SELECT k, price, sum(v) AS s FROM t GROUP BY CUBE (k, price)",
        "SELECT abs(k) AS a, sum(v) AS s FROM t GROUP BY ALL",
        "SELECT k, sum(v) AS s FROM t GROUP BY 1",
        "SELECT k, sum(v) AS s FROM t GROUP BY k UNION ALL SELECT 1, 2",
    ],
)
def test_what_is_not_certain_is_not_combined(query: str) -> None:
    assert combining(query) is None
