"""Faults of a scenario happen when it says."""

from __future__ import annotations

import pytest

from simulator.fault_kinds import Crash, StageFinished, Victims
from simulator.simulate import run_scenario
from tests.simulation.story import two_stages


@pytest.mark.parametrize("stage", ["map", "reduce"])
def test_a_fault_waits_for_any_stage_also_for_the_one_that_is_chained_to_the_sink(
    stage: str,
) -> None:
    """The last stage and its sink are one vertex."""
    fault = Crash(
        victims=Victims("leader"), when=StageFinished(stage=stage, finished=0.5), restart_after=0.0
    )
    scenario = two_stages(4, reduces=4, reduce_s=1.0, taskmanagers=1, faults=(fault,))
    record = run_scenario(scenario, seed=1)

    assert [made.kind for made in record.faults] == ["crash"]
    assert record.findings == []
