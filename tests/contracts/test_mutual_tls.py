"""Who is let in, what the others are told, and certificates that are replaced meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from holdover.cli.certificate_authority import LOCAL_HOSTS, Authority
from holdover.runtime import Network, may_be_insecure
from holdover.runtime.real_network import TcpNetwork
from holdover.runtime.transport_security import CredentialFiles
from tests.contracts.test_network_contract import Echo, add_echo_to_server
from tests.doubles.certificates import authority, files_in, install, node

Start = Callable[[Network], Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts an echo server on a network; its address."""
    async with AsyncExitStack() as stack:

        async def started(network: Network) -> str:
            server = network.server("127.0.0.1:0")
            server.add(add_echo_to_server, Echo())
            stack.push_async_callback(server.stop, 0)
            return f"127.0.0.1:{await server.start()}"

        yield started


async def network_of(directory: Path, expected_name: str = "", *, watched: bool = True) -> Network:
    return TcpNetwork(await asyncio.to_thread(files_in, directory, expected_name, watched=watched))


async def echoed(network: Network, address: str) -> bool:
    async with network.channel(address) as channel:
        method: Any = channel.unary_unary("/Echo/echo")
        answer: bytes = await method(b"hello", timeout=60)
    return answer == b"hello"


async def refusal(network: Network, address: str) -> str:
    """What somebody who is refused is told."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await echoed(network, address)
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    assert may_be_insecure(raised.value.details() or "")
    return await network.obstacle(address)


async def until_told(capfd: pytest.CaptureFixture[str], words: str) -> None:
    """The server's end logs them, in a thread of gRPC's own."""
    told = ""
    async with asyncio.timeout(60):
        while words not in told:
            told += capfd.readouterr().err
            await asyncio.sleep(0.01)


async def test_a_server_outside_is_called_in_clear_where_somebody_says_so(
    start: Start, tmp_path: Path
) -> None:
    """As an etcd without TLS."""
    address = await start(TcpNetwork())
    secured = await network_of(node(tmp_path / "node", authority()))
    async with secured.channel(address, in_clear=True) as channel:
        method: Any = channel.unary_unary("/Echo/echo")
        assert await method(b"hello", timeout=60) == b"hello"


async def test_both_sides_need_a_certificate_of_a_common_authority(
    start: Start, tmp_path: Path
) -> None:
    issuer = authority()
    address = await start(await network_of(node(tmp_path / "server", issuer)))
    client = node(tmp_path / "client", issuer, hosts=())
    assert await echoed(await network_of(client), address)


async def test_a_server_of_another_authority_is_not_believed(start: Start, tmp_path: Path) -> None:
    address = await start(await network_of(node(tmp_path / "server", authority())))
    told = await refusal(await network_of(node(tmp_path / "client", authority())), address)
    assert "the server's certificate was not issued by an authority in security.ssl.ca" in told


async def test_a_client_of_another_authority_is_refused(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    issuer, other = authority("one"), authority("another")
    address = await start(await network_of(node(tmp_path / "server", issuer)))
    install(tmp_path / "client", other.issue("client", LOCAL_HOSTS), issuer, other)
    told = await refusal(await network_of(tmp_path / "client"), address)
    assert "it does not accept" in told
    assert "client/own.pem" in told
    await until_told(capfd, "CERTIFICATE_VERIFY_FAILED")


async def test_a_client_without_certificate_is_refused(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    issuer = authority()
    address = await start(await network_of(node(tmp_path / "server", issuer)))
    credentials = grpc.ssl_channel_credentials(issuer.own.certificate)
    async with grpc.aio.secure_channel(address, credentials) as channel:
        method: Any = channel.unary_unary("/Echo/echo")
        with pytest.raises(grpc.aio.AioRpcError):
            await method(b"", timeout=60)
    await until_told(capfd, "PEER_DID_NOT_RETURN_A_CERTIFICATE")


async def test_a_client_whose_certificate_has_expired_is_refused(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is too old to be started with; this one has run for longer than its certificate."""
    issuer = authority()
    address = await start(await network_of(node(tmp_path / "server", issuer)))
    _install_expired(tmp_path / "client", issuer)
    told = await refusal(await network_of(tmp_path / "client", watched=False), address)
    assert "client/own.pem: the certificate of CN=expired expired at" in told
    await until_told(capfd, "certificate has expired")


