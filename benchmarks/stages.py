"""What failures cost a job of four stages, beside the same job without any."""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Report, Series, ratio
from holdover.api import Job
from holdover.cli.local_cluster import LocalCluster
from holdover.client import Client
from holdover.v1.jobmanager_pb2 import JobStatus

_STAGES = (32, 32, 32, 16)
_TASK_S = 3.0
_OUTPUT_BYTES = 1 << 20
_TASKMANAGERS = 4
_SLOTS = 2
_VICTIM = 1
_WORKER_TIMEOUT_S = 5
_RESTART_TASKMANAGER_S = 1.0
_REPETITIONS = int(os.environ.get("BENCH_REPETITIONS", "3"))
_TIMEOUT_S = 300.0

_Task = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Failure:
    """What is killed when half of all subtasks are finished. The JobManager is started again at
    once; the goals are for the time in all, as a part of that without a failure."""

    name: str
    jobmanager: bool = False
    taskmanager: bool = False
    taskmanager_returns: bool = False
    at_most: float | None = None


_FAILURES = (
    _Failure("no failure"),
    _Failure("JobManager killed", jobmanager=True, at_most=1.10),
    _Failure(
        "JobManager and TaskManager killed, back after 1 s",
        jobmanager=True,
        taskmanager=True,
        taskmanager_returns=True,
        at_most=1.15,
    ),
    _Failure(
        "JobManager and TaskManager killed, it stays away",
        jobmanager=True,
        taskmanager=True,
        at_most=1.5,
    ),
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One run.

    Attributes:
        total_s: from submission to end.
        gap_s: from the kill to the first attempt that started after it, nan without one.
        rerun: subtasks that started again although an attempt of theirs had finished.
        bound_s: what the run could have taken at least, by arithmetic.
    """

    total_s: float
    gap_s: float
    rerun: int
    bound_s: float


async def run() -> Report:
    """Each kind of failure in turns, so that a slow spell of the machine hits all of them."""
    totals = {failure: Series(f"{failure.name}: total", "s") for failure in _FAILURES}
    gaps = {failure: Series(f"{failure.name}: kill to first start", "s") for failure in _FAILURES}
    reruns = {failure: Series(f"{failure.name}: finished, rerun", "") for failure in _FAILURES}
    bounds = {failure: Series(f"{failure.name}: arithmetic bound", "s") for failure in _FAILURES}
    for _ in range(_REPETITIONS):
        for failure in _FAILURES:
            outcome = await _run_once(failure)
            totals[failure].samples.append(outcome.total_s)
            gaps[failure].samples.append(outcome.gap_s)
            reruns[failure].samples.append(outcome.rerun)
            bounds[failure].samples.append(outcome.bound_s)
    report = Report(
        "stages",
        f"stages of {', '.join(map(str, _STAGES))} tasks of {_TASK_S:g} s on"
        f" {_TASKMANAGERS} x {_SLOTS} slots, killed at half, {_REPETITIONS} runs",
    )
    none, *failures = _FAILURES
    report.series = [totals[none], bounds[none]]
    for failure in failures:
        report.series += [series[failure] for series in (totals, bounds, gaps, reruns)]
        report.add(
            f"{failure.name} / no failure",
            ratio(totals[failure], totals[none]),
            at_most=failure.at_most,
        )
        report.add("... by arithmetic", bounds[failure].median / bounds[none].median)
        lost = failure.taskmanager and not failure.taskmanager_returns
        report.add(
            "... finished subtasks rerun, most",
            max(reruns[failure].samples),
            at_most=None if lost else 0,
        )
    report.notes.append(
        "the bound counts waves of tasks on the slots that are left; with a TaskManager that stays"
        f" away it includes the {_WORKER_TIMEOUT_S} s for which a new leader waits for workers"
    )
    return report


async def _run_once(failure: _Failure) -> _Outcome:
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        ledger = Path(place) / "ledger"
        timeout = "execution.batch.job-recovery.previous-worker.recovery.timeout"
        cluster = LocalCluster(
            Path(place) / "cluster",
            taskmanagers=_TASKMANAGERS,
            slots=_SLOTS,
            options={timeout: f"{_WORKER_TIMEOUT_S} s"},
        )
        async with asyncio.timeout(_TIMEOUT_S), cluster, cluster.client() as client:
            started_s = time.monotonic()
            job_id = await client.submit(_job(str(ledger)), "stages")
            killed_ms = math.inf
            if failure.jobmanager:
                await _half_finished(client, job_id)
                killed_ms = time.time() * 1000
                await _fail(cluster, failure)
            await client.wait(job_id)
            total_s = time.monotonic() - started_s
        return _outcome(_read(ledger), total_s, killed_ms, failure)


def _job(ledger: str) -> Job:
    job = Job("stages")
    first, *others = _STAGES
    stage = job.workload(_TASK_S, _OUTPUT_BYTES, name="s0", parallelism=first, ledger_path=ledger)
    for number, parallelism in enumerate(others, 1):
        stage = stage.hash("value").workload(
            _TASK_S,
            _OUTPUT_BYTES,
            name=f"s{number}",
            parallelism=parallelism,
            ledger_path=ledger,
        )
    return job


async def _half_finished(client: Client, job_id: str) -> None:
    statuses = client.watch(job_id)
    async with aclosing(statuses):
        async for status in statuses:
            if _is_half_finished(status):
                return


def _is_half_finished(status: JobStatus) -> bool:
    return status.subtasks_finished >= sum(_STAGES) / 2


async def _fail(cluster: LocalCluster, failure: _Failure) -> None:
    killing = [cluster.kill_jobmanager()]
    if failure.taskmanager:
        killing.append(cluster.kill_taskmanager(_VICTIM))
    await asyncio.gather(*killing)
    cluster.start_jobmanager()
    if failure.taskmanager_returns:
        await asyncio.sleep(_RESTART_TASKMANAGER_S)
        cluster.start_taskmanager(_VICTIM)


@dataclass(frozen=True, slots=True)
class _Line:
    """Of the ledger that the tasks keep."""

    event: str
    wall_ms: float
    worker: str
    task: _Task


def _read(ledger: Path) -> list[_Line]:
    lines = [json.loads(text) for text in ledger.read_text(encoding="utf-8").splitlines()]
    return [
        _Line(line["event"], line["wall_ms"], line["worker"], (line["vertex"], line["subtask"]))
        for line in lines
    ]


def _outcome(lines: list[_Line], total_s: float, killed_ms: float, failure: _Failure) -> _Outcome:
    finished: dict[_Task, str] = {}
    rerun = 0
    for line in lines:
        if line.event == "started" and line.task in finished:
            rerun += 1
            del finished[line.task]
        if line.event == "finished":
            finished[line.task] = line.worker
    if len(finished) != sum(_STAGES):
        raise RuntimeError(f"{len(finished)} of {sum(_STAGES)} subtasks have finished")
    starts_ms = [x.wall_ms for x in lines if x.event == "started" and x.wall_ms > killed_ms]
    gap_s = (min(starts_ms) - killed_ms) / 1000 if starts_ms else math.nan
    return _Outcome(total_s, gap_s, rerun, _bound_s(lines, killed_ms, failure))


def _bound_s(lines: list[_Line], killed_ms: float, failure: _Failure) -> float:
    """Tasks run in waves, as many at a time as there are slots, one stage after the other."""
    slots = _TASKMANAGERS * _SLOTS
    if not failure.jobmanager:
        return _waves(_STAGES, slots) * _TASK_S
    begun_ms = min(line.wall_ms for line in lines)
    before = {x.task: x.worker for x in lines if x.event == "finished" and x.wall_ms <= killed_ms}
    bound_s = (killed_ms - begun_ms) / 1000
    if failure.taskmanager and not failure.taskmanager_returns:
        gone = f"tm-{_VICTIM}"
        before = {task: worker for task, worker in before.items() if worker != gone}
        slots -= _SLOTS
        bound_s += _WORKER_TIMEOUT_S
    done = Counter(vertex for vertex, _ in before)
    vertices = list(dict.fromkeys(line.task[0] for line in lines))  # stages begin in their order
    left = [width - done[vertex] for width, vertex in zip(_STAGES, vertices, strict=True)]
    return bound_s + _waves(left, slots) * _TASK_S


def _waves(widths: Sequence[int], slots: int) -> int:
    return sum(math.ceil(width / slots) for width in widths)
