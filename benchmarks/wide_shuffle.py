"""A job of 500 x 500 partitions through one shuffle service: files, streams, and memory of it.

As a program (`python -m benchmarks.wide_shuffle COUNTS -D key=value ...`) it is that service, which
writes to the file COUNTS how many streams it has had when it ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.report import Report, Series
from holdover.api import Job
from holdover.cli.local_cluster import LocalCluster
from shuffle import flight
from shuffle.__main__ import main

_WIDTH = int(os.environ.get("BENCH_WIDTH", "500"))
_OUTPUT_BYTES = 1 << 20
_TASKMANAGERS, _SLOTS = 2, 2
_NAME = "ss-0"
_LOOK_INTERVAL_S = 0.1
_TIMEOUT_S = 1_800.0


class _Service:
    """The service as a process, looked at from outside."""

    def __init__(self, place: Path, cluster: LocalCluster) -> None:
        self.counts = place / "counts.json"
        self.partitions = place / "partitions"
        options = {
            **cluster.options,
            "high-availability.storageDir": cluster.storage,
            "io.tmp.dirs": str(self.partitions),
            "shuffle.service.resource-id": _NAME,
        }
        defines = [part for key, value in options.items() for part in ("-D", f"{key}={value}")]
        self._arguments = ["-m", "benchmarks.wide_shuffle", str(self.counts), *defines]
        self._process: asyncio.subprocess.Process | None = None
        #: The most of each that was seen.
        self.most = dict.fromkeys(("partition files", "open files", "connections"), 0)
        self.memory_peak_mb = 0.0

    async def start(self) -> None:
        """Begin."""
        self._process = await asyncio.create_subprocess_exec(sys.executable, *self._arguments)

    async def watch(self) -> None:
        """Look at it until cancelled."""
        while True:
            self._look()
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def _look(self) -> None:
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}")
        opened = [_target(link) for link in (status / "fd").iterdir()]
        shuffle = str(self.partitions)
        seen = {
            "partition files": sum(len(files) for _, _, files in os.walk(shuffle)),
            "open files": sum(target.startswith(shuffle) for target in opened),
            "connections": sum(target.startswith("socket:") for target in opened),
        }
        self.most = {what: max(self.most[what], count) for what, count in seen.items()}
        for line in (status / "status").read_text().splitlines():
            if line.startswith("VmHWM"):
                self.memory_peak_mb = int(line.split()[1]) / 1024

    async def stop(self) -> dict[str, int]:
        """End it; the streams that it has had."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self._process.wait(), 30)
        counted: dict[str, int] = json.loads(self.counts.read_text())
        return counted


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # it was closed meanwhile


async def run() -> Report:
    """One run: each of the second stage's subtasks reads a part of every partition."""
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        cluster = LocalCluster(
            Path(place) / "cluster",
            taskmanagers=_TASKMANAGERS,
            slots=_SLOTS,
            options={"shuffle.mode": "external"},
        )
        async with asyncio.timeout(_TIMEOUT_S), cluster, cluster.client() as client:
            service = _Service(Path(place), cluster)
            await service.start()
            try:
                started_s = time.monotonic()
                job_id = await client.submit(_job(), "wide")
                watching = asyncio.create_task(service.watch())
                await client.wait(job_id)
                total_s = time.monotonic() - started_s
                watching.cancel()
            finally:
                streams = await service.stop()
    report = Report(
        "wide-shuffle",
        f"{_WIDTH} x {_WIDTH} partitions of {_OUTPUT_BYTES // _WIDTH} bytes through one service",
    )
    report.series = [
        Series("the job, from submission to end", "s", [total_s]),
        Series("memory of the service, most", "MiB", [service.memory_peak_mb]),
    ]
    for what, count in {**service.most, **streams}.items():
        report.add(what, count, at_most=10 * _WIDTH if what != "partitions read" else None)
    return report


def _job() -> Job:
    job = Job("wide")
    stage = job.workload(0, _OUTPUT_BYTES, name="write", parallelism=_WIDTH)
    stage.hash("value").workload(0, 0, name="read", parallelism=_WIDTH)
    return job


# ------------------------------------------------------------------------------- the service


@contextmanager
def _counted(path: str) -> Iterator[None]:
    """Counts the streams of the partition server, and writes how many they were."""
    lock = threading.Lock()
    counts = {"streams of puts": 0, "streams of fetches": 0, "partitions read": 0}

    def counting(name: str, call: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            with lock:
                counts[name] += 1
            return call(*arguments)

        return counted

    server = flight._Server  # all streams pass here, and nowhere else
    with (
        patch.object(server, "do_put", counting("streams of puts", server.do_put)),
        patch.object(server, "do_get", counting("streams of fetches", server.do_get)),
        patch.object(server, "_find", counting("partitions read", server._find)),
    ):
        yield
    Path(path).write_text(json.dumps(counts), encoding="utf-8")


if __name__ == "__main__":
    with _counted(sys.argv[1]):
        exit_code = main(sys.argv[2:])
    os._exit(exit_code)
