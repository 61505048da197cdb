"""The documentation of the two state machines, drawn from their tables so that it cannot be out of
date. `python -m jobmanager.scheduler.state_diagrams` prints docs/states.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from jobmanager.scheduler.states import (
    ACTIVE_EXECUTION_STATES,
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    TERMINAL_JOB_STATES,
    ExecutionState,
    JobState,
)

State = TypeVar("State", bound=IntEnum)

_INTRODUCTION = """\
# States

<!-- Made by `make docs` from jobmanager/scheduler/states.py; a test fails when it is stale. -->

The execution graph refuses every transition that is not in these tables.

"""
_JOB = """\
## Job

A job is `RECONCILING` while a new leader awaits the workers of its predecessors: from every state
in which a leader may leave a job the next one leads it there, or on to the end that was decided
before. A transition to the same state is a later leader that takes a decision up again. `PARKED`
stands beside the graph: the job is stored, and this leader does not run it.

"""
_EXECUTION = """\
## Execution

One attempt of one subtask. `FINISHED` is reached by an event: live, in a replay, or when a new
leader adopts work that had finished without an event. What is over is `CREATED` again at once, as
the next attempt. An attempt that ends without having been asked to has `FAILED`, whoever is to
blame.

"""


def states_page() -> str:
    """The Markdown page docs/states.md."""
    active = ", ".join(f"`{state.name}`" for state in ACTIVE_EXECUTION_STATES)
    return (
        _INTRODUCTION
        + _JOB
        + _diagram(JOB_TRANSITIONS, JobState.CREATED, TERMINAL_JOB_STATES)
        + _table(JOB_TRANSITIONS)
        + "\n"
        + _EXECUTION
        + f"An attempt may occupy a slot in {active}.\n\n"
        + _diagram(EXECUTION_TRANSITIONS, ExecutionState.CREATED, ())
        + _table(EXECUTION_TRANSITIONS)
    )


def _diagram(
    table: Mapping[State, Sequence[State]], first: State, terminal: Sequence[State]
) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name}"]
    for before, allowed in table.items():
        lines.extend(f"    {before.name} --> {after.name}" for after in allowed)
    lines.extend(f"    {state.name} --> [*]" for state in terminal)
    return "\n".join([*lines, "```", "", ""])


def _table(table: Mapping[State, Sequence[State]]) -> str:
    rows = ["| state | may be followed by |", "|---|---|"]
    for before, allowed in table.items():
        after = ", ".join(f"`{state.name}`" for state in allowed)
        rows.append(f"| `{before.name}` | {after or 'nothing'} |")
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    sys.stdout.write(states_page())
