"""The event log under SIGKILL, and under SIGSTOP in the middle of its leadership."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.event_writer import State, read_state

KILLS = 200
SEED = 20_240
ANSWER_TIMEOUT_S = 120.0


class Writers:
    """The process of `event_writer`, whose children lead one after another."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.event_writer", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.pid = 0
        self.durable = 0
        self.replayed: State | None = None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def lead(self, epoch: int) -> None:
        """Start a child, and wait until it is there."""
        assert self._process.stdin is not None
        self.pid, self.durable, self.replayed = 0, 0, None
        self._process.stdin.write(f"{epoch}\n")
        self.hear(lambda: self.pid)

    def hear(self, until: object) -> None:
        """Take lines until one makes the condition true."""
        assert callable(until)
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while not until():
            self._take(self._lines.get(timeout=max(0.0, deadline_s - time.monotonic())))

    def kill(self) -> None:
        """SIGKILL; when this returns, all that the child has said was heard."""
        os.kill(self.pid, signal.SIGKILL)
        self.hear(lambda: self.pid == 0)

    def _take(self, line: str) -> None:
        match line.split():
            case ["pid", pid]:
                self.pid = int(pid)
            case ["durable", count]:
                self.durable = int(count)
            case ["replayed", *counts]:
                pairs = (count.split(":") for count in counts)
                self.replayed = {int(epoch): int(number) for epoch, number in pairs}
            case ["ended"]:
                self.pid = 0

    def close(self) -> None:
        """End it, and a child that still lives."""
        if self.pid:
            self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(ANSWER_TIMEOUT_S) == 0
        self._reader.join()
        self._process.stdout.close()


@contextmanager
def writers(directory: Path) -> Iterator[Writers]:
    """Ends the processes afterwards."""
    process = Writers(directory)
    try:
        yield process
    finally:
        process.close()


def read(directory: Path) -> State:
    return asyncio.run(read_state(str(directory)))[0]


def test_what_was_durable_survives_two_hundred_kills(tmp_path: Path) -> None:
    """P14: each leader goes on from the log that the one before has left at a random moment: every
    second one's is soon after it began, the others' after something was durable."""
    chance = random.Random(SEED)
    promised: State = {}
    with writers(tmp_path) as process:
        for epoch in range(1, KILLS + 1):
            process.lead(epoch)
            if epoch % 2:
                process.hear(lambda: process.durable)
            time.sleep(chance.uniform(0.0, 0.05))
            process.kill()
            state = read(tmp_path)
            promised |= {epoch: process.durable} if process.durable else {}
            for of, durable in promised.items():
                assert state.get(of, 0) >= durable, f"epoch {of} after the kill of {epoch}"
            promised = dict(state)  # what has been read once is built on by the next leader
    assert len(promised) >= KILLS // 2, "leaders lived long enough to record something"


def test_a_leader_that_was_stopped_and_wakes_adds_nothing_that_is_believed(tmp_path: Path) -> None:
    """P31: it goes on to write, to roll its segments and to compact, and is told that all of it is
    durable; but its successor has read the log."""
    chance = random.Random(SEED)
    with writers(tmp_path) as old, writers(tmp_path) as new, writers(tmp_path) as last:
        for epoch in range(1, 31, 3):
            old.lead(epoch)
            old.hear(lambda: old.durable)
            time.sleep(chance.uniform(0.0, 0.03))
            os.kill(old.pid, signal.SIGSTOP)
            new.lead(epoch + 1)
            new.hear(lambda: new.durable)
            believed = new.replayed
            assert believed is not None
            os.kill(old.pid, signal.SIGCONT)
            before = old.durable
            old.hear(lambda before=before: old.durable > before + 400)
            new.hear(lambda before=new.durable: new.durable > before + 100)
            new.kill()
            last.lead(epoch + 2)
            last.hear(lambda: last.durable)
            old.hear(lambda before=old.durable: old.durable > before)
            assert last.replayed is not None
            assert last.replayed[epoch] == believed[epoch]
            assert last.replayed[epoch + 1] >= new.durable
            old.kill()
            last.kill()
            state = read(tmp_path)
            assert state[epoch] == believed[epoch]
            assert state[epoch + 1] == last.replayed[epoch + 1]
            assert state[epoch + 2] >= last.durable
