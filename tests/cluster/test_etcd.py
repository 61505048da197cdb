"""A leader and a standby by a real etcd: who leads, and how soon, when one of them fails."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import StartCluster
from tests.cluster.elected_cluster import (
    LEASE_S,
    OPTIONS,
    ROUNDS,
    STANDBY,
    ElectedCluster,
    N,
    elected_cluster,
)
from tests.cluster.running_cluster import WAIT_TIMEOUT_S, wait_until
from tests.doubles.etcd_members import EtcdMembers, require_etcd

#: etcd may take a second to choose another leader of its own, and more on a busy machine.
LONG_LEASE_S = 10.0
#: What is asserted where it is measured (`FAILOVER_ROUNDS`), and printed otherwise.
ELECTION_S = 1.0
HAND_OVER_S = 1.0
KNOWS_S = 1.0
ROUND_TIMEOUT_S = 300
_NUMBERS = itertools.count()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    """An etcd of one member, which every cluster here uses under an id of its own."""
    require_etcd()
    members = EtcdMembers(tmp_path_factory.mktemp("etcd"))
    members.start()
    try:
        members.wait_until_healthy()
        yield members
    finally:
        members.kill()


def cluster_id() -> str:
    return f"cluster-{next(_NUMBERS)}"


def told(what: str, took_s: list[float], bound_s: float) -> None:
    """Print how long it took each time; what is measured must be within its bound."""
    each = ", ".join(f"{second:.3f}" for second in took_s)
    print(f"\n{what}: {min(took_s):.3f} to {max(took_s):.3f} s ({each})")
    assert not ROUNDS or max(took_s) < bound_s


@pytest.mark.timeout(ROUND_TIMEOUT_S * (ROUNDS + 2))
async def test_the_standby_leads_after_the_lease_when_the_leader_is_killed(
    etcd: EtcdMembers, start_cluster: StartCluster
) -> None:
    """In turns: who was killed is the next standby, one of them at another address each time."""
    took_s = []
    async with elected_cluster(start_cluster, etcd, cluster_id()) as elected:
        for number in range(ROUNDS or 2):
            job = await elected.job_before_m(f"job-{number}")
            leader, standby = elected.leader, elected.standby
            killed_s = await elected.kill(leader)
            took_s.append(await elected.leads(standby, killed_s))
            await elected.finish(job)
            await elected.start_jobmanager(leader)
            await elected.waits(leader, killed_s)
    told("from kill -9 to the standby's lead", took_s, LEASE_S + ELECTION_S)


@pytest.mark.timeout(ROUND_TIMEOUT_S * (ROUNDS + 2))
async def test_a_paused_leader_is_succeeded_and_does_nothing_when_it_wakes(
    etcd: EtcdMembers, start_cluster: StartCluster
) -> None:
    """P29: what tasks report while it stands still makes it want to deploy when it goes on."""
    took_s, knew_s = [], []
    async with elected_cluster(start_cluster, etcd, cluster_id()) as elected:
        for number in range(ROUNDS or 1):
            job = await elected.job_before_m(f"job-{number}")
            job.gates.close("K")
            leader, standby = elected.leader, elected.standby
            paused_s = time.time()
            elected.running.cluster.send_signal(leader, signal.SIGSTOP)
            try:
                job.gates.open("M")
                took_s.append(await elected.leads(standby, paused_s))
                await wait_until(lambda: len(job.ledger.starts("K")) == N, "K waits")  # noqa: B023
            finally:
                woken_s = time.time()
                elected.running.cluster.send_signal(leader, signal.SIGCONT)
            knew_s.append(await elected.knows_that_it_lost(leader, woken_s))
            await elected.waits(leader, woken_s)
            job.gates.open("K")
            await elected.finish(job)
            assert set(job.ledger.starts("K").values()) == {1}
    told("from SIGSTOP to the standby's lead", took_s, LEASE_S + ELECTION_S)
    told("from SIGCONT until the old leader knew", knew_s, KNOWS_S)


@pytest.mark.timeout(ROUND_TIMEOUT_S * (ROUNDS + 2))
async def test_a_leader_that_is_asked_to_stop_hands_over_at_once(
    etcd: EtcdMembers, start_cluster: StartCluster
) -> None:
    """P31, P62: nothing of the job is lost or deleted, and commands find the new leader."""
    took_s = []
    async with elected_cluster(start_cluster, etcd, cluster_id()) as elected:
        for number in range(ROUNDS or 1):
            job = await elected.job_before_m(f"job-{number}")
            leader, standby = elected.leader, elected.standby
            asked_s = time.time()
            elected.running.cluster.send_signal(leader, signal.SIGTERM)
            took_s.append(await elected.leads(standby, asked_s))
            ended = await elected.running.cluster.wait_for_end(leader, WAIT_TIMEOUT_S)
            assert ended is not None
            assert ended.code == 0
            assert job.job_id in await elected.listed()
            await elected.finish(job)
            await elected.start_jobmanager(leader)
            await elected.waits(leader, asked_s)
    told("from SIGTERM to the standby's lead", took_s, HAND_OVER_S)


async def test_a_leader_that_is_cut_off_from_etcd_stops_and_the_standby_leads(
    etcd: EtcdMembers, start_cluster: StartCluster
) -> None:
    """P29: it still reaches every TaskManager. It stops first, by its clock; a machine that is busy
    may let it say so later.
    """
    async with elected_cluster(
        start_cluster, etcd, cluster_id(), behind_proxies=["etcd"]
    ) as elected:
        job = await elected.job_before_m()
        leader, standby = elected.leader, elected.standby
        cut_s = time.time()
        elected.cut(elected.to_etcd[leader])
        took_s = await elected.leads(standby, cut_s)
        lost_s = await elected.knows_that_it_lost(leader, cut_s)
        told("from the cut to the standby's lead", [took_s], LEASE_S + ELECTION_S)
        told("from the cut until the old leader knew", [lost_s], took_s)
        await elected.finish(job)
        elected.to_etcd[leader].restore()
        await elected.waits(leader, cut_s)


async def test_a_leader_that_is_cut_off_from_the_taskmanagers_only_goes_on_leading(
    etcd: EtcdMembers, start_cluster: StartCluster
) -> None:
    """It takes them for lost, as it would without a standby, which does not act."""
    async with elected_cluster(
        start_cluster, etcd, cluster_id(), behind_proxies=["taskmanagers"]
    ) as elected:
        job = await elected.job_before_m()
        cut_s = time.time()
        elected.cut(elected.to_jobmanager[elected.leader])
        for name in elected.running.taskmanager_names():
            await wait_until(lambda: elected.said(name, "JobManager lost", cut_s), name)  # noqa: B023
        await asyncio.sleep(LEASE_S)
        elected.to_jobmanager[elected.leader].restore()
        await elected.finish(job, kept=False)
        assert len(elected.epochs()) == 1


async def test_a_leader_that_is_cut_off_from_all_is_succeeded_and_followed_by_none(
    etcd: EtcdMembers, start_cluster: StartCluster
) -> None:
    async with elected_cluster(
        start_cluster, etcd, cluster_id(), behind_proxies=["etcd", "taskmanagers"]
    ) as elected:
        job = await elected.job_before_m()
        leader, standby = elected.leader, elected.standby
        cut_s = time.time()
        elected.cut(elected.to_etcd[leader], elected.to_jobmanager[leader])
        took_s = await elected.leads(standby, cut_s)
        await elected.finish(job)
        told("from the cut from all to the standby's lead", [took_s], LEASE_S + ELECTION_S)
        elected.to_etcd[leader].restore()
        elected.to_jobmanager[leader].restore()
        await elected.waits(leader, cut_s)


async def test_members_of_etcd_come_and_go(tmp_path: Path, start_cluster: StartCluster) -> None:
    """P30: one of three costs nothing, be it etcd's own leader, and be it hanging; two or all cost
    the leadership until they are back, and finished work never."""
    require_etcd()
    members = EtcdMembers(tmp_path / "etcd", count=3)
    members.start()
    try:
        members.wait_until_healthy()
        async with elected_cluster(
            start_cluster, members, "three", lease_s=LONG_LEASE_S
        ) as elected:
            job = await elected.job_before_m()
            for member in range(3):
                members.kill(member)
                await asyncio.sleep(1.0)
                members.start(member)
                members.wait_until_healthy()
            members.signal(0, signal.SIGSTOP)
            await asyncio.sleep(LONG_LEASE_S + 2.0)
            members.signal(0, signal.SIGCONT)
            members.wait_until_healthy()
            assert len(elected.epochs()) == 1
            for gone in ([0, 1], [0, 1, 2]):
                await without_majority(elected, gone)
            await elected.finish(job)
            print(f"epochs: {elected.epochs()}")
    finally:
        members.kill()


async def without_majority(elected: ElectedCluster, gone: list[int]) -> None:
    """The leader stops by itself; when etcd is back, exactly one leads."""
    leader = elected.leader
    began_s = time.time()
    elected.members.kill(*gone)
    lost_s = await elected.knows_that_it_lost(leader, began_s)
    told(f"from the end of {len(gone)} members until the leader knew", [lost_s], LONG_LEASE_S)
    epochs = elected.epochs()
    elected.members.start(*gone)
    elected.members.wait_until_healthy()
    back_s = time.time()
    await wait_until(lambda: len(elected.epochs()) > len(epochs), "somebody leads")
    print(f"{len(gone)} gone: led {time.time() - back_s:.3f} s after they were back")
    await elected.running.taskmanagers(2)
    assert len(elected.epochs()) == len(epochs) + 1


async def test_a_jobmanager_with_a_directory_of_its_own_ends_and_says_so(
    etcd: EtcdMembers, start_cluster: StartCluster, tmp_path: Path
) -> None:
    """P61."""
    places = {
        "high-availability.etcd.endpoints": etcd.endpoints[0],
        "high-availability.cluster-id": "shared",
    }
    running = await start_cluster(0, options={**OPTIONS, **places})
    running.cluster.options["high-availability.storageDir"] = str(tmp_path / "own")
    running.cluster.start_standby(1)
    ended = await running.cluster.wait_for_end(STANDBY, WAIT_TIMEOUT_S)
    assert ended is not None
    assert ended.code == 1
    line = running.cluster.log_text(STANDBY).splitlines()[-1]
    assert f"{tmp_path / 'own'}/shared/leader is not the cluster's" in line
