"""What every leader election keeps, by a real etcd and by the simulated one."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdover.coordination import etcd_pb2
from holdover.coordination.cluster_storage import ForeignStorage
from holdover.coordination.etcd_client import (
    EtcdClient,
    EtcdLeaseEnded,
    EtcdRefused,
    EtcdUnavailable,
)
from holdover.coordination.etcd_leader import EtcdLeaderElection, EtcdLeaderService
from holdover.runtime import Runtime
from holdover.runtime.real import real_runtime
from simulator.world.etcd import SimulatedEtcd
from simulator.world.world import World
from tests.contracts.test_leader_contract import (
    LeaderArm,
    test_a_candidate_may_withdraw,
    test_a_follower_is_told_the_present_leader_and_each_new_one,
    test_a_follower_may_wait_before_there_is_a_leader,
    test_a_second_candidate_leads_only_after_the_first,
    test_each_leadership_has_a_larger_epoch,
    test_one_candidate_may_lead_again,
    test_the_only_candidate_leads_and_is_found,
)
from tests.doubles.etcd_members import EtcdMembers, require_etcd

#: So long that no leader loses its lease because the machine is busy.
LEASE_DURATION_S = 6.0
#: What happens within `WATCHDOG_S` has not waited for the end of such a one.
LONG_LEASE_DURATION_S = 300.0
CALL_TIMEOUT_S = 20.0
WATCHDOG_S = 60.0

__all__ = [
    "test_a_candidate_may_withdraw",
    "test_a_follower_is_told_the_present_leader_and_each_new_one",
    "test_a_follower_may_wait_before_there_is_a_leader",
    "test_a_second_candidate_leads_only_after_the_first",
    "test_each_leadership_has_a_larger_epoch",
    "test_one_candidate_may_lead_again",
    "test_the_only_candidate_leads_and_is_found",
]

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def etcd_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    """A real etcd for all tests here; each takes a cluster id of its own."""
    require_etcd()
    members = EtcdMembers(tmp_path_factory.mktemp("etcd"))
    members.start()
    try:
        members.wait_until_healthy()
        yield members
    finally:
        members.kill()


@dataclass
class EtcdArm:
    """An etcd, and processes of one cluster that use it."""

    runtime: Runtime
    endpoint: str
    cluster_id: str
    directory: str
    client: EtcdClient
    lease_duration_s: float = LEASE_DURATION_S
    services: list[EtcdLeaderService] = field(default_factory=list)
    elections: list[EtcdLeaderElection] = field(default_factory=list)

    def service(self, directory: str = "") -> EtcdLeaderService:
        self.services.append(
            EtcdLeaderService(
                self.runtime,
                [self.endpoint],
                self.cluster_id,
                directory or self.directory,
                self.lease_duration_s,
            )
        )
        return self.services[-1]

    def election(self, directory: str = "") -> EtcdLeaderElection:
        self.elections.append(self.service(directory).election())
        return self.elections[-1]

    def key(self, name: str) -> bytes:
        return f"/holdover/{self.cluster_id}/{name}".encode()

    async def delete(self, name: str) -> int:
        """Delete a key; the revision of that."""
        request = etcd_pb2.DeleteRangeRequest(key=self.key(name))
        operation = etcd_pb2.RequestOp(request_delete_range=request)
        answer = await self.client.txn(etcd_pb2.TxnRequest(success=[operation]))
        return answer.header.revision

    async def compact(self) -> None:
        """Let etcd forget all revisions so far."""
        present = (await self.client.range(b"x", b"")).header.revision
        channel = self.runtime.network.channel(self.endpoint)
        compact = channel.unary_unary(
            "/etcdserverpb.KV/Compact",
            etcd_pb2.CompactionRequest.SerializeToString,
            etcd_pb2.CompactionResponse.FromString,
        )
        await compact(etcd_pb2.CompactionRequest(revision=present), timeout=CALL_TIMEOUT_S)
        await channel.close()


@pytest.fixture
async def etcd_arm(
    request: pytest.FixtureRequest, runtime_arm: Runtime, world: World | None
) -> AsyncIterator[EtcdArm]:
    if world is None:
        members: EtcdMembers = request.getfixturevalue("etcd_members")
        endpoint = members.endpoints[0]
        directory = str(request.getfixturevalue("tmp_path"))
    else:
        etcd = SimulatedEtcd(world, world.host("etcd"))
        etcd.start()
        endpoint, directory = etcd.endpoint, "/shared/cluster"
    client = EtcdClient(runtime_arm.network, [endpoint], CALL_TIMEOUT_S)
    async with asyncio.timeout(WATCHDOG_S):
        while not await answers(client):
            await asyncio.sleep(0.05)
    cluster_id = f"cluster-{next(_NUMBERS)}"
    arm = EtcdArm(runtime_arm, endpoint, cluster_id, directory, client)
    yield arm
    for election in arm.elections:
        await election.step_down()
    for service in arm.services:
        await service.close()
    await client.close()


async def answers(client: EtcdClient) -> bool:
    try:
        await client.range(b"x", b"")
    except EtcdUnavailable:
        return False
    return True


@pytest.fixture
def leader_arm(etcd_arm: EtcdArm) -> LeaderArm:
    """For the suite that is imported above."""
    return LeaderArm(etcd_arm.election, etcd_arm.service().retrieval())


async def test_the_epoch_is_the_revision_at_which_the_leaders_key_came_to_be(
    etcd_arm: EtcdArm,
) -> None:
    leadership = await etcd_arm.election().campaign("jm-1:1")
    [kv] = (await etcd_arm.client.range(etcd_arm.key("leader"), b"")).kvs
    assert leadership.epoch == kv.create_revision


async def test_epochs_grow_though_etcd_has_lost_its_memory(etcd_arm: EtcdArm) -> None:
    """P30. A restored etcd counts revisions that were epochs before."""
    await etcd_arm.runtime.disk.make_directories(f"{etcd_arm.directory}/leader")
    await etcd_arm.runtime.disk.publish(f"{etcd_arm.directory}/leader/epoch", b"1000000\n")
    epochs = []
    for number in range(3):
        election = etcd_arm.election()
        epochs.append((await election.campaign(f"jm-{number}:1")).epoch)
        await election.step_down()
        await etcd_arm.delete("epoch")
    assert epochs == [1_000_001, 1_000_002, 1_000_003]


async def test_another_storage_directory_is_refused(etcd_arm: EtcdArm) -> None:
    """P61."""
    first = etcd_arm.election()
    await first.campaign("jm-1:1")
    with pytest.raises(ForeignStorage, match="is not the cluster's") as refused:
        await etcd_arm.election(f"{etcd_arm.directory}/elsewhere").campaign("jm-2:1")
    assert f"{etcd_arm.directory}/elsewhere" in str(refused.value)
    assert etcd_arm.key("storage").decode() in str(refused.value)
    assert first.is_leader()


async def test_a_leader_whose_key_is_taken_away_stops_at_once(etcd_arm: EtcdArm) -> None:
    """P29."""
    etcd_arm.lease_duration_s = LONG_LEASE_DURATION_S
    election = etcd_arm.election()
    await election.campaign("jm-1:1")
    await etcd_arm.delete("leader")
    async with asyncio.timeout(WATCHDOG_S):
        await election.lost.wait()
    assert not election.is_leader()


async def test_a_leader_whose_lease_is_taken_away_stops_at_once(etcd_arm: EtcdArm) -> None:
    etcd_arm.lease_duration_s = LONG_LEASE_DURATION_S
    election = etcd_arm.election()
    await election.campaign("jm-1:1")
    [kv] = (await etcd_arm.client.range(etcd_arm.key("leader"), b"")).kvs
    await etcd_arm.client.revoke(kv.lease)
    async with asyncio.timeout(WATCHDOG_S):
        await election.lost.wait()
    with pytest.raises(EtcdLeaseEnded):
        await etcd_arm.client.keep_alive(kv.lease, kv.key)


async def test_a_leader_whose_directory_another_etcd_gives_away_stops(
    etcd_arm: EtcdArm,
) -> None:
    """P61: half of the processes were told of another etcd, or it was made anew."""
    first = etcd_arm.election()
    leadership = await first.campaign("jm-1:1")
    etcd_arm.cluster_id += "-elsewhere"
    second = etcd_arm.election()
    assert (await second.campaign("jm-2:1")).epoch > leadership.epoch
    async with asyncio.timeout(WATCHDOG_S):
        await first.lost.wait()
    assert second.is_leader()


async def test_a_leader_keeps_its_lease_for_as_long_as_it_lives(etcd_arm: EtcdArm) -> None:
    first, second = etcd_arm.election(), etcd_arm.election()
    await first.campaign("jm-1:1")
    waiting = asyncio.create_task(second.campaign("jm-2:1"))
    await asyncio.sleep(2 * LEASE_DURATION_S)
    assert first.is_leader()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_the_next_leads_at_once_where_one_gives_back_what_it_has(
    etcd_arm: EtcdArm,
) -> None:
    etcd_arm.lease_duration_s = LONG_LEASE_DURATION_S
    first, second = etcd_arm.election(), etcd_arm.election()
    await first.campaign("jm-1:1")
    waiting = asyncio.create_task(second.campaign("jm-2:1"))
    await asyncio.sleep(1.0)
    async with asyncio.timeout(WATCHDOG_S):
        await first.step_down()
        await waiting


async def test_a_watch_of_a_forgotten_revision_ends(etcd_arm: EtcdArm) -> None:
    """P32."""
    revision = await etcd_arm.delete("nothing")
    for _ in range(3):
        election = etcd_arm.election()
        await election.campaign("jm-1:1")
        await election.step_down()
    await etcd_arm.compact()
    watch = etcd_arm.client.watch(etcd_arm.key(""), b"", revision)
    try:
        assert not await watch.wait(WATCHDOG_S)
        assert watch.end
    finally:
        watch.close()


@pytest.mark.blocking_allowed("it is what is tested")
@pytest.mark.asyncio(loop_factories=["real"])
async def test_a_process_whose_loop_stands_still_loses_its_lease_and_knows_it_at_once(
    etcd_members: EtcdMembers, tmp_path: Path
) -> None:
    """P29: the renewals come from the loop that runs the scheduler."""
    service = EtcdLeaderService(
        real_runtime(), etcd_members.endpoints, "wedged", str(tmp_path), LEASE_DURATION_S
    )
    election = service.election()
    await election.campaign("jm-1:1")
    await asyncio.sleep(LEASE_DURATION_S / 2)
    time.sleep(LEASE_DURATION_S + 1.0)  # noqa: ASYNC251
    assert not election.is_leader()
    until_s = time.monotonic() + WATCHDOG_S
    while (found := etcd_members.control("get", "/holdover/wedged/leader")) != "":
        assert time.monotonic() < until_s, found  # etcd looks for leases to end now and then
    async with asyncio.timeout(WATCHDOG_S):
        await election.lost.wait()
    await election.step_down()
    await service.close()


@pytest.mark.asyncio(loop_factories=["real"])
async def test_an_endpoint_that_is_no_etcd_is_named(tmp_path: Path) -> None:
    """P63."""
    runtime = real_runtime()
    server = runtime.network.server("127.0.0.1:0")
    endpoint = f"127.0.0.1:{await server.start()}"
    service = EtcdLeaderService(runtime, [endpoint], "c", str(tmp_path), LEASE_DURATION_S)
    with pytest.raises(EtcdRefused, match=r"no etcd of version 3\.4 or newer") as refused:
        await service.election().campaign("jm-1:1")
    assert endpoint in str(refused.value)
    await service.close()
    await server.stop(0.0)


@pytest.mark.asyncio(loop_factories=["real"])
async def test_a_full_etcd_keeps_its_leader_and_has_a_next_one_when_there_is_space(
    tmp_path: Path,
) -> None:
    """Its quota is used up, and it has raised its alarm."""
    require_etcd()
    members = EtcdMembers(tmp_path / "etcd", options=["--quota-backend-bytes", str(1 << 20)])
    members.start()
    service = EtcdLeaderService(
        real_runtime(), members.endpoints, "full", str(tmp_path / "storage"), LEASE_DURATION_S
    )
    first, second = service.election(), service.election()
    try:
        members.wait_until_healthy()
        await first.campaign("jm-1:1")
        fill(members)
        await asyncio.sleep(2 * LEASE_DURATION_S)
        assert first.is_leader()
        await first.step_down()
        campaign = asyncio.create_task(second.campaign("jm-2:1"))
        await asyncio.sleep(1.0)
        assert not campaign.done()
        members.control("del", "--prefix", "fill")
        members.control("compact", str(members.revision()))
        members.control("defrag")
        members.control("alarm", "disarm")
        async with asyncio.timeout(WATCHDOG_S):
            await campaign
    finally:
        await second.step_down()
        await service.close()
        members.kill()


def fill(members: EtcdMembers) -> None:
    """Write until etcd refuses."""
    for number in range(100):
        try:
            members.control("put", f"fill-{number}", "x" * 100_000)
        except AssertionError as refusal:
            assert "database space exceeded" in str(refusal)
            return
    raise AssertionError("it is never full")
