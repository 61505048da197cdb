"""The files that the tidy rules look at, and what a rule reports."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHIPPED_PACKAGES = ("holdover", "jobmanager", "taskmanager", "shuffle", "simulator")
TEXT_SUFFIXES = frozenset(
    {"", ".cfg", ".ini", ".json", ".lock", ".md", ".proto", ".py", ".sh", ".sql", ".toml", ".txt"}
    | {".yaml", ".yml"}
)


@dataclass(frozen=True)
class Source:
    """One text file: its path relative to the root, with slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree; only asked of Python files."""
        return ast.parse(self.text, self.path)

    @property
    def is_python(self) -> bool:
        """Whether this is a Python module."""
        return self.path.endswith(".py")

    @property
    def is_shipped(self) -> bool:
        """Whether this is a Python module of a package that a user installs."""
        return self.is_python and self.path.split("/")[0] in SHIPPED_PACKAGES

    def lines(self) -> Iterator[tuple[int, str]]:
        """Every line with its number, from 1."""
        return enumerate(self.text.splitlines(), start=1)


@dataclass(frozen=True)
class Finding:
    """One breach of a rule, printed as a compiler would."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


Rule = Callable[[Source], Iterator[Finding]]


@lru_cache(maxsize=1)
def project_sources() -> tuple[Source, ...]:
    """Every text file of the project that git tracks or would track, sorted by path."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    paths = sorted(name for name in set(listed.stdout.split("\0")) if name)
    return tuple(
        Source(path, (ROOT / path).read_text(encoding="utf-8"))
        for path in paths
        if Path(path).suffix in TEXT_SUFFIXES and (ROOT / path).is_file()
    )