async def test_a_server_whose_certificate_has_expired_is_not_believed(
    start: Start, tmp_path: Path
) -> None:
    issuer = authority()
    _install_expired(tmp_path / "server", issuer)
    address = await start(await network_of(tmp_path / "server", watched=False))
    told = await refusal(await network_of(node(tmp_path / "client", issuer)), address)
    assert told == "the server's certificate has expired"


def _install_expired(directory: Path, issuer: Authority) -> None:
    install(directory, issuer.issue("expired", LOCAL_HOSTS, days=-0.001), issuer)


async def test_a_server_must_have_the_name_that_is_called(start: Start, tmp_path: Path) -> None:
    issuer = authority()
    address = await start(await network_of(node(tmp_path / "server", issuer, ("jm.example",))))
    client = node(tmp_path / "client", issuer)
    told = await refusal(await network_of(client), address)
    assert "the server's certificate is not for the name 127.0.0.1" in told
    assert await echoed(await network_of(client, "jm.example"), address)
    assert "not for the name tm.example" in await refusal(
        await network_of(client, "tm.example"), address
    )


async def test_a_client_that_does_not_speak_tls_is_refused(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = await start(await network_of(node(tmp_path / "server", authority())))
    told = await refusal(TcpNetwork(), address)
    assert told == "the server speaks TLS, and security.ssl.enabled is not true here"
    await until_told(capfd, "Handshake failed")


async def test_a_server_that_does_not_speak_tls_is_not_believed(
    start: Start, tmp_path: Path
) -> None:
    address = await start(TcpNetwork())
    told = await refusal(await network_of(node(tmp_path / "client", authority())), address)
    assert told == "the server does not speak TLS (security.ssl.enabled is not true there)"


async def test_a_cluster_moves_to_another_authority_without_a_restart(
    start: Start, tmp_path: Path
) -> None:
    """Calls that run go on; a channel that was open before knows the new certificate."""
    files = await asyncio.to_thread(files_in, node(tmp_path / "node", authority()))
    network = TcpNetwork(files)
    address = await start(network)
    async with network.channel(address) as channel:
        echo: Any = channel.unary_unary("/Echo/echo")
        count: Any = channel.unary_stream("/Echo/count")
        running = count(b"0", timeout=60)
        assert await echo(b"before", timeout=60) == b"before"
        successor = authority("successor")
        node(tmp_path / "node", successor)
        await asyncio.to_thread(files.refresh)
        assert await echo(b"after", timeout=60) == b"after"
        assert not running.done()
        newcomer = node(tmp_path / "newcomer", successor)
        assert await echoed(await network_of(newcomer), address)
        running.cancel()


async def test_a_replaced_file_is_noticed_by_itself(tmp_path: Path) -> None:
    issuer = authority()
    files = await asyncio.to_thread(files_in, node(tmp_path / "node", issuer))
    node(tmp_path / "node", issuer)
    async with asyncio.timeout(60):
        while files.current.version == 1:
            await asyncio.sleep(0.05)
    assert files.current.certificate_chain == Path(files.security.certificate).read_bytes()


def test_files_that_do_not_fit_together_yet_are_not_used(tmp_path: Path) -> None:
    issuer = authority()
    files = files_in(node(tmp_path / "node", issuer))
    before = files.current
    issued = issuer.issue("next", LOCAL_HOSTS)
    Path(files.security.certificate).write_bytes(issued.certificate)
    assert files.refresh() is before
    Path(files.security.private_key).write_bytes(issued.private_key)
    assert files.refresh().version == before.version + 1
    assert _now(files) == issued.certificate


def _now(files: CredentialFiles) -> bytes:
    return files.current.certificate_chain
