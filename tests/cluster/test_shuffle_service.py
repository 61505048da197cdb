"""A shuffle service as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from shuffle.errors import OutputRefused
from shuffle.flight import FlightPartitionClient
from shuffle.flight_result_target import ShuffleServiceTarget
from tests.unit.shuffle.shuffle_service_harness import attempt, identity, put

ROOT = Path(__file__).parents[2]
KEY = attempt()


class ServiceProcess:
    """`python -m shuffle`, whose JobManager never comes."""

    def __init__(self, directory: Path) -> None:
        options = {
            "io.tmp.dirs": str(directory / "tmp"),
            "high-availability.storageDir": str(directory / "storage"),
            "jobmanager.rpc.port": "1",
            "shuffle.service.disk-reserve": "0 b",
            "shuffle.service.resource-id": "shuffle-1",
        }
        defines = [part for key, value in options.items() for part in ("-D", f"{key}={value}")]
        self.log = directory / f"log-{time.monotonic_ns()}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shuffle", *defines],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": "."},
            )
        self.address = self._data_address()

    def _data_address(self) -> str:
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            found = re.search(r"data_address=(\S+)", self.log.read_text())
            if found:
                return found[1]
            time.sleep(0.05)
        pytest.fail(f"not ready: {self.log.read_text()}")

    def end(self, number: signal.Signals) -> int:
        """Send it a signal; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(120)


def test_what_was_published_is_there_after_a_kill_and_what_was_put_is_not(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path)
    with ShuffleServiceTarget(service.address) as target:
        target.publish(put(target, KEY))
        put(target, attempt(1))
    service.end(signal.SIGKILL)
    service = ServiceProcess(tmp_path)
    with FlightPartitionClient(service.address) as client:
        assert sum(block.rows for block in client.fetch(identity(KEY).name, 0, 2)) == 10
    files = [p.name for p in (tmp_path / "tmp/shuffle-1/shuffle").rglob("*") if p.is_file()]
    assert sorted(files) == [
        "map-0-0-0-1.data",
        "map-0-0-0-1.index",
        "map-0-0-1.finished",
    ]
    assert service.end(signal.SIGTERM) == 0


def test_a_task_that_sends_nothing_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path)
    with ShuffleServiceTarget(service.address) as target:
        writer = target.open(identity(KEY), 2)
        for _ in range(2):
            writer.write(0, pa.record_batch({"b": [bytes(1 << 21)]}))
        assert service.end(signal.SIGTERM) == 0
        with pytest.raises(OutputRefused):
            writer.commit()
