"""A short chaos run: what `make chaos` does for half an hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

DURATION_S = 45
SEED = 1


@pytest.mark.parametrize("shuffle_services", [0, 2], ids=["taskmanagers", "shuffle services"])
def test_processes_are_killed_all_the_time_and_every_result_is_right(
    tmp_path: Path, shuffle_services: int
) -> None:
    """Nothing is wrong, stuck, or left; finished work whose disk lives does not run again, be it
    at TaskManagers or at shuffle services."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "holdover.cli.main", "chaos", "--json"),
            *("--duration", f"{DURATION_S} s", "--seed", str(SEED)),
            *("--shuffle-services", str(shuffle_services)),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1_100,
    )
    print(ended.stderr)
    facts = json.loads(ended.stdout)
    print(facts)
    assert facts["processes_killed"] >= 3
    assert facts["jobs"] >= 3
    assert facts["wrong_results"] == []
    assert facts["stuck_jobs"] == []
    assert facts["finished_work_lost"] == []
    assert facts["processes_that_ended_by_themselves"] == []
    assert facts["files_left_behind"] == []
    assert facts["processes_left_behind"] == []
    assert ended.returncode == 0
    assert list(tmp_path.iterdir()) == []
