"""A document that names a test as proof names one that exists."""

from __future__ import annotations

import re

from tests.tidy.source import ROOT

_NAMED = re.compile(r"`(test_\w+)`")
_DEFINED = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def test_every_test_that_a_document_names_exists() -> None:
    defined = {
        name
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in _DEFINED.findall(path.read_text("utf-8"))
    }
    named = {
        (path.name, name)
        for path in sorted((ROOT / "docs").glob("*.md"))
        for name in _NAMED.findall(path.read_text("utf-8"))
    }
    assert named
    assert sorted(f"{file}: {name}" for file, name in named if name not in defined) == []
