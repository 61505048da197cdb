"""What every arm's network keeps, over a small hand-made service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest

from holdover.runtime import GRPC_MESSAGE_BYTES_MAX, AddressInUse, AddressUnavailable, Runtime
from simulator.world.world import World

WATCHDOG_S = 60.0

Context = grpc.aio.ServicerContext[bytes, bytes]
Unary = Callable[[bytes, Context], Awaitable[bytes]]


class Echo:
    """What the tests call."""

    def __init__(self) -> None:
        self.hanging = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.never = asyncio.Event()

    async def echo(self, request: bytes, context: Context) -> bytes:
        metadata = dict(context.invocation_metadata() or ())
        context.set_trailing_metadata((("epoch-seen", str(metadata.get("epoch", "none"))),))
        return request

    async def refuse(self, request: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not while it rains")
        raise AssertionError("abort raises")

    async def hang(self, request: bytes, context: Context) -> bytes:
        self.hanging.set()
        try:
            await self.never.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def count(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield str(number).encode()
        if request == b"0":
            await self.hang(request, context)


def add_echo_to_server(servicer: Echo, server: Any) -> None:
    handlers: dict[str, Any] = {
        "echo": grpc.unary_unary_rpc_method_handler(servicer.echo),
        "refuse": grpc.unary_unary_rpc_method_handler(servicer.refuse),
        "hang": grpc.unary_unary_rpc_method_handler(servicer.hang),
        "count": grpc.unary_stream_rpc_method_handler(servicer.count),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", handlers),))
    server.add_registered_method_handlers("Echo", handlers)


class Connection:
    """One echo server and a channel to it."""

    def __init__(self, runtime: Runtime, echo: Echo, port: int) -> None:
        self.echo = echo
        self.address = f"127.0.0.1:{port}"
        self.channel = runtime.network.channel(self.address)

    def call(self, method: str, request: bytes, timeout_s: float = 60.0, **options: Any) -> Any:
        kind = self.channel.unary_stream if method == "count" else self.channel.unary_unary
        call: Any = kind(f"/Echo/{method}")
        return call(request, timeout=timeout_s, **options)


@pytest.fixture
async def connection(runtime_arm: Runtime) -> AsyncIterator[Connection]:
    server = runtime_arm.network.server("127.0.0.1:0")
    echo = Echo()
    server.add(add_echo_to_server, echo)
    connection = Connection(runtime_arm, echo, await server.start())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0)
        stack.push_async_callback(connection.channel.close)
        yield connection


async def test_a_unary_call_returns_its_answer_and_metadata(connection: Connection) -> None:
    call = connection.call("echo", b"hello", metadata=(("epoch", "7"),))
    assert await call == b"hello"
    assert dict(await call.trailing_metadata())["epoch-seen"] == "7"


async def test_a_stream_keeps_its_order_and_ends(connection: Connection) -> None:
    numbers = [int(message) async for message in connection.call("count", b"1000")]
    assert numbers == list(range(1000))


async def test_a_call_in_clear_is_answered_where_nobody_speaks_tls(
    connection: Connection, runtime_arm: Runtime, request: pytest.FixtureRequest
) -> None:
    async with runtime_arm.network.channel(
        connection.address, in_clear=True, idle_pings=False
    ) as channel:
        method: Any = channel.unary_unary("/Echo/echo")
        if "secured" in request.node.name:
            with pytest.raises(grpc.aio.AioRpcError):
                await method(b"hello", timeout=60.0)
        else:
            assert await method(b"hello", timeout=60.0) == b"hello"


async def test_an_abort_arrives_with_its_code_and_details(connection: Connection) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await connection.call("refuse", b"")
    assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert raised.value.details() == "not while it rains"


async def test_an_unknown_method_is_unimplemented(connection: Connection) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await connection.call("nothing", b"")
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_ends_a_silent_call_on_both_sides(connection: Connection) -> None:
    """P54."""
    timeout_s = 0.2
    while not connection.echo.hanging.is_set():  # a busy machine may not bring it there in time
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await connection.call("hang", b"", timeout_s)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        timeout_s *= 2
    async with asyncio.timeout(WATCHDOG_S):
        await connection.echo.cancelled.wait()


async def test_a_deadline_ends_a_silent_stream(connection: Connection) -> None:
    """P54."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await anext(aiter(connection.call("count", b"0", timeout_s=0.2)))
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_cancelling_a_call_cancels_its_handler(connection: Connection) -> None:
    call = asyncio.ensure_future(connection.call("hang", b""))
    await connection.echo.hanging.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(WATCHDOG_S):
        await connection.echo.cancelled.wait()


