"""The end of jobs, and what clients see, when the JobManager is killed; on real processes."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from holdover.api import Job
from holdover.cli.local_cluster import JOBMANAGER, LocalCluster
from holdover.runtime.real import real_runtime
from holdover.v1.common_pb2 import JobState
from holdover.v1.jobmanager_pb2 import DescribeJobRequest
from holdover.v1.jobmanager_pb2_grpc import JobManagerStub
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import Ledger, LedgerJob, chain
from tests.cluster.running_cluster import (
    JOB_TIMEOUT_S,
    UNHURRIED,
    WAIT_TIMEOUT_S,
    RunningCluster,
    wait_until,
)

N = 4
SINKS = ("a", "b", "c")
ROWS = 400
NO_LEADER_S = 10.0

pytestmark = [pytest.mark.slow]


async def before_m(start_cluster: StartCluster) -> tuple[RunningCluster, LedgerJob]:
    """A cluster, and a job all of whose tasks of S have ended, durably; those of M wait."""
    running = await start_cluster(taskmanagers=2, slots=2, options=UNHURRIED)
    job = chain(running.directory, N)
    job.gates.close("M")
    await running.submit(job)
    await wait_until(lambda: len(job.ledger.starts("M")) == N, "all tasks of M wait")
    await running.durable(job)
    return running, job


async def test_a_log_with_a_torn_tail_is_recovered_from_and_the_output_is_gold(
    start_cluster: StartCluster,
) -> None:
    """P01: half a record at the end of the newest segment, as a crash leaves it."""
    running, job = await before_m(start_cluster)
    await running.cluster.kill_jobmanager()
    newest = max(running.cluster.storage_directory.glob(f"*/jobs/{job.job_id}/events/*.log"))
    complete = newest.read_bytes()
    newest.write_bytes(complete + complete[-40:-7])
    running.cluster.start_jobmanager()
    job.gates.open("M")
    await running.finished(job)

    report = await running.report(job)
    print(list(report.log_findings))
    assert any(newest.name in finding for finding in report.log_findings)
    assert job.ledger.starts("S") == {("S", i): 1 for i in range(N)}


async def test_a_torn_last_record_costs_at_most_its_own_subtask(
    start_cluster: StartCluster,
) -> None:
    """P01: the last record itself is cut; what it told of is adopted from its TaskManager."""
    running, job = await before_m(start_cluster)
    await running.cluster.kill_jobmanager()
    newest = max(running.cluster.storage_directory.glob(f"*/jobs/{job.job_id}/events/*.log"))
    newest.write_bytes(newest.read_bytes()[:-5])
    running.cluster.start_jobmanager()
    job.gates.open("M")
    await running.finished(job)
    assert job.ledger.starts("S") == {("S", i): 1 for i in range(N)}


async def test_tasks_have_where_to_stage_though_somebody_deleted_it(
    start_cluster: StartCluster,
) -> None:
    """A leader that was frozen over its end of the job may do that to its successor, or a user."""
    running, job = await before_m(start_cluster)
    [staging] = job.output.glob(".staging-*")
    staging.rmdir()
    job.gates.open("M")
    await running.finished(job)
    assert job.ledger.starts("M") == {("M", i): 1 for i in range(N)}


async def polled(address: str, job_id: str, until: asyncio.Event) -> Counter[grpc.StatusCode]:
    """Ask an address about the job as fast as it answers, and at least until it has answered well;
    how often it answered what.
    """
    seen: Counter[grpc.StatusCode] = Counter()
    while not until.is_set() or not seen[grpc.StatusCode.OK]:
        # A fresh channel has no back-off: the new JobManager is asked from its first millisecond.
        async with real_runtime().network.channel(address) as channel:
            try:
                await JobManagerStub(channel).DescribeJob(
                    DescribeJobRequest(job_id=job_id), timeout=10
                )
                seen[grpc.StatusCode.OK] += 1
            except grpc.aio.AioRpcError as error:
                seen[error.code()] += 1
        await asyncio.sleep(0.001)
    return seen


async def test_a_watch_goes_on_over_ten_seconds_without_a_leader(
    start_cluster: StartCluster,
) -> None:
    """P46: the command says that it waits, ends with code 0 and FINISHED; and the new JobManager
    never says, from its first moment on, that the job is not found.
    """
    running, job = await before_m(start_cluster)
    watch = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdover.cli.main", "watch", job.job_id),
        *("--directory", str(running.cluster.directory)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert watch.stdout is not None
    assert watch.stderr is not None
    await asyncio.wait_for(until_said(watch.stdout, b"RUNNING"), WAIT_TIMEOUT_S)

    await running.cluster.kill_jobmanager()
    over = asyncio.Event()
    poll = asyncio.create_task(polled(running.cluster.address, job.job_id, over))
    # This much time without a leader is what the case is about.
    await asyncio.sleep(NO_LEADER_S)
    await asyncio.wait_for(until_said(watch.stderr, b"waiting for the next"), WAIT_TIMEOUT_S)
    assert not watch.stdout.at_eof(), "the watch has given up"
    running.cluster.start_jobmanager()
    job.gates.open("M")
    await running.finished(job)
    out, err = await asyncio.wait_for(watch.communicate(), WAIT_TIMEOUT_S)
    over.set()
    answers = await poll

    assert await watch.wait() == 0, err
    assert out.decode().split()[-1] == "FINISHED"
    print(answers)
    assert answers[grpc.StatusCode.NOT_FOUND] == 0
    assert answers[grpc.StatusCode.OK] > 0


async def until_said(stream: asyncio.StreamReader, words: bytes) -> None:
    """Read the watch's lines up to the one with these words."""
    lines = b""
    while words not in lines:
        line = await stream.readline()
        assert line, f"the watch has ended: {lines!r}"
        lines += line


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningCluster]:
    """One cluster for all kills around the end of a job."""
    directory = tmp_path_factory.mktemp("job-end")
    cluster = LocalCluster(directory / "cluster", taskmanagers=2, slots=3, options=UNHURRIED)
    async with cluster, cluster.client() as client:
        yield RunningCluster(cluster, client, directory)


