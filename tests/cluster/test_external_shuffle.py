"""Output that shuffle services keep, on real processes: it outlives TaskManagers, leaders, and
services that are started again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping

import duckdb
import pytest

from holdover.errors import JobEnded
from holdover.v1.common_pb2 import JobState
from shuffle.partition_name import DATA_SUFFIX
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import KEYS, ROWS_PER_SUBTASK, Gold, LedgerJob, chain
from tests.cluster.ledger_steps import (
    held_subtasks,
    once,
    rerun,
    resets,
    told,
    until_held_back,
)
from tests.cluster.running_cluster import (
    JOB_TIMEOUT_S,
    WAIT_TIMEOUT_S,
    RunningCluster,
    wait_until,
)

pytestmark = pytest.mark.slow

N = 6
SERVICES = {"ss-0", "ss-1"}
WAIT = "execution.batch.job-recovery.previous-worker.recovery.timeout"
RESTART = "execution.batch.job-recovery.taskmanager-restart.timeout"
FULL = {"shuffle.service.max-bytes": "100 b"}


async def held_at_services(
    start_cluster: StartCluster, *gated: str, options: Mapping[str, str] | None = None
) -> tuple[RunningCluster, LedgerJob]:
    """All of the first stage is finished, and is at two services; the second one waits."""
    running = await start_cluster(shuffle_services=2, options={WAIT: "4 min", **(options or {})})
    job = chain(running.directory, N)
    job.gates.close(*gated)
    await until_held_back(running, job)
    await running.durable(job, finished=N)
    assert {partition.worker for partition in running.held(job.job_id)} == SERVICES
    return running, job


async def ended_right(running: RunningCluster, job: LedgerJob) -> None:
    """The job finishes with DuckDB's result, and no service has anything left of it."""
    await running.finished(job)
    assert job.result() == by_duckdb()
    await wait_until(lambda: not at_services(running, job), "nothing is left at the services")


def at_services(running: RunningCluster, job: LedgerJob) -> list[str]:
    """All files of the job that any shuffle service has."""
    return [path for path in running.files_of(job.job_id) if path.startswith("ss-")]


def by_duckdb() -> Gold:
    """What the job computes."""
    rows = duckdb.connect().execute(
        f"select value % {KEYS}, sum(3 * value + 1)::bigint, count(*)"
        f" from range({N * ROWS_PER_SUBTASK}) as numbers(value) group by 1 order by 1"
    )
    return rows.fetchall()


async def test_the_jobmanager_and_all_taskmanagers_are_killed_and_no_finished_work_runs_again(
    start_cluster: StartCluster,
) -> None:
    """P39: TaskManagers of other names go on with what is at the services."""
    running, job = await held_at_services(start_cluster)
    held = running.held(job.job_id)
    await running.cluster.kill_jobmanager()
    for index in range(3):
        await running.cluster.kill_taskmanager(index)
    for index in range(3, 6):
        running.cluster.start_taskmanager(index)
    running.cluster.start_jobmanager()
    await running.taskmanagers(3)
    assert running.held(job.job_id) == held
    job.gates.open("M")
    await ended_right(running, job)
    once(job, "S", N)
    report = await running.report(job)
    stage = told(report, job, "S")
    assert (stage.kept, stage.adopted, resets(stage)) == (N, 0, {})


@pytest.mark.parametrize("with_leader", [False, True], ids=["alone", "with the leader"])
async def test_services_that_are_killed_and_started_again_bring_back_what_they_held(
    start_cluster: StartCluster, with_leader: bool
) -> None:
    """P36: at other addresses; who had begun to read there begins anew."""
    running, job = await held_at_services(start_cluster, options={RESTART: "4 min"})
    held = running.held(job.job_id)
    if with_leader:
        await running.cluster.kill_jobmanager()
    for index in range(2):
        await running.cluster.kill_shuffle_service(index)
        running.cluster.start_shuffle_service(index)
    if with_leader:
        running.cluster.start_jobmanager()
    await running.shuffle_services(*SERVICES)
    assert running.held(job.job_id) == held
    job.gates.open("M")
    await ended_right(running, job)
    once(job, "S", N)


async def test_a_service_that_is_lost_for_good_costs_what_is_needed_of_it(
    start_cluster: StartCluster,
) -> None:
    """What the other one has is read, not made anew."""
    running, job = await held_at_services(start_cluster)
    lost = held_subtasks(running, job, "S", "ss-0")
    await running.cluster.kill_shuffle_service(0)
    await running.shuffle_services("ss-1")
    job.gates.open("M")
    await running.finished(job)
    assert job.result() == by_duckdb()
    assert rerun(job, "S") == lost


