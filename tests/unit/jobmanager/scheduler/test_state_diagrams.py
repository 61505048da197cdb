"""docs/states.md is drawn from the tables."""

from __future__ import annotations

from pathlib import Path

from jobmanager.scheduler.state_diagrams import states_page
from jobmanager.scheduler.states import EXECUTION_TRANSITIONS, JOB_TRANSITIONS

PAGE = Path(__file__).parents[4] / "docs" / "states.md"


def test_the_documentation_is_up_to_date() -> None:
    assert PAGE.read_text() == states_page(), "run `make docs`"


def test_every_transition_is_drawn_once() -> None:
    lines = states_page().splitlines()
    for table in (JOB_TRANSITIONS, EXECUTION_TRANSITIONS):
        for before, allowed in table.items():
            for after in allowed:
                assert f"    {before.name} --> {after.name}" in lines
    drawn = [line for line in lines if " --> " in line and "[*]" not in line]
    tables = (JOB_TRANSITIONS.values(), EXECUTION_TRANSITIONS.values())
    assert len(drawn) == sum(len(allowed) for values in tables for allowed in values)
