"""What DuckDB's plan of a query says about how an input may be given to it. Pure.

A physical plan is read from `EXPLAIN (FORMAT JSON)`, in which an empty table stands for the input:
a plan must not depend on what the statistics of one file allow. All answers are on the safe side:
an operator that is not known here never makes an input "readable piece by piece".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Operators that treat each row of their input by itself.
_ROW_BY_ROW = frozenset({"PROJECTION", "FILTER", "UNNEST"})
_AGGREGATES = frozenset({"HASH_GROUP_BY", "PERFECT_HASH_GROUP_BY", "UNGROUPED_AGGREGATE"})
# Other operators that pull their input once, from its beginning to its end.
_PULLS_ONCE = _AGGREGATES | {
    "CROSS_PRODUCT",
    "LIMIT",
    "ORDER_BY",
    "STREAMING_LIMIT",
    "STREAMING_WINDOW",
    "TOP_N",
    "WINDOW",
}
_JOINS = frozenset(
    {"HASH_JOIN", "NESTED_LOOP_JOIN", "BLOCKWISE_NL_JOIN", "PIECEWISE_MERGE_JOIN", "IE_JOIN"}
)
# Joins in which every row of the first child is treated by itself, and of the second.
_ROW_BY_ROW_LEFT = frozenset({"INNER", "LEFT", "SEMI", "ANTI", "MARK", "SINGLE"})
_ROW_BY_ROW_RIGHT = frozenset({"INNER", "RIGHT", "RIGHT_SEMI", "RIGHT_ANTI"})


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One operator of a physical plan."""

    name: str
    info: dict[str, Any]
    children: tuple[PlanNode, ...]

    def walk(self) -> Iterator[PlanNode]:
        """This operator and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse_plan(text: str) -> PlanNode:
    """The plan in the JSON text of an EXPLAIN; ValueError when it is not one."""
    roots = json.loads(text)
    if not isinstance(roots, list) or len(roots) != 1:
        raise ValueError("a plan has one root")
    return _node(roots[0])


def _node(value: dict[str, Any]) -> PlanNode:
    return PlanNode(
        str(value["name"]).strip(),
        dict(value.get("extra_info") or {}),
        tuple(_node(child) for child in value.get("children") or ()),
    )


def scans(plan: PlanNode, table: str) -> list[PlanNode]:
    """The scans of the table that stands for the input."""
    return [node for node in plan.walk() if str(node.info.get("Table", "")).endswith(f".{table}")]


def is_read_once(plan: PlanNode, table: str) -> bool:
    """Whether an input that can be read only once may be given to the query.

    True when it is scanned once and everything above the scan is known to pull it once.
    """
    path = _path_to_only_scan(plan, table)
    return path is not None and all(
        node.name in _ROW_BY_ROW | _JOINS | _PULLS_ONCE for node, _ in path
    )


def is_union_of_pieces(plan: PlanNode, table: str) -> bool:
    """Whether the query over an input equals the union of the query over the input's pieces.

    True when the input is scanned once and only filtered, projected, and joined on the side whose
    rows a join treats one by one; the other inputs are whole for every piece.
    """
    path = _path_to_only_scan(plan, table)
    return path is not None and all(_keeps_rows_apart(node, child) for node, child in path)


def is_aggregate_of_pieces(plan: PlanNode, table: str) -> bool:
    """Whether the query is one aggregate over what `is_union_of_pieces` says of its input."""
    path = _path_to_only_scan(plan, table)
    while path and path[0][0].name == "PROJECTION":
        path = path[1:]
    if not path or path[0][0].name not in _AGGREGATES:
        return False
    return all(_keeps_rows_apart(node, child) for node, child in path[1:])


def _path_to_only_scan(plan: PlanNode, table: str) -> list[tuple[PlanNode, int]] | None:
    """The operators above the scan, each with the child that leads to it; None unless one scan."""
    found = scans(plan, table)
    if len(found) != 1:
        return None
    path: list[tuple[PlanNode, int]] = []
    node = plan
    while node is not found[0]:
        (child,) = [
            number
            for number, below in enumerate(node.children)
            if any(scan is found[0] for scan in below.walk())
        ]
        path.append((node, child))
        node = node.children[child]
    return path


def _keeps_rows_apart(node: PlanNode, child: int) -> bool:
    if node.name in _ROW_BY_ROW or node.name == "CROSS_PRODUCT":
        return True
    if node.name not in _JOINS:
        return False
    kind = node.info.get("Join Type")
    return kind in (_ROW_BY_ROW_LEFT if child == 0 else _ROW_BY_ROW_RIGHT)


def scanned_columns(plan: PlanNode, table: str, available: list[str]) -> list[str] | None:
    """The columns that the scans of the table read, in the order of `available`; None when unsure.

    Only right for a plan in which filters were not pushed into scans.
    """
    wanted: set[str] = set()
    for node in scans(plan, table):
        projections = node.info.get("Projections", [])
        wanted.update([projections] if isinstance(projections, str) else projections)
        if "Filters" in node.info:
            return None
    if not wanted or not wanted <= set(available):
        return None
    return [name for name in available if name in wanted]
