"""A grouped query over a source, run for each split, its results then combined. Pure.

`SELECT k, sum(v) FROM t GROUP BY k` over a whole input equals `SELECT k, sum(s) ... GROUP BY k`
over the results of its pieces. What the query looks like is read from DuckDB's own syntax tree
(`json_serialize_sql`); whatever is not known for certain to be of that form is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# How partial results of an aggregate are combined.
_COMBINED_BY = {
    "sum": "sum",
    "count": "sum",
    "count_star": "sum",
    "min": "min",
    "max": "max",
}
_POSITIONS = frozenset({"alias", "query_location", "query_location_length"})


@dataclass(frozen=True, slots=True)
class Combination:
    """How partial results become one.

    Attributes:
        query: over the partial results.
        groups: the columns that are grouped by; none when all rows are one group.
    """

    query: str
    groups: tuple[str, ...]


def combination_of(
    syntax: str, columns: Sequence[str], types: Sequence[str], table: str
) -> Combination | None:
    """How to combine partial results in `table` into the result; None when they cannot be.

    `syntax` is the serialized query; `columns` and `types` are its result's, as DuckDB writes them.
    The query must select aggregates and its group's expressions, and all of these, and nothing
    else.
    """
    node = _select_node(syntax)
    if node is None or len(node["select_list"]) != len(columns):
        return None
    selected: list[str] = []
    groups: list[str] = []
    group_columns: list[str] = []
    group_items: list[Any] = []
    for item, column, kind in zip(node["select_list"], columns, types, strict=True):
        name = '"' + column.replace('"', '""') + '"'
        combined_by = _aggregate(item)
        if combined_by is None:
            groups.append(name)
            group_columns.append(column)
            group_items.append(item)
            selected.append(name)
        else:
            selected.append(f"CAST({combined_by}({name}) AS {kind}) AS {name}")
    if len(groups) == len(columns) or not _are_the_groups(node, group_items):
        return None
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    query = f"SELECT {', '.join(selected)} FROM {table}{grouped}"
    return Combination(query, tuple(group_columns))


def _select_node(syntax: str) -> dict[str, Any] | None:
    """The one SELECT of the query, when nothing follows its grouping."""
    tree = json.loads(syntax)
    statements = tree.get("statements") or []
    if tree.get("error") or len(statements) != 1:
        return None
    node: dict[str, Any] = statements[0]["node"]
    plain = node.get("type") == "SELECT_NODE" and not node["modifiers"]
    unchanged = all(not node.get(part) for part in ("having", "sample", "qualify"))
    return node if plain and unchanged else None


def _aggregate(item: dict[str, Any]) -> str | None:
    """By which aggregate the item's partial results are combined; None when it is not known."""
    if item.get("class") != "FUNCTION" or item.get("is_operator"):
        return None
    arguments_max = 0 if item["function_name"] == "count_star" else 1
    special = item["distinct"] or item["filter"] or item["order_bys"]["orders"] or item["schema"]
    if special or item.get("export_state") or len(item["arguments"]) != arguments_max:
        return None
    return _COMBINED_BY.get(item["function_name"])


def _are_the_groups(node: dict[str, Any], items: list[Any]) -> bool:
    """Whether the items are exactly what the query groups by."""
    if node["aggregate_handling"] == "FORCE_AGGREGATES":  # GROUP BY ALL
        return all(item.get("class") == "COLUMN_REF" for item in items)
    expressions = node["group_expressions"]
    whole = [list(range(len(expressions)))] if expressions else []
    if node["group_sets"] != whole:
        return False
    if any(expression.get("class") not in ("COLUMN_REF", "FUNCTION") for expression in expressions):
        return False
    return {_form(item) for item in items} == {_form(expression) for expression in expressions}


def _form(expression: Any) -> str:
    """An expression without its name and place, for comparison."""
    return json.dumps(_without_positions(expression), sort_keys=True)


def _without_positions(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_positions(part) for key, part in value.items() if key not in _POSITIONS
        }
    if isinstance(value, list):
        return [_without_positions(part) for part in value]
    return value
