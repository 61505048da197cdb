"""TPC-H on real processes: right without failures, and right when the JobManager is killed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from holdover.cli.local_cluster import LocalCluster
from holdover.cli.tpch.check import compare, read_output, reference
from holdover.cli.tpch.data import TpchData, tpch_data
from holdover.cli.tpch.ledger import Subtask, add_ledger, read_ledger
from holdover.cli.tpch.queries import QUERIES
from holdover.client import Client
from holdover.v1.common_pb2 import ExecutionState
from tests.cluster.running_cluster import UNHURRIED, files_below

SCALE = 0.25
JOB_TIMEOUT_S = 240.0
CLEAN_TIMEOUT_S = 120.0
OPTIONS = {
    # Shorter than the default (1 s), as these jobs are; so that events do get old while they run.
    "job-event.store.write-buffer.flush-interval": "200 ms",
    # What is not in the log yet is brought by the TaskManagers, which nobody is too late for.
    **UNHURRIED,
}
SEEDS = range(20)
# Files of a TaskManager that belong to no job.
TASKMANAGERS_OWN = ("lock", "tasks.log")

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@dataclass
class Bench:
    """A cluster of one JobManager and three TaskManagers, and the data."""

    cluster: LocalCluster
    client: Client
    data: TpchData
    directory: Path
    runs: int = 0
    durations_s: dict[int, float] = field(default_factory=dict)

    async def submit(self, number: int) -> Run:
        """Submit a query with a ledger."""
        self.runs += 1
        run = Run(number, f"q{number}-{self.runs}", self.directory, time.time())
        graph = QUERIES[number].job(self.data, str(run.output)).build(run.job_id)
        add_ledger(graph, run.ledger)
        await self.client.submit(graph)
        return run

    async def finished(self, run: Run) -> None:
        """Wait for the end of the job; DuckDB's result is the only right one."""
        try:
            async with asyncio.timeout(JOB_TIMEOUT_S):
                await self.client.wait(run.job_id)
        except TimeoutError:
            status = await self.client.describe(run.job_id)
            pytest.fail(f"{run.job_id} does not end: {status.status}\n{self.cluster.log_tail()}")
        query = QUERIES[run.number]
        result = compare(query, read_output(run.output), reference(query, self.data))
        assert result.equal, f"{run.job_id}: {result.difference}"

    async def told_finished(self, run: Run) -> set[Subtask]:
        """Subtasks of which the JobManager says that they are finished."""
        described = await self.client.describe(run.job_id, subtasks=True)
        finished = ExecutionState.EXECUTION_STATE_FINISHED
        attempts = [each.attempt for each in described.subtasks if each.state == finished]
        return {(attempt.vertex_id, attempt.subtask) for attempt in attempts}

    async def undisturbed(self, number: int) -> Run:
        """Run a query without any failure; notes how long it took."""
        run = await self.submit(number)
        await self.client.wait(run.job_id)
        self.durations_s[number] = time.time() - run.submitted_wall_s
        await self.finished(run)
        return run

    def files_of(self, job_id: str) -> list[str]:
        """What is on the disks of the TaskManagers at all, and of the job in the storage."""
        directory = self.cluster.directory
        held = [
            path for path in files_below(directory / "tmp") if path.name not in TASKMANAGERS_OWN
        ]
        stored = [
            path for path in files_below(self.cluster.storage_directory) if job_id in str(path)
        ]
        return sorted(str(path.relative_to(directory)) for path in [*held, *stored])


@dataclass(frozen=True)
class Run:
    """One submission."""

    number: int
    job_id: str
    directory: Path
    submitted_wall_s: float

    @property
    def output(self) -> Path:
        """Where its result will be."""
        return self.directory / f"{self.job_id}-output"

    @property
    def ledger(self) -> Path:
        """What its tasks say."""
        return self.directory / f"{self.job_id}-ledger"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    """One cluster for the whole module: it outlives twenty JobManagers."""
    directory = tmp_path_factory.mktemp("tpch")
    data = tpch_data(SCALE, directory=directory / "data")
    async with LocalCluster(directory / "cluster", options=OPTIONS) as cluster:
        async with cluster.client() as client:
            yield Bench(cluster, client, data, directory)
    assert cluster.processes() == {}


@pytest.mark.parametrize("number", QUERIES)
async def test_a_query_gives_duckdbs_result_and_leaves_only_output_and_summary(
    bench: Bench, number: int
) -> None:
    """Nothing fails: every task runs once, and afterwards no disk holds anything of the job."""
    run = await bench.undisturbed(number)

    starts = [line for line in read_ledger(run.ledger) if line.what == "start"]
    assert len({line.key for line in starts}) == len(starts), "some subtask ran twice"
    await until(
        lambda: bench.files_of(run.job_id) == [f"storage/default/archive/{run.job_id}.pb"],
        lambda: f"files are left: {bench.files_of(run.job_id)}",
    )
    assert sorted(path.suffix for path in run.output.iterdir()) == ["", ".parquet"]


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_job_whose_jobmanager_is_killed_gives_duckdbs_result_and_repeats_nothing_finished(
    bench: Bench, seed: int
) -> None:
    """Killed at a random moment: what it had said to be finished does not run again.

    Reruns are counted in the ledger that the tasks write themselves, not by the JobManager.
    """
    number = list(QUERIES)[seed % len(QUERIES)]
    if number not in bench.durations_s:
        await bench.undisturbed(number)
    delay_s = random.Random(seed).random() * bench.durations_s[number]
    run = await bench.submit(number)
    await asyncio.sleep(delay_s)
    finished = await bench.told_finished(run)
    await bench.cluster.kill_jobmanager()
    killed_wall_s = time.time()
    bench.cluster.start_jobmanager()
    await bench.finished(run)

    lines = read_ledger(run.ledger)
    ended = {line.key for line in lines if line.what == "end" and line.wall_s < killed_wall_s}
    again = {line.key for line in lines if line.what == "start" and line.wall_s > killed_wall_s}
    print(
        f"seed {seed}: Q{number} killed after {delay_s:.2f} s, when {len(ended)} of"
        f" {len({line.key for line in lines})} subtasks had ended ({len(finished)} were reported);"
        f" {len(ended & again)} of these and {len(again - ended)} others ran afterwards"
    )
    assert not finished & again, f"seed {seed}: finished subtasks ran again: {finished & again}"


async def until(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Look again until the condition holds; fail with what was seen when it does not."""
    deadline_s = time.monotonic() + CLEAN_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s, otherwise()
        await asyncio.sleep(0.05)
