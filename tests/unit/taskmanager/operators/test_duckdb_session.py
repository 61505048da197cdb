"""Databases are made ahead of need, and an attempt leaves nothing in them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from taskmanager.operators import duckdb_session
from taskmanager.operators.duckdb_session import open_session, prepare_database
from tests.unit.taskmanager.operators.chain_harness import operator_context


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> list[duckdb.DuckDBPyConnection]:
    databases: list[duckdb.DuckDBPyConnection] = []
    monkeypatch.setattr(duckdb_session, "_kept", databases)
    return databases


def test_a_prepared_database_is_what_the_next_session_uses(
    tmp_path: Path, kept: list[duckdb.DuckDBPyConnection]
) -> None:
    prepare_database()
    (prepared,) = kept
    with operator_context(tmp_path) as context:
        assert open_session(context, "sql").execute("SELECT 1").fetchall() == [(1,)]
        assert kept == []
    assert kept == [prepared]


def test_no_more_databases_are_prepared_than_are_kept(
    kept: list[duckdb.DuckDBPyConnection],
) -> None:
    for _ in range(10):
        prepare_database()
    assert len(kept) == 3


def test_a_session_sees_nothing_of_the_one_before(tmp_path: Path) -> None:
    with operator_context(tmp_path) as first:
        open_session(first, "sql").execute("CREATE TEMP TABLE input AS SELECT 1")
    with operator_context(tmp_path) as second, pytest.raises(duckdb.CatalogException):
        open_session(second, "sql").execute("FROM input")