async def test_a_service_is_drained_while_a_job_runs(start_cluster: StartCluster) -> None:
    """Its output moves to the other one, none of that runs again, and it ends by itself."""
    running, job = await held_at_services(start_cluster, "K")
    words = ("shuffle-service", "drain", "ss-0", "--directory", str(running.cluster.directory))
    command = (sys.executable, "-m", "holdover.cli.main", *words)
    drain = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told_text, _ = await drain.communicate()
    assert drain.returncode == 0
    assert b"ss-0 takes nothing new" in told_text
    await wait_until(
        lambda: held_subtasks(running, job, "S", "ss-1") == set(range(N)), "all of S is at ss-1"
    )
    job.gates.open("M")
    status = await running.cluster.wait_for_end("ss-0", WAIT_TIMEOUT_S)
    assert status is not None
    assert status.code == 0
    assert not job.ledger.ends("K"), "the job still runs"
    job.gates.open("K")
    await ended_right(running, job)
    once(job, "S", N)


async def test_a_damaged_block_at_a_service_costs_its_producer(start_cluster: StartCluster) -> None:
    """P38: found by its checksum when it is read, before any code of the job sees it."""
    running = await start_cluster(shuffle_services=2)
    job = chain(running.directory, N)
    job.gates.close("S")
    await running.submit(job)
    job.gates.open("S", *range(N - 1))  # nobody reads before the last one is finished
    await wait_until(lambda: len(running.held(job.job_id)) == N - 1, "all but one are held")
    held = running.held(job.job_id)
    damaged = next(p for p in held if p.base.with_name(p.base.name + DATA_SUFFIX).stat().st_size)
    data = damaged.base.with_name(damaged.base.name + DATA_SUFFIX)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    job.gates.open("S")
    await ended_right(running, job)
    assert rerun(job, "S") == {damaged.identity.subtask}


async def one_full_service(
    start_cluster: StartCluster, options: Mapping[str, str] | None = None
) -> RunningCluster:
    """A cluster whose only shuffle service takes hardly anything."""
    options = {"shuffle.mode": "external", **(options or {})}
    running = await start_cluster(options=options, start=False)
    running.cluster.shuffle_services = 2
    running.cluster.start_jobmanager()
    for index in range(3):
        running.cluster.start_taskmanager(index)
    running.cluster.start_shuffle_service(0, FULL)
    await running.cluster.wait_until_ready(3, WAIT_TIMEOUT_S, shuffle_services=1)
    return running


async def test_a_job_whose_output_no_service_takes_says_why_and_goes_on_when_one_does(
    start_cluster: StartCluster,
) -> None:
    running = await one_full_service(start_cluster)
    job = chain(running.directory, N)
    await running.submit(job)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while "max-bytes" not in (await running.client.describe(job.job_id)).status.waiting:
            await asyncio.sleep(0.05)
    running.cluster.start_shuffle_service(1)
    await ended_right(running, job)
    status = (await running.client.describe(job.job_id)).status
    assert status.restarts == 0


async def test_a_job_whose_output_no_service_takes_fails_in_time_with_the_reason(
    start_cluster: StartCluster,
) -> None:
    running = await one_full_service(start_cluster, {"slot.request.timeout": "2 s"})
    job = chain(running.directory, N)
    await running.submit(job)
    async with asyncio.timeout(JOB_TIMEOUT_S):
        with pytest.raises(JobEnded, match=r"slot\.request\.timeout has passed.*max-bytes"):
            await running.client.wait(job.job_id)
    status = (await running.client.describe(job.job_id)).status
    assert status.state == JobState.JOB_STATE_FAILED
    await wait_until(lambda: not at_services(running, job), "nothing is left at the services")


async def test_tasks_that_write_to_a_service_that_hangs_run_again_with_another_one(
    start_cluster: StartCluster,
) -> None:
    """It is frozen before they begin to write. Nobody tells them: they would wait for ever."""
    options = {
        "heartbeat.interval": "1 s",
        "heartbeat.timeout": "8 s",
        "task.cancellation.timeout": "1 s",
    }
    running = await start_cluster(shuffle_services=2, options=options)
    job = chain(running.directory, N)
    job.gates.close("S")
    await running.submit(job)
    await wait_until(lambda: len(job.ledger.starts("S")) == N, "all of S runs")
    assert running.cluster.send_signal("ss-0", signal.SIGSTOP)
    job.gates.open("S")
    await running.finished(job)
    assert job.result() == by_duckdb()
    assert rerun(job, "S"), "some had begun to write to the frozen one"
    assert not running.held(job.job_id, "ss-0")
    running.cluster.send_signal("ss-0", signal.SIGCONT)
    await running.shuffle_services(*SERVICES)
    await wait_until(lambda: not at_services(running, job), "nothing is left at the services")
