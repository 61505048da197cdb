"""A submission is one job, however often and at whatever moment it is sent, on real processes."""

from __future__ import annotations

import asyncio

import pytest

from holdover.errors import JobAlreadyExists, RequestRefused
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import chain
from tests.cluster.ledger_steps import begun
from tests.cluster.running_cluster import wait_until

N = 2

pytestmark = [pytest.mark.slow]


async def test_a_submission_that_is_repeated_over_failovers_is_one_job(
    start_cluster: StartCluster,
) -> None:
    """P43, P42: the JobManager is killed right after each acknowledgement, and between tries; each
    task runs once.
    """
    running = await start_cluster(taskmanagers=1, slots=2)
    job = chain(running.directory, N)
    job.gates.close("S")
    graph = job.build()
    assert await running.client.submit(graph) == job.job_id
    await running.cluster.kill_jobmanager()  # 0 ms after the acknowledgement

    # Nobody answers: the client tries again and again until the next JobManager does.
    retries = [asyncio.create_task(running.client.submit(graph)) for _ in range(3)]
    async with running.cluster.client() as other:
        retries.append(asyncio.create_task(other.submit(graph)))
        running.cluster.start_jobmanager()
        assert await asyncio.gather(*retries) == [job.job_id] * 4

    await running.restart_jobmanager()
    assert await running.client.submit(graph) == job.job_id
    # There are slots for all of them when those of the leaders before are over.
    await wait_until(lambda: len(begun(job, "S", epoch=3)) == N, "the third leader's tasks wait")
    job.gates.open("S")
    await running.finished(job)
    assert [each.job_id for each in await running.client.list_jobs()] == [job.job_id]
    # A task of S may have begun under each leader, and was held back; none has run twice.
    assert set(job.ledger.ends().values()) == {1}


async def test_two_clients_at_once_submit_one_job_and_a_third_is_told_of_another(
    start_cluster: StartCluster,
) -> None:
    """P43, and P44: once it has ended, it is refused in words, also after a failover."""
    running = await start_cluster(taskmanagers=1, slots=2)
    job = chain(running.directory, N)
    graph = job.build()
    async with running.cluster.client() as other:
        clients = (running.client, other, running.client, other)
        ids = await asyncio.gather(*(client.submit(graph) for client in clients))
    assert ids == [job.job_id] * 4
    await running.finished(job)
    assert set(job.ledger.starts().values()) == {1}

    for _ in range(2):
        with pytest.raises(RequestRefused, match=r"already ended \(FINISHED\)"):
            await running.client.submit(graph)
        await running.restart_jobmanager()
    another = chain(running.directory, N, "another")
    another.gates.close("S")
    await running.submit(another)
    await wait_until(lambda: another.ledger.starts("S"), "it runs")
    different = another.build()
    different.name = "different"
    with pytest.raises(JobAlreadyExists):
        await running.client.submit(different)
    another.gates.open("S")
    await running.finished(another)
    assert set(job.ledger.starts().values()) == {1}, "an ended job ran again"
