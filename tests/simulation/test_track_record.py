"""What the simulator has found: each scenario broke an invariant once, and must not again.

A file says in its `description` what was wrong and where. It is the scenario as the seed drew it
(`holdover simulate swarm --seed N --show`), so that it stays what it was when the drawing changes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.scenario_file import load_scenario
from simulator.simulate import run_scenario

_FILES = sorted((Path(__file__).parent / "track_record").glob("*.yaml"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_bug_that_was_found_stays_mended(path: Path) -> None:
    scenario = load_scenario(str(path))
    assert scenario.description, f"{path} does not say what it found"
    record = run_scenario(scenario, scenario.seed)
    assert record.findings == []


def test_there_is_a_track_record() -> None:
    assert _FILES
