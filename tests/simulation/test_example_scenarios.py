"""Every example of a scenario ends well: its jobs finish, and no invariant breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.scenario_file import load_scenario
from simulator.simulate import run_scenario
from tests.tidy.source import ROOT

EXAMPLES = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))
LONG = ("thundering-herd",)


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=[pytest.mark.slow] if file.stem in LONG else [], id=file.stem)
        for file in EXAMPLES
    ],
)
def test_an_example_ends_well(file: Path) -> None:
    scenario = load_scenario(str(file))
    record = run_scenario(scenario, scenario.seed)
    assert [f"{finding.invariant}: {finding.text}" for finding in record.findings] == []
    assert [job.state for job in record.jobs] == ["FINISHED"] * len(scenario.jobs)
    assert record.faults or not scenario.faults