class ThreeSinks:
    """A job that writes the same numbers to three directories, with a ledger."""

    def __init__(self, directory: Path, job_id: str) -> None:
        self.job_id = job_id
        self.directory = directory / job_id
        self.directory.mkdir()
        self.ledger = Ledger(self.directory / "ledger")

    def output(self, sink: str) -> Path:
        """Where the sink publishes."""
        return self.directory / sink

    def job(self) -> Job:
        """Numbers -> a stage with a ledger -> three sinks."""
        job, ledger = Job(self.job_id), self.ledger
        numbers = job.sequence(0, ROWS, parallelism=N).rebalance()
        stage = numbers.map_partition(lambda rows: noted(ledger, rows), name="M", parallelism=N)
        for sink in SINKS:
            stage.hash("value").map_batches(same, name=sink, parallelism=N).write_parquet(
                str(self.output(sink))
            )
        return job

    def published(self) -> list[Path]:
        """All files that a reader sees."""
        return [file for sink in SINKS for file in self.output(sink).glob("part-*")]

    def marks(self) -> list[Path]:
        """The success marks."""
        return [mark for sink in SINKS for mark in self.output(sink).glob("_SUCCESS")]

    def check(self) -> None:
        """Each row of each sink once, and nothing staged any more."""
        for sink in SINKS:
            values = pq.read_table(self.output(sink)).column("value").to_pylist()
            assert sorted(values) == list(range(ROWS)), f"sink {sink}"
            assert not list(self.output(sink).glob(".staging-*"))
        assert len(self.published()) == N * len(SINKS)
        assert len(self.marks()) == len(SINKS)


def noted(ledger: Ledger, rows: object) -> object:
    """All rows, with a line in the ledger."""
    ledger.note("start", "M")
    return rows


def same(batch: object) -> object:
    return batch


async def at_once(condition: Callable[[], object], what: str) -> None:
    """Wait for a moment that is soon over; the loop does nothing else meanwhile."""
    deadline_s = time.monotonic() + JOB_TIMEOUT_S
    while True:
        with suppress(FileNotFoundError):  # a directory that was moved while it was looked through
            if condition():
                return
        assert time.monotonic() < deadline_s, what
        await asyncio.sleep(0)


def is_staged(it: ThreeSinks) -> bool:
    """All of the output is; or the moment was missed, and it is being published."""
    staged = list(it.directory.glob("*/.staging-*/*/part-*"))
    return len(staged) == N * len(SINKS) or bool(it.published())


MOMENTS: dict[str, Callable[[RunningCluster, ThreeSinks], object]] = {
    "staged": lambda _, it: is_staged(it),
    "publishing": lambda _, it: it.published(),
    "published": lambda _, it: it.marks(),
    "archived": lambda running, it: list(
        running.cluster.storage_directory.glob(f"*/archive/{it.job_id}.pb")
    ),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_output_of_three_sinks_is_there_once_whenever_the_jobmanager_goes(
    shared: RunningCluster, moment: str, how: str
) -> None:
    """P44, P45: before and after the intent, while publishing, after it, and after the end marker;
    killed, or frozen and thawed. Finished tasks do not run again once publishing has begun.
    """
    it = ThreeSinks(shared.directory, f"{moment}-{how}")
    await shared.client.submit(it.job(), it.job_id)
    await at_once(lambda: MOMENTS[moment](shared, it), f"{it.job_id} is {moment}")
    shared.cluster.send_signal(JOBMANAGER, signal.SIGSTOP)
    marks, files = len(it.marks()), len(it.published())
    print(f"{files} files and {marks} marks were there")
    assert marks == 0 or files == N * len(SINKS), "a mark without all of the output"
    if how == "frozen":
        shared.cluster.send_signal(JOBMANAGER, signal.SIGCONT)
    else:
        await shared.restart_jobmanager()

    async with asyncio.timeout(JOB_TIMEOUT_S):
        status = await shared.client.wait(it.job_id)
    assert status.state == JobState.JOB_STATE_FINISHED
    it.check()
    assert it.ledger.starts() == {("M", i): 1 for i in range(N)}
    table = await shared.client.result_table(it.job_id)
    assert sorted(table.column("value").to_pylist()) == sorted([*range(ROWS)] * len(SINKS))
    jobs = shared.cluster.storage_directory.glob(f"*/jobs/{it.job_id}")
    await wait_until(lambda: not list(jobs), "nothing is left of it but output and summary")
