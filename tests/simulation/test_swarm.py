"""Clusters, jobs, options and faults as seeds draw them: no invariant may break."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

FIRST, LAST = 0, 299
_TIMEOUT_S = 600.0


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S + 30)
def test_three_hundred_seeds_break_nothing() -> None:
    """A failure prints the line that repeats it."""
    command = [
        *(sys.executable, "-m", "holdover.cli.main", "simulate", "swarm"),
        *("--seeds", f"{FIRST}..{LAST}", "--jobs", str(os.cpu_count() or 1)),
    ]
    began_s = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    print(f"{LAST - FIRST + 1} seeds in {time.monotonic() - began_s:.0f} s")
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-20_000:]
    assert f"{LAST - FIRST + 1} runs, 0 with findings" in ended.stdout, ended.stdout[-2_000:]
