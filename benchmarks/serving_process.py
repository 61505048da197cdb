"""A server in a process of its own, so that it shares no interpreter with who measures it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving_process(module: str, place: str) -> Iterator[tuple[int, ...]]:
    """Runs `python -m module place`; the ports that it prints on its first line. It ends when its
    standard input does."""
    server = subprocess.Popen(
        [sys.executable, "-m", module, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield tuple(map(int, server.stdout.readline().split()))
    finally:
        server.stdin.close()  # the sign to end
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()
