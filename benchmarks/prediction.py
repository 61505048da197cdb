"""What the simulator says beforehand about a scenario, beside what local processes then do."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from benchmarks.report import Report, Series
from holdover.cli.local_cluster import LocalCluster
from holdover.cli.real_cluster import LEADS
from holdover.cli.real_record import parse_log_line
from holdover.cli.real_run import RealRun
from simulator.measures import rerun_subtasks
from simulator.record import RunRecord
from simulator.scenario import Scenario
from simulator.scenario_file import load_scenario
from simulator.simulate import run_scenario

_SCENARIOS = ("jobmanager-restart", "slow-jobmanager", "taskmanager-and-jobmanager")
_DIRECTORY = Path(__file__).parents[1] / "examples" / "scenarios"
_REPETITIONS = int(os.environ.get("BENCH_REPETITIONS", "5"))
#: How far a median of the simulation may be from that of the real runs, as a part of the latter.
_ERROR_MAX = 0.15


async def run() -> Report:
    """Each scenario is simulated with as many seeds as it is run; medians are compared.

    The one thing that is measured for the prediction is how long a JobManager takes to start here.
    """
    report = Report(
        "prediction", f"three scenarios in both worlds, {_REPETITIONS} runs in each of them"
    )
    starts = Series("start of a JobManager, until it campaigns", "s")
    starts.samples = [await _start_s() for _ in range(_REPETITIONS)]
    report.series.append(starts)
    for name in _SCENARIOS:
        scenario = _starting_in(load_scenario(str(_DIRECTORY / f"{name}.yaml")), starts.median)
        seeds = range(_REPETITIONS)
        simulated = [await asyncio.to_thread(run_scenario, scenario, seed) for seed in seeds]
        real = [await _real(scenario, seed) for seed in seeds]
        _compare(report, name, simulated, real)
    return report


async def _start_s() -> float:
    """From the start of the process to its leadership, which nobody else wants."""
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        started_wall_s = time.time()
        async with LocalCluster(place, taskmanagers=0) as cluster:
            lines = [parse_log_line(text) for text in cluster.log_text().splitlines()]
    return next(line.wall_s for line in lines if line and line.event == LEADS) - started_wall_s


def _starting_in(scenario: Scenario, jobmanager_start_s: float) -> Scenario:
    cluster = scenario.cluster.model_copy(update={"jobmanager_start_s": jobmanager_start_s})
    return scenario.model_copy(update={"cluster": cluster})


async def _real(scenario: Scenario, seed: int) -> RunRecord:
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        return await RealRun(scenario, seed, Path(place), lambda text: None).run()


def _compare(report: Report, name: str, simulated: list[RunRecord], real: list[RunRecord]) -> None:
    for what, samples in (
        ("recovery", [[r.measures.recovery_s for r in records] for records in (simulated, real)]),
        ("finish", [[r.measures.finish_s for r in records] for records in (simulated, real)]),
    ):
        predicted, measured = (
            Series(f"{name}: {what}, {world}", "s", [s for s in times_s if s is not None])
            for world, times_s in zip(("simulated", "real"), samples, strict=True)
        )
        report.series += [predicted, measured]
        error = abs(predicted.median / measured.median - 1)
        report.add(f"{name}: error of {what}", error, at_most=_ERROR_MAX)
    expected = [rerun_subtasks(record) for record in simulated]
    alike = sum(rerun_subtasks(record) == expected[0] for record in [*simulated, *real])
    report.add(f"{name}: runs with the same rerun subtasks", alike, at_least=2 * _REPETITIONS)
    findings = sum(len(record.findings) for record in [*simulated, *real])
    report.add(f"{name}: findings", findings, at_most=0)
