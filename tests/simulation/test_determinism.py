"""The same seed gives the same run, whatever the process (P64). Other versions of Python are
compared by `make determinism`, which has to install them first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SEEDS = ("0", "11")
_TIMEOUT_S = 110.0


def _digests(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation.digests", *_SEEDS]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_runs_do_not_depend_on_the_order_in_which_hashes_put_things() -> None:
    """P64: no set, address or hash decides anything."""
    first, second = _digests("1"), _digests("2")
    assert len(first.splitlines()) == 12
    assert first == second
