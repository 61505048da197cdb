"""Partitions that vanish or rot while their TaskManager lives cost exactly their producers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import chain
from tests.cluster.ledger_steps import loss_noticed
from tests.cluster.running_cluster import HeldPartition, RunningCluster, wait_until

pytestmark = pytest.mark.slow


async def test_a_deleted_and_a_truncated_file_cost_their_producers_and_one_retry_of_each_reader(
    start_cluster: StartCluster,
) -> None:
    """P34: between S and M, under live TaskManagers; the output is GOLD."""
    running = await start_cluster()
    job = chain(running.directory, 4)
    job.gates.close("S", "K")
    await running.submit(job)
    job.gates.open("S", 0, 1, 2)
    await wait_until(lambda: len(running.held(job.job_id)) == 3, "three partitions are published")
    # Who is quick reads more splits, and who is slow may read none: only one has rows for certain.
    deleted, _, truncated = sorted(
        running.held(job.job_id), key=lambda held: data_path(held).stat().st_size
    )
    delete(deleted)
    os.truncate(data_path(truncated), data_path(truncated).stat().st_size // 2)
    job.gates.open("S")
    await wait_until(lambda: job.ledger.starts("K"), "M is finished")
    attempts = await attempts_made(running, job.job_id)
    job.gates.open("K")
    await running.finished(job)

    lost = {deleted.identity.subtask, truncated.identity.subtask}
    assert job.ledger.starts("S") == {("S", i): 2 if i in lost else 1 for i in range(4)}
    assert max(attempts.values()) <= 2, attempts


async def test_a_file_that_is_lost_after_a_recovery_costs_its_producer(
    start_cluster: StartCluster,
) -> None:
    """The TaskManager offers it in good faith; the reader finds out."""
    running = await start_cluster()
    job = chain(running.directory, 3)
    job.gates.close("S")
    await running.submit(job)
    job.gates.open("S", 0, 1)
    await wait_until(
        lambda: len(running.held(job.job_id)) == 2 and len(job.ledger.starts("S")) == 3,
        "two partitions are published, and S-2 waits",
    )
    await running.durable(job, finished=2)
    await running.cluster.kill_jobmanager()
    await loss_noticed(running, job, "S")
    delete(partition(running, job.job_id, 1))
    running.cluster.start_jobmanager()
    job.gates.open("S")
    await running.finished(job)

    assert job.ledger.ends("S") == {("S", 0): 1, ("S", 1): 2, ("S", 2): 1}


async def attempts_made(running: RunningCluster, job_id: str) -> dict[tuple[str, int], int]:
    """How many attempts each subtask has had, those included that failed before they began."""
    described = await running.client.describe(job_id, subtasks=True)
    attempts = [subtask.attempt for subtask in described.subtasks]
    return {(a.vertex_id, a.subtask): a.attempt + 1 for a in attempts}


def partition(running: RunningCluster, job_id: str, subtask: int) -> HeldPartition:
    """The published partition of that subtask."""
    return next(held for held in running.held(job_id) if held.identity.subtask == subtask)


def delete(held: HeldPartition) -> None:
    """Its rows, and its index, too: nobody misses the file of no rows."""
    held.base.with_name(held.base.name + INDEX_SUFFIX).unlink()
    data_path(held).unlink()


def data_path(held: HeldPartition) -> Path:
    """The file with its rows."""
    return held.base.with_name(held.base.name + DATA_SUFFIX)
