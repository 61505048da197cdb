"""No-op tasks per second through one JobManager, beside a process pool of this machine."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.report import Report, Series, ratio
from holdover.api import Job
from holdover.cli.local_cluster import LocalCluster

_TASKS = 4000
_REPETITIONS = 3
_SLOTS = 6


async def run() -> Report:
    """One vertex of thousands of subtasks that do nothing, on 3 TaskManagers with 6 slots."""
    ours = Series("tasks per second, Holdover", "1/s")
    pool = Series("tasks per second, ProcessPoolExecutor", "1/s")
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        cluster = LocalCluster(place, taskmanagers=3, slots=_SLOTS // 3)
        async with cluster, cluster.client() as client:
            for number in range(_REPETITIONS):
                job = Job(f"noop-{number}")
                job.workload(0, 0, parallelism=_TASKS)
                started_s = time.monotonic()
                await client.wait(await client.submit(job))
                ours.samples.append(_TASKS / (time.monotonic() - started_s))
                pool.samples.append(_pool_rate())
    report = Report("tasks", f"{_TASKS} subtasks of no work on {_SLOTS} slots, submission to end")
    report.series = [ours, pool]
    report.add("tasks per second", ours.median, at_least=500)
    report.add("Holdover / ProcessPoolExecutor", ratio(ours, pool))
    return report


def _pool_rate() -> float:
    with ProcessPoolExecutor(_SLOTS, mp_context=get_context("spawn")) as pool:
        list(pool.map(_nothing, range(_SLOTS * 4)))  # the processes are there
        started_s = time.monotonic()
        for _ in pool.map(_nothing, range(_TASKS)):
            pass
        return _TASKS / (time.monotonic() - started_s)


def _nothing(number: int) -> int:
    return number
