"""TPC-H's tables: generated once, whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdover.cli.tpch.data import TABLES, DataUnavailable, default_directory, tpch_data

SCALE = 0.001


def test_tables_are_generated_once_and_kept(tmp_path: Path) -> None:
    """Missing ones are added; who waits is told before."""
    announced: list[str] = []
    first = tpch_data(SCALE, directory=tmp_path, announce=announced.append)
    rows = {table: pq.read_metadata(first.file(table)).num_rows for table in TABLES}
    seen = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    (tmp_path / "nation.parquet").unlink()

    tpch_data(SCALE, directory=tmp_path, announce=announced.append)
    tpch_data(SCALE, directory=tmp_path, announce=announced.append)

    assert rows["nation"] == 25
    assert rows["orders"] == 1500
    assert len(announced) == 2
    assert str(tmp_path) in announced[0]
    now = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert set(now) == set(seen) == {f"{table}.parquet" for table in TABLES}
    assert [name for name in seen if now[name] != seen[name]] == ["nation.parquet"]


def test_a_generator_that_fails_leaves_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words are passed on."""
    script = tmp_path / "bin" / "tpchgen-cli"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 3\n".replace("\\\n", "\n"))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))

    with pytest.raises(DataUnavailable, match=r"failed \(exit code 3\): no space left"):
        tpch_data(SCALE, directory=tmp_path / "tables")

    assert list((tmp_path / "tables").iterdir()) == []


def test_a_generator_that_is_not_installed_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra has a name."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(DataUnavailable, match=r"pip install 'holdover\[tpch\]'"):
        tpch_data(SCALE, directory=tmp_path / "tables")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """With the variable that names another."""
    (tmp_path / "file").touch()
    with pytest.raises(DataUnavailable, match="HOLDOVER_CACHE=DIRECTORY"):
        tpch_data(SCALE, directory=tmp_path / "file" / "tables")


@pytest.mark.parametrize("scale", [0, -1, 1001, float("nan")])
def test_an_impossible_scale_is_refused(scale: float) -> None:
    """Before anything is written."""
    with pytest.raises(DataUnavailable, match="must be more than 0 and at most 1000"):
        tpch_data(scale)


def test_the_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One directory for each scale factor."""
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path))
    assert default_directory(0.5) == tmp_path / "tpch" / "sf-0.5"