async def test_a_message_up_to_the_limit_passes_and_above_is_refused(
    connection: Connection,
) -> None:
    """P53."""
    large = bytes(GRPC_MESSAGE_BYTES_MAX - 1024)
    assert len(await connection.call("echo", large, timeout_s=WATCHDOG_S)) == len(large)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await connection.call("echo", bytes(GRPC_MESSAGE_BYTES_MAX + 1), WATCHDOG_S)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_port_that_is_taken_is_refused_by_name(
    runtime_arm: Runtime, connection: Connection
) -> None:
    second = runtime_arm.network.server(connection.address)
    with pytest.raises(AddressInUse, match=f"cannot listen on {connection.address}"):
        await second.start()
    await second.stop(0)


async def test_a_port_that_is_taken_on_one_of_a_names_addresses_is_refused(
    runtime_arm: Runtime, connection: Connection
) -> None:
    """A server on what is left of the name would get half of the calls."""
    second = runtime_arm.network.server(connection.address.replace("127.0.0.1", "localhost"))
    with pytest.raises(AddressInUse):
        await second.start()
    await second.stop(0)


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:port", "host:65536", ""])
async def test_an_address_without_host_or_port_is_refused(
    runtime_arm: Runtime, address: str
) -> None:
    with pytest.raises(ValueError, match="must be 'host:port'"):
        runtime_arm.network.channel(address)


async def test_an_address_of_another_machine_is_refused_by_name(runtime_arm: Runtime) -> None:
    server = runtime_arm.network.server("192.0.2.1:0")
    with pytest.raises(AddressUnavailable, match=r"cannot listen on 192\.0\.2\.1:0"):
        await server.start()
    await server.stop(0)


async def test_nobody_listening_fails_fast_as_unavailable(runtime_arm: Runtime) -> None:
    server = runtime_arm.network.server("127.0.0.1:0")
    port = await server.start()
    await server.stop(0)
    connection = Connection(runtime_arm, Echo(), port)
    async with asyncio.timeout(WATCHDOG_S):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await connection.call("echo", b"", timeout_s=10 * WATCHDOG_S)
    await connection.channel.close()
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_stopped_server_ends_running_calls_after_its_grace(runtime_arm: Runtime) -> None:
    server = runtime_arm.network.server("127.0.0.1:0")
    echo = Echo()
    server.add(add_echo_to_server, echo)
    connection = Connection(runtime_arm, echo, await server.start())
    call = asyncio.ensure_future(connection.call("hang", b"", timeout_s=10 * WATCHDOG_S))
    await echo.hanging.wait()
    async with asyncio.timeout(WATCHDOG_S):
        await server.stop(0.1)
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    await connection.channel.close()


async def test_nothing_stands_in_the_way_of_a_connection_that_works(
    runtime_arm: Runtime, connection: Connection
) -> None:
    assert await runtime_arm.network.obstacle(connection.address) == ""


async def test_a_server_that_is_not_there_is_no_matter_of_security(runtime_arm: Runtime) -> None:
    server = runtime_arm.network.server("127.0.0.1:0")
    port = await server.start()
    await server.stop(0)
    assert await runtime_arm.network.obstacle(f"127.0.0.1:{port}") == ""


@pytest.mark.slow
async def test_a_server_that_was_away_is_found_when_it_is_back(
    runtime_arm: Runtime, world: World | None
) -> None:
    """P51: back-off that grew while nobody listened does not outlast the return: within two seconds
    where nothing else takes time.
    """
    first = runtime_arm.network.server("127.0.0.1:0")
    port = await first.start()
    await first.stop(0)
    connection = Connection(runtime_arm, Echo(), port)
    loop = asyncio.get_running_loop()
    failures: set[grpc.StatusCode] = set()

    async def call_until_answered() -> float:
        while True:
            try:
                await connection.call("echo", b"", timeout_s=10)
            except grpc.aio.AioRpcError as error:
                failures.add(error.code())
                await asyncio.sleep(0.1)
            else:
                return loop.time()

    answered = asyncio.create_task(call_until_answered())
    await asyncio.sleep(12)
    server = runtime_arm.network.server(connection.address)
    server.add(add_echo_to_server, connection.echo)
    await server.start()
    opened_s = loop.time()
    async with asyncio.timeout(WATCHDOG_S):
        delay_s = await answered - opened_s
    print(f"found after {delay_s:.3f} s")
    assert world is None or delay_s < 2.0
    assert failures <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    await connection.channel.close()
    await server.stop(0)
