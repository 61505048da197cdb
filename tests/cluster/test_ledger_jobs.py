"""The jobs that failover tests count on give GOLD, each task once, where nothing fails."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import chain, join
from tests.cluster.running_cluster import wait_until

pytestmark = pytest.mark.slow


async def test_chain_and_join_give_gold_and_run_each_task_once(start_cluster: StartCluster) -> None:
    """Both at a time; afterwards no TaskManager holds a file of either."""
    running = await start_cluster()
    jobs = [chain(running.directory, 4), join(running.directory, 3)]
    for job in jobs:
        await running.submit(job)
    for job in jobs:
        await running.finished(job)

    assert jobs[0].ledger.starts() == {(stage, i): 1 for stage in "SMK" for i in range(4)}
    stages = ("S1", "S2", "J", "K")
    assert jobs[1].ledger.ends() == {(stage, i): 1 for stage in stages for i in range(3)}
    await wait_until(lambda: not [f for job in jobs for f in running.files_of(job.job_id)], "files")


async def test_a_closed_gate_holds_its_tasks_back(start_cluster: StartCluster) -> None:
    """Tasks of M begin, and end only when they are let through."""
    running = await start_cluster(taskmanagers=1, slots=2)
    job = chain(running.directory, 2)
    job.gates.close("M")
    await running.submit(job)
    await wait_until(lambda: len(job.ledger.starts("M")) == 2, "both tasks of M run")

    assert job.ledger.ends("M") == {}
    assert {held.identity.subtask for held in running.held(job.job_id)} == {0, 1}
    job.gates.open("M", 0)
    await wait_until(lambda: job.ledger.ends("M") == {("M", 0): 1}, "M-0 passes")
    job.gates.open("M")
    await running.finished(job)
