"""Queries: what can be refused, and what is promised, before they run."""

from __future__ import annotations

import pytest

from holdover.api.query import check_query
from holdover.errors import JobGraphError


@pytest.mark.parametrize(
    "query",
    [
        "select word, count(*) as n from input group by word",
        "from input",
        "select * from INPUT where value in (select value from other) order by 1",
        "with input2 as (select * from input) select * from input2, other",
        "with input as (select * from input) select * from input, other",
        "select distinct value from input, other",
        "select sum(l * (1 - d)) over (partition by k) from input, other",
        "select date '1998-12-01' - interval 90 day from input, other;",
        "select 'random' as first from input, other",
        "select * from input, range(3) r, other",
    ],
)
def test_a_query_promises_the_same_rows_in_any_order(query: str) -> None:
    tables = ["input", "other"] if "other" in query else ["input"]
    assert check_query(query, tables, "q") == "unordered"


@pytest.mark.parametrize(
    "query",
    [
        "select * from input limit 10",
        "select * from input order by value limit 10",
        "select * from (select * from input limit 1)",
        "select * from input using sample 10%",
        "select * from input tablesample 3 rows",
        "select distinct on (k) * from input",
        "select k, first(v) from input group by k",
        "select k, string_agg(v, ',') from input group by k",
        "select row_number() over () from input",
        "select random() from input",
        "select *, current_timestamp from input",
        "select NOW() from input",
        "select * from input where exists (select uuid())",
    ],
)
def test_position_time_and_chance_make_it_indeterminate(query: str) -> None:
    assert check_query(query, ["input"], "q") == "indeterminate"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("selec 1", 'q: the query does not parse: Parser Error: syntax error at or near "selec"'),
        ("", "q: the query has 0 statements: write exactly one"),
        ("from input; from input", "q: the query has 2 statements: write exactly one"),
        ("drop table input", "q: the query must be one SELECT statement: "),
        ("insert into input values (1)", "q: the query must be one SELECT statement: "),
        ("select * from inputs", "q: the query reads table 'inputs', which is no input;"),
        ("select * from input, s.input", "q: the query reads table 's.input', which is no input"),
        ("select * from input, '/etc/x.csv'", "q: the query reads table '/etc/x.csv', which is"),
        ("select 1", "q: the query does not read its input 'input': leave it out"),
    ],
)
def test_what_cannot_run_is_refused(query: str, message: str) -> None:
    with pytest.raises(JobGraphError) as refused:
        check_query(query, ["input"], "q")
    assert str(refused.value).startswith(message)
