"""Real processes are killed and started again on their directories: what had finished is kept."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import chain
from tests.cluster.ledger_steps import held_by_stage, held_subtasks, once, rerun, until_held_back
from tests.cluster.running_cluster import UNHURRIED, HeldPartition, RunningCluster, wait_until

pytestmark = pytest.mark.slow

TASKMANAGERS = 3


async def kill_all(running: RunningCluster) -> None:
    """`kill -9` of every process of the cluster, the JobManager first."""
    await running.cluster.kill_jobmanager()
    for index in range(TASKMANAGERS):
        await running.cluster.kill_taskmanager(index)


async def start_all(running: RunningCluster) -> None:
    """Start them again, TaskManagers first, and wait until they are registered."""
    for index in range(TASKMANAGERS):
        running.cluster.start_taskmanager(index)
    running.cluster.start_jobmanager()
    await running.taskmanagers(TASKMANAGERS)


def file_of(partition: HeldPartition, suffix: str) -> Path:
    """One of its two files."""
    return partition.base.with_name(partition.base.name + suffix)


async def test_the_whole_cluster_is_killed_and_no_finished_work_runs_again(
    start_cluster: StartCluster,
) -> None:
    """P40: not one finished subtask, although no process is left that knew of it; and after the
    job's end nothing is left on any disk (P35)."""
    running = await start_cluster(taskmanagers=TASKMANAGERS, options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 6))
    await running.durable(job)
    held = running.held(job.job_id)
    await kill_all(running)
    await start_all(running)
    assert running.held(job.job_id) == held
    job.gates.open("M")
    await running.finished(job)
    once(job, "S", 6)
    report = await running.report(job)
    assert sum(count.subtasks for vertex in report.vertices for count in vertex.resets) == 0
    assert report.early_end
    await wait_until(lambda: not running.held(job.job_id), "nothing is left on any disk")


async def test_a_damaged_partition_is_found_at_the_start_and_only_its_producer_runs_again(
    start_cluster: StartCluster,
) -> None:
    """P38: an index with a flipped byte and an emptied data file, while all processes are down."""
    running = await start_cluster(taskmanagers=TASKMANAGERS, options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 6))
    await running.durable(job)
    # Who is quick reads more splits, and who is slow may read none.
    index, *_, data = sorted(
        held_by_stage(running, job, "S"), key=lambda held: file_of(held, ".data").stat().st_size
    )
    await kill_all(running)
    content = file_of(index, ".index").read_bytes()
    flipped = bytes([content[20] ^ 1])
    file_of(index, ".index").write_bytes(content[:20] + flipped + content[21:])
    file_of(data, ".data").write_bytes(b"")
    await start_all(running)
    job.gates.open("M")
    await running.finished(job)
    assert rerun(job, "S") == {index.identity.subtask, data.identity.subtask}


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_taskmanager_is_restarted_while_the_jobmanager_lives(
    start_cluster: StartCluster, signal_number: int
) -> None:
    """What it had finished and nobody has begun anew is taken up again, at its new address."""
    running = await start_cluster(taskmanagers=TASKMANAGERS, options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 6))
    await running.durable(job)
    job.gates.close("S")
    held = held_subtasks(running, job, "S", "tm-0")
    assert held
    await running.cluster.kill_taskmanager(0, signal_number)
    running.cluster.start_taskmanager(0)
    await running.taskmanagers(TASKMANAGERS)
    await wait_until(lambda: held_subtasks(running, job, "S", "tm-0") == held, "its files are kept")
    job.gates.open("M")
    await running.finished(job)
    ends = job.ledger.ends("S")
    assert set(ends.values()) == {1}, "a finished subtask has finished again"
