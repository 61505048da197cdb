"""What every arm's network keeps of gRPC's calls: the four kinds, failures, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest

from holdover.runtime import Runtime
from simulator.world.world import World

Context = grpc.aio.ServicerContext[bytes, bytes]


class Service:
    """One handler of each kind, and some that go wrong."""

    async def join(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        return b",".join([request async for request in requests])

    async def first(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        return await anext(requests)

    async def reverse(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request[::-1]

    async def converse(self, requests: AsyncIterator[bytes], context: Context) -> None:
        await context.send_initial_metadata((("greeting", "hello"),))
        request: Any = await context.read()
        while request is not grpc.aio.EOF:
            await context.write(request * 2)
            request = await context.read()
        context.set_trailing_metadata((("farewell", "bye"),))

    async def stop_early(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number
        await context.abort(grpc.StatusCode.ABORTED, "three are enough", (("left", "7"),))

    async def fail(self, request: bytes, context: Context) -> bytes:
        raise LookupError("no such row")

    async def not_found(self, request: bytes, context: Context) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("look elsewhere")
        return b"ignored"

    async def hang(self, request: bytes, context: Context) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def time_left(self, request: bytes, context: Context) -> bytes:
        assert context.peer().startswith("ipv4:")
        return str(context.time_remaining()).encode()


def add_service_to_server(service: Service, server: Any) -> None:
    kinds: dict[str, Any] = {
        "join": grpc.stream_unary_rpc_method_handler,
        "first": grpc.stream_unary_rpc_method_handler,
        "reverse": grpc.stream_stream_rpc_method_handler,
        "converse": grpc.stream_stream_rpc_method_handler,
        "stop_early": grpc.unary_stream_rpc_method_handler,
    }
    handlers = {
        name: kinds.get(name, grpc.unary_unary_rpc_method_handler)(getattr(service, name))
        for name in dir(service)
        if not name.startswith("_")
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Calls", handlers),))
    server.add_registered_method_handlers("Calls", handlers)


@pytest.fixture
async def channel(runtime_arm: Runtime) -> AsyncIterator[Any]:
    server = runtime_arm.network.server("127.0.0.1:0")
    server.add(add_service_to_server, Service())
    port = await server.start()
    channel = runtime_arm.network.channel(f"localhost:{port}")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0)
        stack.push_async_callback(channel.close)
        yield channel


async def refusal(call: Any) -> tuple[str, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code().name, raised.value.details()


async def test_many_requests_get_one_answer(channel: Any) -> None:
    assert (
        await channel.stream_unary("/Calls/join")(iter([b"a", b"b", b"c"]), timeout=120) == b"a,b,c"
    )
    call = channel.stream_unary("/Calls/join")(timeout=120)
    await call.write(b"x")
    await call.done_writing()
    await call.done_writing()
    assert await call == b"x"


async def test_many_requests_get_many_answers(channel: Any) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for word in (b"stressed", b"was"):
            yield word

    call = channel.stream_stream("/Calls/reverse")(requests(), timeout=120)
    assert [answer async for answer in call] == [b"desserts", b"saw"]
    assert await call.code() == grpc.StatusCode.OK


async def test_both_sides_may_read_and_write_in_turns(channel: Any) -> None:
    call = channel.stream_stream("/Calls/converse")(timeout=120)
    assert dict(await call.initial_metadata())["greeting"] == "hello"
    for word in (b"ab", b"c"):
        await call.write(word)
        assert await call.read() == word * 2
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.read() is grpc.aio.EOF
    assert dict(await call.trailing_metadata())["farewell"] == "bye"
    assert call.done()
    assert not call.cancelled()


async def test_writing_to_a_call_that_has_its_answer_is_refused(channel: Any) -> None:
    call = channel.stream_unary("/Calls/first")(timeout=120)
    await call.write(b"enough")
    assert await call == b"enough"
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"more")


async def test_an_iterator_of_requests_that_fails_cancels_the_call(channel: Any) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield b"a"
        raise LookupError("no more")

    call = channel.stream_stream("/Calls/reverse")(requests(), timeout=120)
    assert await call.code() == grpc.StatusCode.CANCELLED


async def test_what_came_before_a_refusal_is_read_first(channel: Any) -> None:
    call = channel.unary_stream("/Calls/stop_early")(b"", timeout=120)
    assert [await call.read() for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert raised.value.code() == grpc.StatusCode.ABORTED
    assert dict(raised.value.trailing_metadata())["left"] == "7"


async def test_what_a_handler_raises_is_unknown_with_its_text(
    channel: Any, world: World | None
) -> None:
    answer = await refusal(channel.unary_unary("/Calls/fail")(b"", timeout=120))
    assert answer == ("UNKNOWN", "Unexpected <class 'LookupError'>: no such row")
    if world is not None:
        assert "LookupError" in world.failures.pop().text


async def test_a_code_that_a_handler_sets_is_the_status(channel: Any) -> None:
    answer = await refusal(channel.unary_unary("/Calls/not_found")(b"", timeout=120))
    assert answer == ("NOT_FOUND", "look elsewhere")


async def test_a_method_that_nobody_serves_is_refused_with_a_text(channel: Any) -> None:
    answer = await refusal(channel.unary_unary("/Nobody/knows")(b"", timeout=120))
    assert answer == ("UNIMPLEMENTED", "Method not found!")


async def test_both_sides_know_how_much_time_is_left(channel: Any) -> None:
    call = channel.unary_unary("/Calls/time_left")(b"", timeout=3000)
    assert 2500 < call.time_remaining() <= 3000
    # On the wire a time has three digits, and is rounded up.
    assert 2500 < float(await call) <= 3010.1


async def test_a_call_that_is_cancelled_raises_so_in_those_who_await_it(channel: Any) -> None:
    call = channel.unary_unary("/Calls/hang")(b"", timeout=120)
    told: list[bool] = []
    call.add_done_callback(lambda done: told.append(done.cancelled()))
    waiting = asyncio.ensure_future(call)
    await asyncio.sleep(0.1)
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await call.code() == grpc.StatusCode.CANCELLED
    assert await call.details() == "Locally cancelled by application!"
    assert not call.cancel()
    assert told == [True]


async def test_a_stream_that_is_cancelled_raises_so_in_those_who_read_it(channel: Any) -> None:
    call = channel.stream_stream("/Calls/reverse")(timeout=120)
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_closing_a_channel_cancels_its_calls_and_refuses_more(channel: Any) -> None:
    waiting = asyncio.ensure_future(channel.unary_unary("/Calls/hang")(b"", timeout=120))
    await asyncio.sleep(0.1)
    await channel.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(grpc.aio.UsageError, match="closed"):
        await channel.unary_unary("/Calls/hang")(b"", timeout=120)
    await channel.close()


async def test_a_server_that_stops_ends_its_calls_as_unavailable(runtime_arm: Runtime) -> None:
    server = runtime_arm.network.server("127.0.0.1:0")
    server.add(add_service_to_server, Service())
    channel: Any = runtime_arm.network.channel(f"127.0.0.1:{await server.start()}")
    single = asyncio.ensure_future(channel.unary_unary("/Calls/hang")(b"", timeout=120))
    stream = asyncio.ensure_future(channel.stream_stream("/Calls/reverse")(timeout=120).read())
    await asyncio.sleep(0.2)
    async with asyncio.timeout(120):
        await server.stop(0)
        assert (await refusal(single))[0] == "UNAVAILABLE"
        assert (await refusal(stream))[0] == "UNAVAILABLE"
        assert (await refusal(channel.unary_unary("/Calls/hang")(b"", timeout=120)))[0] == (
            "UNAVAILABLE"
        )
    await channel.close()


async def test_a_name_that_nobody_has_is_unavailable(runtime_arm: Runtime) -> None:
    channel: Any = runtime_arm.network.channel("no-such-host.invalid:6123")
    code, _ = await refusal(channel.unary_unary("/Calls/hang")(b"", timeout=120))
    await channel.close()
    assert code == "UNAVAILABLE"
