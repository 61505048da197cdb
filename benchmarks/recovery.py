"""How soon a new JobManager deploys again, beside the bare start of its process."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

from benchmarks.report import Report, Series, ratio
from holdover.api import Job
from holdover.cli.local_cluster import LocalCluster
from holdover.client import Client
from holdover.v1.jobmanager_pb2 import RecoveryReport

_REPETITIONS = 5
_PRODUCERS = 24
_PARTITION_BYTES = 1 << 20
_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.02


async def run() -> Report:
    """A job of finished producers and running consumers loses its JobManager, five times."""
    recovery = Series("process start to first new deployment", "s")
    own_words = Series("... by the JobManager's own report", "s")
    bare = Series("bare start of a JobManager, until it is ready", "s")
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        cluster = LocalCluster(Path(place) / "cluster", taskmanagers=3, slots=2)
        async with cluster, cluster.client() as client:
            for number in range(_REPETITIONS):
                bare.samples.append(await _bare_start(Path(place) / f"bare-{number}"))
                measured_s, reported_s = await _recovery(cluster, client, f"job-{number}")
                recovery.samples.append(measured_s)
                own_words.samples.append(reported_s)
    report = Report("recovery", f"JobManager killed, 3 TaskManagers with {_PRODUCERS} partitions")
    report.series = [recovery, own_words, bare]
    report.add("recovery_s", recovery.median, at_most=1.5)
    report.add("recovery / bare start", ratio(recovery, bare))
    return report


async def _bare_start(directory: Path) -> float:
    started_s = time.monotonic()
    async with LocalCluster(directory, taskmanagers=0):
        return time.monotonic() - started_s


async def _recovery(cluster: LocalCluster, client: Client, job_id: str) -> tuple[float, float]:
    """Seconds from the start of the process, by this process's clock and by the report."""
    job = Job(job_id)
    produced = job.workload(0, _PARTITION_BYTES, name="produce", parallelism=_PRODUCERS)
    produced.hash("value").workload(600, name="consume", parallelism=6)
    await client.submit(job, job_id)
    async with asyncio.timeout(_TIMEOUT_S):
        async with aclosing(client.watch(job_id)) as statuses:
            async for status in statuses:
                if status.subtasks_finished >= _PRODUCERS:
                    break
        await cluster.kill_jobmanager()
        started_wall_s = time.time()
        cluster.start_jobmanager()
        report = await _first_deployment(client, job_id)
        await client.cancel(job_id)
        async for _ in client.watch(job_id):
            pass  # until it has ended, so that the next repetition has all slots
    deployed_wall_ms = report.process_started_wall_ms + report.first_deployment_ms
    return deployed_wall_ms / 1000 - started_wall_s, report.first_deployment_ms / 1000


async def _first_deployment(client: Client, job_id: str) -> RecoveryReport:
    while True:
        reports = await client.recovery_reports(job_id)
        if reports and reports[-1].first_deployment_ms >= 0:
            return reports[-1]
        await asyncio.sleep(_POLL_INTERVAL_S)
