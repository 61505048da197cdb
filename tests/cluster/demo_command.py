"""`holdover demo` as a command, for tests of what it shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.running_cluster import UNHURRIED_ENVIRONMENT

DEMO_TIMEOUT_S = 500.0
TOO_FAST = "the job was over before its JobManager could be killed"
ATTEMPTS_MAX = 5


def demo(
    *arguments: str, temporary: Path, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with `temporary` for its temporary files, and again where this
    machine was too busy to kill the JobManager before the job was over, as the command says then.

    It uses `directory`, if one is given, and keeps it.
    """
    place = [] if directory is None else ["--directory", str(directory), "--keep"]
    for _ in range(ATTEMPTS_MAX):
        ended = subprocess.run(
            [sys.executable, "-m", "holdover.cli.main", "demo", *arguments, *place],
            env={**os.environ, **UNHURRIED_ENVIRONMENT, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            timeout=DEMO_TIMEOUT_S,
        )
        if TOO_FAST not in ended.stderr:
            return ended
        print(f"once more: {ended.stderr}")
        for left in (*temporary.glob("holdover-demo-*"), *filter(None, [directory])):
            shutil.rmtree(left, ignore_errors=True)
    raise AssertionError(f"{ATTEMPTS_MAX} times {TOO_FAST}")
