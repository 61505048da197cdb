"""docker-compose.ha.yml: who leads when containers are killed, paused, stopped and cut off.

CONTAINER_ROUNDS=20 (`make containers-rounds`) repeats what is measured, and asserts its bounds.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from holdover.client import Client
from tests.cluster.ledger_jobs import LedgerJob
from tests.containers.containers import (
    BUILD_TIMEOUT_S,
    JOBMANAGERS,
    LEADS,
    LEASE_S,
    LOST,
    ROUNDS,
    STOP_TIMEOUT_S,
    WAITS,
    Containers,
    N,
    run,
)
from tests.containers.test_compose import everything, is_locked_down

#: After the lease, and after SIGTERM.
TAKEOVER_S = 1.0
ETCD = ("etcd-1", "etcd-2", "etcd-3")
TASKMANAGERS = 3

pytestmark = pytest.mark.timeout(BUILD_TIMEOUT_S + ROUNDS * 90)
measured = pytest.mark.skipif(not ROUNDS, reason="CONTAINER_ROUNDS says how often")


def leader_of(elected: Containers) -> str:
    """Who was the last to say that it leads."""
    return max(JOBMANAGERS, key=lambda name: elected.said(name, LEADS)[-1:])


def other(name: str) -> str:
    return JOBMANAGERS[1 - JOBMANAGERS.index(name)]


def epochs(elected: Containers) -> list[int]:
    """Of all leaderships, in the order in which they began."""
    lines = [
        line
        for name in JOBMANAGERS
        for line in elected.log(elected.id(name)).splitlines()
        if f" {LEADS} " in line
    ]
    return [int(line.split("epoch=")[1].split()[0]) for line in sorted(lines)]


async def until_said(elected: Containers, name: str, words: str, since_s: float) -> float:
    """Wait until it says so; how long after `since_s` it was."""
    said = await elected.until(lambda: elected.said(name, words, since_s), f"{name}: {words}")
    return float(said[0]) - since_s


def told(what: str, took_s: list[float], bound_s: float) -> None:
    """Print how long it took; what is measured must be within its bound."""
    each = ", ".join(f"{seconds:.2f}" for seconds in took_s)
    middle = statistics.median(took_s)
    print(f"\n{what}: {min(took_s):.2f} to {max(took_s):.2f} s, median {middle:.2f} ({each})")
    assert not ROUNDS or max(took_s) < bound_s


async def standby_is_there(elected: Containers, client: Client, since_s: float) -> None:
    """The other JobManager stands by, and all TaskManagers are registered."""
    await elected.until(
        lambda: any(elected.said(name, WAITS, since_s) for name in JOBMANAGERS), "a standby"
    )
    await elected.ready(client, TASKMANAGERS)


async def finished(elected: Containers, client: Client, job: LedgerJob) -> None:
    """The job ends well, and no two leaderships had the same epoch."""
    await elected.finish(client, job)
    led = epochs(elected)
    assert len(led) == len(set(led))


async def test_all_services_come_up_healthy_and_locked_down(elected: Containers) -> None:
    async with elected.client() as client:
        await elected.ready(client, TASKMANAGERS)
    found = everything(elected)
    assert len(found) == 2 + TASKMANAGERS + len(ETCD) + 1
    for description in found.values():
        is_locked_down(description)
    for container in found:
        await elected.until(
            lambda: elected.state(container)["Health"]["Status"] == "healthy",  # noqa: B023
            "healthy",
        )


async def test_the_standby_leads_after_docker_kill_of_the_leader(elected: Containers) -> None:
    """P29, P57: who was killed is the next standby, and may have another address."""
    took_s = []
    async with elected.client() as client:
        await standby_is_there(elected, client, 0.0)
        for number in range(ROUNDS or 1):
            job = await elected.before_m(client, f"killed-{number}")
            leader = leader_of(elected)
            asked_s = time.time()
            run("docker", "kill", elected.id(leader))
            killed_s = elected.ended_s(elected.id(leader))
            print(f"\nround {number}: the engine took {killed_s - asked_s:.2f} s to kill it")
            took_s.append(await until_said(elected, other(leader), LEADS, killed_s))
            await finished(elected, client, job)
            run("docker", "start", elected.id(leader))
            await until_said(elected, leader, WAITS, killed_s)
    told("from docker kill to the standby's lead", took_s, LEASE_S + TAKEOVER_S)


async def test_the_standby_leads_at_once_after_docker_stop_of_the_leader(
    elected: Containers,
) -> None:
    """P31, P62: the lease is given back."""
    took_s = []
    async with elected.client() as client:
        for number in range(ROUNDS or 1):
            job = await elected.before_m(client, f"stopped-{number}")
            leader = leader_of(elected)
            asked_s = time.time()
            run("docker", "stop", "--time", f"{STOP_TIMEOUT_S}", elected.id(leader))
            took_s.append(await until_said(elected, other(leader), LEADS, asked_s))
            assert elected.state(elected.id(leader))["ExitCode"] == 0
            await finished(elected, client, job)
            run("docker", "start", elected.id(leader))
            await until_said(elected, leader, WAITS, asked_s)
    told("from docker stop to the standby's lead", took_s, TAKEOVER_S)


async def test_a_paused_leader_is_succeeded_and_is_refused_when_it_wakes(
    elected: Containers,
) -> None:
    """P29: what tasks report meanwhile makes it want to deploy when it goes on."""
    took_s, knew_s = [], []
    async with elected.client() as client:
        for number in range(ROUNDS or 1):
            job = await elected.before_m(client, f"paused-{number}")
            job.gates.close("K")
            leader = leader_of(elected)
            paused_s = time.time()
            run("docker", "pause", elected.id(leader))
            try:
                job.gates.open("M")
                took_s.append(await until_said(elected, other(leader), LEADS, paused_s))
                await elected.until(lambda: len(job.ledger.starts("K")) == N, "K waits")  # noqa: B023
            finally:
                woken_s = time.time()
                run("docker", "unpause", elected.id(leader))
            knew_s.append(await until_said(elected, leader, LOST, woken_s))
            await until_said(elected, leader, WAITS, woken_s)
            job.gates.open("K")
            await finished(elected, client, job)
            assert set(job.ledger.starts("K").values()) == {1}
    told("from docker pause to the standby's lead", took_s, LEASE_S + TAKEOVER_S)
    told("from docker unpause until the old leader knew", knew_s, TAKEOVER_S)


async def test_what_a_shuffle_service_keeps_outlives_the_leader_and_all_taskmanagers(
    elected: Containers,
) -> None:
    """The TaskManagers come back with empty disks: `finish` sees that no task of S runs again."""
    async with elected.client() as client:
        await elected.ready(client, TASKMANAGERS)
        job = await elected.before_m(client, "kept", {"shuffle.mode": "external"})
        leader, taskmanagers = leader_of(elected), elected.ids("taskmanager")
        killed_s = time.time()
        run("docker", "kill", elected.id(leader), *taskmanagers)
        await until_said(elected, other(leader), LEADS, killed_s)
        run("docker", "start", elected.id(leader), *taskmanagers)
        await until_said(elected, leader, WAITS, killed_s)
        await finished(elected, client, job)
        report = (await client.recovery_reports(job.job_id))[-1]
    held = {worker.worker_id: worker.partitions_accepted for worker in report.workers}
    assert held["shuffle-1"] == N


async def test_one_member_of_etcd_costs_nothing_and_two_the_leader_until_they_are_back(
    elected: Containers,
) -> None:
    """P30: with two members gone nobody leads, then one does."""
    async with elected.client() as client:
        job = await elected.before_m(client, "members")
        before = epochs(elected)
        leader = leader_of(elected)
        run("docker", "kill", elected.id(ETCD[0]))
        killed_s = time.time()
        run("docker", "kill", elected.id(ETCD[1]))
        await until_said(elected, leader, LOST, killed_s)
        assert epochs(elected) == before
        run("docker", "start", *(elected.id(name) for name in ETCD[:2]))
        await elected.until(lambda: len(epochs(elected)) > len(before), "one leads")
        await elected.ready(client, TASKMANAGERS)
        await finished(elected, client, job)
        assert len(epochs(elected)) == len(before) + 1


async def test_a_jobmanager_with_a_volume_of_its_own_is_refused(elected: Containers) -> None:
    """P61."""
    described = elected.inspect(elected.id("jobmanager-2"))["Config"]["Env"]
    options = [text for each in described if "HIGH_AVAIL" in each for text in ("--env", each)]
    with pytest.raises(AssertionError, match="is not the cluster's"):
        run(
            *("docker", "run", "--rm", "--network", f"{elected.project}_election", *options),
            *("--volume", "/var/lib/holdover/storage", "holdover:test", "jobmanager"),
        )


@measured
@pytest.mark.parametrize("gone", [1, 2, 3])
async def test_members_of_etcd_are_killed_and_come_back(elected: Containers, gone: int) -> None:
    """P30, P33: each of the three in turn, two of them, all. A single one costs the leadership at
    most when etcd has to choose another leader, which takes it 1 to 2 s of so short a lease."""
    async with elected.client() as client:
        for first in range(len(ETCD)):
            job = await elected.before_m(client, f"gone-{gone}-{first}")
            before, leader = epochs(elected), leader_of(elected)
            members = [elected.id(ETCD[(first + i) % len(ETCD)]) for i in range(gone)]
            killed_s = time.time()
            run("docker", "kill", *members)
            if gone == 1:
                await asyncio.sleep(2 * LEASE_S)
            else:
                lost_s = await until_said(elected, leader, LOST, killed_s)
                print(f"\n{gone} members gone: the leader stopped after {lost_s:.2f} s")
                assert lost_s < LEASE_S
            back_s = time.time()
            run("docker", "start", *members)
            if gone > 1:
                await elected.until(lambda: len(epochs(elected)) > len(before), "one leads")  # noqa: B023
                led_s = min(
                    each[0] for name in JOBMANAGERS if (each := elected.said(name, LEADS, back_s))
                )
                print(f"{gone} members back: led after {led_s - back_s:.2f} s")
            await elected.ready(client, TASKMANAGERS)
            await finished(elected, client, job)
            changes = len(epochs(elected)) - len(before)
            print(f"{gone} members: {changes} other leaders")
            assert changes == 1 or (changes == 0 and gone == 1)


@measured
@pytest.mark.parametrize("cut", [("election",), ("default",), ("election", "default")])
async def test_a_leader_is_cut_off(elected: Containers, cut: tuple[str, ...]) -> None:
    """P29: from etcd only, from TaskManagers and clients only, from both, by `docker network
    disconnect`; afterwards it is a standby, or leads as before."""
    took_s, lost_s = [], []
    async with elected.client() as client:
        for number in range(3):
            job = await elected.before_m(client, f"cut-{'-'.join(cut)}-{number}")
            before, leader = epochs(elected), leader_of(elected)
            container = elected.id(leader)
            cut_s = time.time()
            for network in cut:
                run("docker", "network", "disconnect", f"{elected.project}_{network}", container)
            try:
                if "election" in cut:
                    took_s.append(await until_said(elected, other(leader), LEADS, cut_s))
                    lost_s.append(await until_said(elected, leader, LOST, cut_s))
                else:
                    await elected.until(
                        lambda: (
                            len(elected.said("taskmanager", "JobManager lost", cut_s))  # noqa: B023
                            >= TASKMANAGERS
                        ),
                        "TaskManagers notice",
                    )
            finally:
                for network in cut:
                    name = f"{elected.project}_{network}"
                    run("docker", "network", "connect", "--alias", leader, name, container)
            await elected.ready(client, TASKMANAGERS)
            if "election" in cut:
                await until_said(elected, leader, WAITS, cut_s)
                await finished(elected, client, job)
            else:
                assert epochs(elected) == before
                job.gates.open("M")
                await client.wait(job.job_id)
                assert job.result() == job.gold
    if "election" in cut:
        told(f"from the cut ({', '.join(cut)}) to the standby's lead", took_s, LEASE_S + TAKEOVER_S)
        told("until the old leader had stopped", lost_s, LEASE_S)
        assert all(lost < took for lost, took in zip(lost_s, took_s, strict=True))


@pytest.mark.parametrize("seconds", [5, 30, 180])
@measured
async def test_etcd_is_away_for_a_while(elected: Containers, seconds: int) -> None:
    """P30: afterwards one leads, with a larger epoch."""
    async with elected.client() as client:
        job = await elected.before_m(client, f"away-{seconds}")
        before = epochs(elected)
        members = [elected.id(name) for name in ETCD]
        run("docker", "stop", "--time", "10", *members)
        await asyncio.sleep(seconds)
        run("docker", "start", *members)
        await elected.ready(client, TASKMANAGERS)
        await finished(elected, client, job)
        assert len(epochs(elected)) == len(before) + 1
