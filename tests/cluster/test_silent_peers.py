"""Peers that are frozen, cut off in one direction, or cut off in the middle of a word."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdover.cli.local_cluster import JOBMANAGER
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import LedgerJob, chain
from tests.cluster.proxy import Direction, Proxy
from tests.cluster.running_cluster import UNHURRIED, RunningCluster, wait_until

pytestmark = pytest.mark.slow

#: Long enough that nobody is silent for so long because the machine is busy.
TIMEOUT_S = 8.0
SHORT = {"heartbeat.interval": "1 s", "heartbeat.timeout": f"{TIMEOUT_S:g} s"}


async def test_a_frozen_jobmanager_is_noticed_in_time_and_costs_no_finished_work_when_it_thaws(
    start_cluster: StartCluster,
) -> None:
    """P54, P37: it is still the leader then, since it holds the lock; everybody comes back."""
    running = await start_cluster(options=SHORT)
    job = await held_at_m(running)
    job.gates.close("S")  # what would be made again would wait here, and the job with it
    stopped_s = time.time()
    running.cluster.send_signal(JOBMANAGER, signal.SIGSTOP)
    for name in running.taskmanager_names():
        await noticed(running, name, "JobManager lost", stopped_s)
    running.cluster.send_signal(JOBMANAGER, signal.SIGCONT)
    await registered_again(running, running.taskmanager_names())
    job.gates.open("M")
    await running.finished(job)

    assert job.ledger.ends("S") == {("S", subtask): 1 for subtask in range(4)}


async def test_a_frozen_taskmanager_is_lost_in_time_and_welcome_as_a_new_one_when_it_thaws(
    start_cluster: StartCluster,
) -> None:
    """P54: its work is done elsewhere meanwhile, and what it still holds is deleted (P25)."""
    running = await start_cluster(options=SHORT)
    job = await held_at_m(running)
    gone = {held.identity.subtask for held in running.held(job.job_id, "tm-0")}
    stopped_s = time.time()
    running.cluster.send_signal("tm-0", signal.SIGSTOP)
    await noticed(running, JOBMANAGER, "taskmanager lost worker=tm-0", stopped_s)
    job.gates.open("M")
    await running.finished(job)
    running.cluster.send_signal("tm-0", signal.SIGCONT)
    await registered_again(running, ["tm-0"])

    assert {task[1] for task, count in job.ledger.starts("S").items() if count == 2} == gone
    assert max(job.ledger.starts("S").values()) == 2
    await wait_until(lambda: not running.files_of(job.job_id), "no file is left")


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.name.lower())
async def test_a_connection_that_is_silent_in_one_direction_is_noticed_on_both_sides(
    start_cluster: StartCluster, direction: Direction
) -> None:
    """P54: by its silence; then all is as after any loss, and GOLD."""
    async with behind_proxy(start_cluster, 1, SHORT, slots=4) as (running, proxy):
        job = await held_at_m(running)
        silent_s = time.time()
        proxy.silence(direction)
        await noticed(running, "tm-0", "JobManager lost", silent_s)
        await noticed(running, JOBMANAGER, "taskmanager lost", silent_s)
        proxy.restore()
        await registered_again(running, ["tm-0"])
        job.gates.open("M")
        await running.finished(job)


async def test_an_inventory_that_is_cut_half_way_counts_as_none(
    start_cluster: StartCluster,
) -> None:
    """P23: 500 partitions of two jobs; nothing is missing while their TaskManager tries again."""
    async with behind_proxy(start_cluster, 1, UNHURRIED, slots=6) as (running, proxy):
        jobs = [chain(running.directory, 250, f"job-{i}", consumers=2) for i in range(2)]
        for job in jobs:
            job.gates.close("M")
            await running.submit(job)
        for job in jobs:
            await held_back(job, 2)
            await running.durable(job)
        proxy.cut_after_bytes, proxy.cuts_left = 8_000, 2
        await running.restart_jobmanager()
        await running.taskmanagers(1)
        assert proxy.cuts_left == 0, "the inventory was never cut"
        assert len(running.logged(JOBMANAGER, "taskmanager registered")) >= 2
        for job in jobs:
            job.gates.open("M")
        for job in jobs:
            await running.finished(job)

    for job in jobs:
        assert job.ledger.starts("S") == {("S", subtask): 1 for subtask in range(250)}


# ---------------------------------------------------------------------- steps


@asynccontextmanager
async def behind_proxy(
    start_cluster: StartCluster, taskmanagers: int, options: dict[str, str], slots: int = 2
) -> AsyncIterator[tuple[RunningCluster, Proxy]]:
    """A cluster whose JobManager is known under the address of a proxy."""
    places = {"jobmanager.rpc.address": "127.0.0.2", "jobmanager.bind-host": "127.0.0.1"}
    running = await start_cluster(taskmanagers, slots, {**options, **places}, start=False)
    running.cluster.start_jobmanager()
    address = running.cluster.address
    async with Proxy(address, address.replace("127.0.0.2", "127.0.0.1")) as proxy:
        for index in range(taskmanagers):
            running.cluster.start_taskmanager(index)
        await running.taskmanagers(taskmanagers)
        yield running, proxy


async def held_at_m(running: RunningCluster) -> LedgerJob:
    """A job whose stage S is finished, and durably so, and whose stage M waits."""
    job = chain(running.directory, 4)
    job.gates.close("M")
    await running.submit(job)
    await held_back(job, 4)
    await running.durable(job)
    return job


async def held_back(job: LedgerJob, n: int) -> None:
    """Wait until S is finished and all n tasks of M wait."""
    await wait_until(lambda: len(job.ledger.starts("M")) == n, "M waits", 300.0)


async def noticed(running: RunningCluster, name: str, words: str, since_s: float) -> None:
    """The process says so in its log."""
    await wait_until(lambda: running.logged(name, words), f"{name}: {words}")
    print(f"{name}: {words} after {running.logged(name, words)[0] - since_s:.2f} s")


async def registered_again(running: RunningCluster, names: list[str]) -> None:
    """Wait until each has registered a second time."""

    def missing() -> list[str]:
        return [name for name in names if len(running.logged(name, "registered address")) < 2]

    await wait_until(lambda: not missing(), "all register again")
