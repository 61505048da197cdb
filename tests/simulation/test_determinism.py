"""The same seed gives the same run, whatever the process (P64). Other versions of Python are
compared by `make determinism`, which has to install them first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulator.fault_kinds import Crash, Victims
from simulator.record import RunRecord
from simulator.simulate import run_scenario
from tests.simulation.story import two_stages

_SEEDS = ("0", "11")
#: Scenarios of users, by the names of their files, that take no longer than a second or so.
_EXAMPLES = (
    *("all-taskmanagers", "flaky-tasks", "frozen-leader", "full-disk", "jobmanager-power-loss"),
    *("jobmanager-restart", "lost-while-recovering", "one-way-cut", "rack-and-jobmanager"),
)
_TIMEOUT_S = 900.0


def _digests(hash_seed: str) -> subprocess.Popen[str]:
    """A process that prints the digests."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    files = [f"examples/scenarios/{name}.yaml" for name in _EXAMPLES]
    command = [sys.executable, "-m", "tests.simulation.digests", *_SEEDS, *files]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(2 * _TIMEOUT_S + 30)
def test_runs_do_not_depend_on_the_order_in_which_hashes_put_things() -> None:
    """P64: no set, address or hash decides anything. Twelve drawn scenarios, and users' own."""
    processes = [_digests("1"), _digests("2")]
    first, second = (process.communicate(timeout=_TIMEOUT_S)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(first.splitlines()) == 12 + len(_EXAMPLES)
    assert first == second


def test_a_run_repeats_itself_to_the_byte_and_another_seed_is_another_run() -> None:
    """P64: not the outcome alone, but every line of the trace, and all that is recorded."""
    first, again, other = _run(seed=1), _run(seed=1), _run(seed=2)
    assert len(first.trace) > 100
    assert "".join(first.trace) == "".join(again.trace)
    assert _recorded(first) == _recorded(again)
    assert first.digest != other.digest


def _run(seed: int) -> RunRecord:
    fault = Crash(victims=Victims("leader"), at=2.5)
    scenario = two_stages(12, reduce_s=2.0, faults=(fault,))
    return run_scenario(scenario, seed, trace_lines_max=100_000)


def _recorded(record: RunRecord) -> str:
    record.wall_s = 0.0
    return record.to_json()
