"""`holdover demo` as a newcomer runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdover.cli.tpch.data import default_directory, tpch_data
from tests.cluster.demo_command import DEMO_TIMEOUT_S, demo

SCALE = 1.0

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def _data_is_there() -> None:
    """Generating it is no part of the demo's time."""
    tpch_data(SCALE, directory=default_directory(SCALE))


def test_the_demo_keeps_what_was_finished_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Finished work outlives the JobManager, the result is DuckDB's, and the disk is clean."""
    ended = demo("--scale", f"{SCALE:g}", "--json", temporary=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    facts = json.loads(ended.stdout.splitlines()[-1])
    assert facts["result_matches"] is True
    assert facts["early_end"] is True
    assert facts["rerun_finished"] == 0
    assert facts["finished_before_kill"] >= facts["subtasks_total"] / 2
    assert facts["kept"] >= facts["finished_before_kill"]
    assert facts["partitions_held"] > 0
    if facts["recovery_s"] is not None:  # some task was left to run
        assert 0 < facts["recovery_s"] < facts["total_s"]
    assert 0 < facts["jm_down_s"] < facts["total_s"]
    assert list(tmp_path.iterdir()) == []


def test_the_demo_tells_its_story_in_numbered_steps(tmp_path: Path) -> None:
    """Plain text where no terminal is, short enough to read, and the logs stay when asked for."""
    place = tmp_path / "demo"
    ended = demo("--scale", f"{SCALE:g}", temporary=tmp_path, directory=place)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    steps = [line.split()[1] for line in lines if line[:1].isdigit()]
    assert steps == ["Data", "Cluster", "Job", "kill", "Restart", "Recovery", "Result"]
    assert "equal to what DuckDB computes" in ended.stdout
    assert "\x1b" not in ended.stdout
    assert len(lines) < 45
    assert (place / "cluster" / "logs" / "jobmanager.log").exists()
    assert (place / "output" / "_SUCCESS").exists()


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_stops_its_cluster(
    tmp_path: Path, signal_number: signal.Signals
) -> None:
    """Whoever interrupts it, no process and no file is left."""
    place = tmp_path / "demo"
    arguments = ["demo", "--scale", f"{SCALE:g}", "--directory", str(place)]
    running = subprocess.Popen(
        [sys.executable, "-m", "holdover.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    # The cluster is there when its line is.
    shown = ""
    while "Cluster" not in shown:
        line = running.stdout.readline()
        assert line, f"the demo ended too early: {shown}"
        shown += line

    running.send_signal(signal_number)
    _, errors = running.communicate(timeout=DEMO_TIMEOUT_S)

    assert running.returncode == 130, errors
    assert "interrupted" in errors
    assert not place.exists()
    assert _commands_with(str(place)) == []


def _commands_with(text: str) -> list[str]:
    """Command lines of living processes that hold a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found += [command] if text in command else []
    return found


def test_the_demo_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """Each with one sentence that says what to do instead."""
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "file").touch()
    occupied = demo(
        "--scale", f"{SCALE:g}", "--directory", str(tmp_path / "occupied"), temporary=tmp_path
    )
    unknown = demo("--query", "2", temporary=tmp_path)
    impossible = demo("--scale", "0", temporary=tmp_path)

    assert (occupied.returncode, unknown.returncode, impossible.returncode) == (1, 2, 1)
    assert "is not empty: choose a new --directory" in occupied.stderr
    assert "query 2 is not among those written for Holdover: 1, 3, 5, 9, 18" in unknown.stderr
    assert "scale 0 must be more than 0" in impossible.stderr
    assert (tmp_path / "occupied" / "file").exists()
