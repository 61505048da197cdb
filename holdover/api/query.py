"""What can be said of a query before it runs: that it parses, what it reads, what it promises."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from holdover.api.plan import DeterminismName
from holdover.errors import JobGraphError

if TYPE_CHECKING:
    import duckdb

#: Functions and keywords whose value is not a function of the input rows.
_VOLATILE = frozenset(
    {
        "age",
        "current_date",
        "current_localtime",
        "current_localtimestamp",
        "current_query_id",
        "current_time",
        "current_timestamp",
        "current_transaction_id",
        "gen_random_uuid",
        "get_current_time",
        "get_current_timestamp",
        "localtime",
        "localtimestamp",
        "nextval",
        "now",
        "random",
        "setseed",
        "today",
        "transaction_timestamp",
        "txid_current",
        "uuid",
        "uuidv4",
        "uuidv7",
    }
)
#: Functions whose value depends on the order of the input rows.
_ORDER_SENSITIVE = frozenset(
    {
        "any_value",
        "arbitrary",
        "arg_max",
        "arg_min",
        "argmax",
        "argmin",
        "array_agg",
        "first",
        "first_value",
        "group_concat",
        "lag",
        "last",
        "last_value",
        "lead",
        "list",
        "listagg",
        "max_by",
        "min_by",
        "mode",
        "nth_value",
        "ntile",
        "reservoir_quantile",
        "row_number",
        "string_agg",
    }
)


def check_query(query: str, tables: Sequence[str], operator_name: str) -> DeterminismName:
    """What the query promises about a second run over the same rows in any order.

    "unordered" (SQL promises no order), or "indeterminate" when it takes rows by their position
    (LIMIT, a sample, `first`, `row_number`, ...) or asks for time or chance.

    Raises JobGraphError when it is not one SELECT statement in DuckDB's dialect, when it reads a
    table that is no input, or when it leaves an input unread.
    """
    statement = _parsed(query, operator_name)
    read: dict[str, None] = {}
    own: set[str] = set()
    for node in _objects(statement):
        if node.get("type") == "BASE_TABLE":
            path = [node.get("catalog_name"), node.get("schema_name"), node.get("table_name")]
            read[".".join(name for name in path if name)] = None
        for entry in node.get("cte_map", {}).get("map", ()):
            own.add(entry["key"].lower())
    known = {table.lower() for table in tables}
    for table in read:
        if table.lower() not in known | own:
            raise JobGraphError(
                operator_name,
                f"the query reads table {table!r}, which is no input; its inputs are"
                f" {', '.join(tables)}",
            )
    folded = {table.lower() for table in read}
    for table in tables:
        if table.lower() not in folded:
            raise JobGraphError(
                operator_name, f"the query does not read its input {table!r}: leave it out"
            )
    by_position = any(_takes_by_position_or_chance(node) for node in _objects(statement))
    return "indeterminate" if by_position else "unordered"


def _parsed(query: str, operator_name: str) -> dict[str, Any]:
    import duckdb

    try:
        statements = _connection().extract_statements(query)
    except duckdb.Error as error:
        raise JobGraphError(operator_name, f"the query does not parse: {error}") from error
    if len(statements) != 1:
        raise JobGraphError(
            operator_name, f"the query has {len(statements)} statements: write exactly one"
        )
    row = _connection().execute("select json_serialize_sql(?)", [query]).fetchone()
    answer: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    if answer["error"]:
        reason = answer.get("error_message", "it is none")
        raise JobGraphError(operator_name, f"the query must be one SELECT statement: {reason}")
    statement: dict[str, Any] = answer["statements"][0]
    return statement


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """Used for parsing only; holds no data."""
    import duckdb

    return duckdb.connect(":memory:", config={"threads": 1})


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a parsed statement, in the order of its text."""
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            yield here
            waiting.extend(reversed(list(here.values())))
        elif isinstance(here, list):
            waiting.extend(reversed(here))


def _takes_by_position_or_chance(node: dict[str, Any]) -> bool:
    if node.get("type") in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER") or node.get("sample"):
        return True
    if node.get("type") == "DISTINCT_MODIFIER" and node.get("distinct_on_targets"):
        return True
    names = node.get("column_names", [])
    if node.get("class") == "COLUMN_REF" and len(names) == 1 and names[0].lower() in _VOLATILE:
        return True
    return str(node.get("function_name", "")).lower() in _VOLATILE | _ORDER_SENSITIVE
