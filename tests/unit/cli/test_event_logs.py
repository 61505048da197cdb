"""`holdover events verify|dump`: event logs in a directory, without a cluster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdover.cli.main import app

pytestmark = pytest.mark.blocking_allowed("the command may block its own event loop")

GOLDEN = Path(__file__).parents[1] / "jobmanager" / "event_store" / "golden" / "format-1"


def holdover(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["events", *arguments])


def copy(name: str, place: Path) -> Path:
    """The log of a job in a storage directory."""
    events = place / "jobs" / "golden-job" / "events"
    shutil.copytree(GOLDEN / name, events)
    return events


def damage(log: Path, at: int) -> Path:
    """Change one byte of the first segment."""
    first = sorted(log.iterdir())[0]
    data = bytearray(first.read_bytes())
    data[at] ^= 1
    first.write_bytes(data)
    return first


@pytest.mark.parametrize("name", ["rolled", "compacted", "torn"])
def test_a_sound_log_is_verified_from_any_of_its_directories(name: str, tmp_path: Path) -> None:
    log = copy(name, tmp_path)
    for directory in (log, log.parent, tmp_path):
        result = holdover("verify", str(directory))
        assert result.exit_code == 0, result.stdout
        assert f"{log}: sound" in result.stdout
        assert ("torn tail" in result.stdout) == (name == "torn")


def test_damage_is_named_with_file_and_offset_and_gives_exit_code_1(tmp_path: Path) -> None:
    """P03."""
    first = damage(copy("rolled", tmp_path), 120)
    before = first.read_bytes()
    result = holdover("verify", str(tmp_path))
    assert result.exit_code == 1
    assert f"damage: {first} at byte 105: the CRC of the record is wrong" in result.stdout
    told = json.loads(holdover("verify", str(tmp_path), "--json").stdout)
    assert told["sound"] is False
    [finding] = told["findings"]
    assert (finding["path"], finding["offset"]) == (str(first), 105)
    assert first.read_bytes() == before


def test_a_log_is_dumped_with_the_place_of_each_record(tmp_path: Path) -> None:
    log = copy("torn", tmp_path)
    result = holdover("dump", str(log))
    assert result.exit_code == 0
    assert "vertex_initialized" in result.stdout
    items = [json.loads(line) for line in holdover("dump", str(log), "--json").stdout.splitlines()]
    assert [item["kind"] for item in items] == ["segment", *["record"] * 7, "defect"]
    assert items[0]["job_id"] == "golden-job"
    assert items[1]["record"]["event"]["job_state_changed"]["state"] == "RUNNING"
    assert items[-1] | {"path": ""} == {
        "kind": "defect",
        "path": "",
        "offset": 448,
        "reason": "the last record is cut off",
        "is_damage": False,
    }


def test_a_dump_goes_on_behind_damage(tmp_path: Path) -> None:
    damage(log := copy("rolled", tmp_path), 120)
    result = holdover("dump", str(log))
    assert result.exit_code == 1
    assert "NO RECORD" in result.stdout
    assert "failure_recorded" in result.stdout


def test_a_directory_without_a_log_is_refused_in_one_sentence(tmp_path: Path) -> None:
    result = holdover("verify", str(tmp_path))
    assert result.exit_code == 1
    assert "no event log is here" in result.stderr
    assert holdover("verify", str(tmp_path / "missing")).exit_code == 2
