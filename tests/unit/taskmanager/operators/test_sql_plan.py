"""What the plan says about how an input may be given to a query; the plans are DuckDB's own."""

from __future__ import annotations

import duckdb
import pytest

from taskmanager.operators import sql_plan

RECURSIVE = """
WITH RECURSIVE r(x) AS (SELECT 0 UNION ALL SELECT k FROM t, r WHERE k > x) SELECT x FROM r
"""


def plan(query: str, disabled: str = "statistics_propagation") -> sql_plan.PlanNode:
    session = duckdb.connect()
    session.execute("CREATE TEMP TABLE stand_in (k BIGINT, v BIGINT, w VARCHAR)")
    session.execute("CREATE TEMP TABLE other AS SELECT range AS k, 'x' AS name FROM range(100)")
    session.execute("CREATE TEMP VIEW t AS FROM stand_in")
    session.execute(f"SET disabled_optimizers = '{disabled}'")
    return sql_plan.parse_plan(session.execute(f"EXPLAIN (FORMAT JSON) {query}").fetchall()[0][1])


@pytest.mark.parametrize(
    ("query", "union", "aggregate", "once"),
    [
        ("SELECT k FROM t", True, False, True),
        ("SELECT k + 1 AS a FROM t WHERE v > 2 AND w LIKE '%x%'", True, False, True),
        ("SELECT t.k, name FROM t JOIN other USING (k)", True, False, True),
        ("SELECT t.k FROM t SEMI JOIN other USING (k)", True, False, True),
        ("SELECT t.k, name FROM t LEFT JOIN other USING (k)", True, False, True),
        ("SELECT t.k FROM t ANTI JOIN other USING (k)", True, False, True),
        ("SELECT k FROM t WHERE k NOT IN (SELECT k FROM other)", True, False, True),
        ("SELECT name FROM other SEMI JOIN t USING (k)", False, False, True),
        ("SELECT name, v FROM other FULL JOIN t USING (k)", False, False, True),
        ("SELECT name, v FROM other LEFT JOIN t USING (k)", False, False, True),
        ("SELECT k, sum(v) AS s FROM t GROUP BY k", False, True, True),
        ("SELECT sum(v) AS s FROM t", False, True, True),
        ("SELECT name, max(v) AS m FROM t JOIN other USING (k) GROUP BY name", False, True, True),
        ("SELECT k FROM t ORDER BY k", False, False, True),
        ("SELECT k FROM t LIMIT 3", False, False, True),
        ("SELECT k, row_number() OVER () AS r FROM t", False, False, True),
        ("SELECT a.k FROM t a JOIN t b USING (k)", False, False, False),
        ("SELECT k FROM t WHERE v > (SELECT avg(v) FROM t)", False, False, False),
        ("SELECT k FROM t UNION ALL SELECT k FROM other", False, False, False),
        (RECURSIVE, False, False, False),
        ("SELECT k FROM other", False, False, False),
    ],
)
def test_how_an_input_may_be_given(query: str, union: bool, aggregate: bool, once: bool) -> None:
    found = plan(query)
    assert sql_plan.is_union_of_pieces(found, "stand_in") is union
    assert sql_plan.is_aggregate_of_pieces(found, "stand_in") is aggregate
    assert sql_plan.is_read_once(found, "stand_in") is once


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT v FROM t WHERE w = 'x'", ["v", "w"]),
        ("SELECT sum(k) AS s FROM t", ["k"]),
        ("SELECT * FROM t", ["k", "v", "w"]),
        ("SELECT k FROM other", None),
    ],
)
def test_which_columns_are_read(query: str, columns: list[str] | None) -> None:
    found = plan(query, "statistics_propagation,filter_pushdown")
    assert sql_plan.scanned_columns(found, "stand_in", ["k", "v", "w"]) == columns
