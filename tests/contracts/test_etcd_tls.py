"""A real etcd that speaks TLS, and asks its clients for certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdover.config import Configuration
from holdover.coordination.etcd_client import EtcdClient, EtcdUnavailable
from holdover.coordination.leader_services import configured_leader_service
from holdover.runtime import Runtime
from holdover.runtime.real import real_runtime
from tests.doubles.certificates import authority, files_in, node
from tests.doubles.etcd_members import EtcdMembers, require_etcd

WATCHDOG_S = 120.0
CALL_TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    """One member, whose certificate is in `node`, beside those of its clients."""
    require_etcd()
    place = tmp_path_factory.mktemp("etcd")
    started = EtcdMembers(place, certificates=node(place / "node", authority()))
    started.start()
    try:
        started.wait_until_healthy()
        yield started
    finally:
        started.kill()


@pytest.fixture
def secured(members: EtcdMembers) -> Runtime:
    """A process that etcd's authority knows."""
    assert members.certificates is not None
    return real_runtime(credentials=files_in(members.certificates, watched=False))


@pytest.mark.parametrize("scheme", ["https://", ""])
@pytest.mark.blocking_allowed("reads certificates")
async def test_a_leader_is_elected_and_found_by_tls(
    members: EtcdMembers, secured: Runtime, tmp_path: Path, scheme: str
) -> None:
    """Without a scheme etcd is spoken with as the cluster's own processes are."""
    place = members.certificates
    configuration = Configuration.of(
        {
            "high-availability.type": "etcd",
            "high-availability.etcd.endpoints": f"{scheme}{members.endpoints[0]}",
            "high-availability.storageDir": str(tmp_path),
            "high-availability.cluster-id": f"by{scheme[:5]}-",
            "security.ssl.enabled": "true",
            "security.ssl.certificate": f"{place}/own.pem",
            "security.ssl.private-key": f"{place}/own-key.pem",
            "security.ssl.ca": f"{place}/ca.pem",
        }
    )
    service = configured_leader_service(secured, configuration)
    election = service.election()
    async with asyncio.timeout(WATCHDOG_S):
        leadership = await election.campaign("jm:6123")
        record = await service.retrieval().current()
        assert record is not None
        await election.step_down()
    assert (record.address, record.epoch) == ("jm:6123", leadership.epoch)


async def refused(runtime: Runtime, endpoint: str) -> str:
    client = EtcdClient(runtime.network, [endpoint], CALL_TIMEOUT_S)
    try:
        async with asyncio.timeout(WATCHDOG_S):
            with pytest.raises(EtcdUnavailable) as raised:
                await client.range(b"/", b"0")
    finally:
        await client.close()
    return str(raised.value.strerror)


async def test_etcd_is_not_spoken_with_in_clear_or_by_strangers(
    members: EtcdMembers, secured: Runtime, tmp_path: Path
) -> None:
    """Clear text to a member that speaks TLS, TLS to nobody one knows, no certificate."""
    endpoint = members.endpoints[0]
    assert "UNAVAILABLE" in await refused(secured, f"http://{endpoint}")
    assert "UNAVAILABLE" in await refused(real_runtime(), endpoint)
    stranger = await asyncio.to_thread(
        lambda: files_in(node(tmp_path / "stranger", authority("stranger")), watched=False)
    )
    assert "UNAVAILABLE" in await refused(real_runtime(credentials=stranger), f"https://{endpoint}")
