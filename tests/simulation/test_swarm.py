"""Clusters, jobs, options and faults as seeds draw them: no invariant may break."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

_TIMEOUT_S = 1_800.0


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S + 30)
@pytest.mark.parametrize(
    ("swarm", "count"), [("swarm", 300), ("swarm-double", 200), ("swarm-external", 300)]
)
def test_the_first_seeds_break_nothing(swarm: str, count: int) -> None:
    """A failure prints the line that repeats it."""
    command = [
        *(sys.executable, "-m", "holdover.cli.main", "simulate", swarm),
        *("--seeds", f"0..{count - 1}", "--jobs", str(os.cpu_count() or 1)),
    ]
    began_s = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    print(f"{count} seeds in {time.monotonic() - began_s:.0f} s")
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-20_000:]
    assert f"{count} runs, 0 with findings" in ended.stdout, ended.stdout[-2_000:]
