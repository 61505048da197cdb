"""A document that names a test as proof names one that exists.

A test is named by its file and name (`tests/unit/test_x.py::test_y`), or by its name alone.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

#: The page on which every sentence names its tests.
CONTRACT = "behaviour.md"

_NAMED = re.compile(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`")
_ROW = re.compile(r"^\| (?!what \||-)(.+?) \| (.*) \|$", re.MULTILINE)


@lru_cache(maxsize=1)
def written_tests() -> dict[str, set[str]]:
    """Names of the tests in each file, without importing any."""
    return {
        path.relative_to(ROOT).as_posix(): {
            node.name
            for node in ast.parse(path.read_text("utf-8")).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
        }
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
    }


def unknown(text: str, defined: dict[str, set[str]]) -> list[str]:
    """Tests that a text names and nobody has written, each once."""
    everywhere = set().union(*defined.values())
    named = sorted({(file, name) for file, name in _NAMED.findall(text)})
    return [
        f"{file}::{name}" if file else name
        for file, name in named
        if name not in (defined.get(file, set()) if file else everywhere)
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_test_that_a_document_names_exists(path: Path) -> None:
    assert unknown(path.read_text("utf-8"), written_tests()) == []


def test_every_row_of_the_contract_names_a_test() -> None:
    text = (ROOT / "docs" / CONTRACT).read_text("utf-8")
    rows = _ROW.findall(text[text.index("## What shows it") :])
    assert len(rows) > 100
    assert [sentence for sentence, tests in rows if not _NAMED.search(tests)] == []


def test_a_name_that_leads_nowhere_is_found() -> None:
    defined = {"tests/unit/test_x.py": {"test_y"}, "tests/unit/test_z.py": {"test_other"}}
    text = (
        "`tests/unit/test_x.py::test_y` `test_other` `tests/unit/test_x.py::test_other` `test_no`"
    )
    assert unknown(text, defined) == ["test_no", "tests/unit/test_x.py::test_other"]
