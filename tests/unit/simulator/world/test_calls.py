"""Calls of all kinds on the simulated network, where the contract suite does not look."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.unit.simulator.world.echo_world import PLAIN, PORT, EchoWorld, call, echo_world, outcome
from tests.unit.simulator.world.test_network import in_client


def test_what_a_handler_raises_is_told_to_the_client_and_to_the_loop() -> None:
    with echo_world() as site:

        async def work() -> str:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(site.channel(), "fail")
            return f"{raised.value.code().name}: {raised.value.details()}"

        assert in_client(site, work()) == "UNKNOWN: Unexpected <class 'LookupError'>: no such row"
        [failure] = site.world.failures
        assert failure.process == "server"
        assert "LookupError: no such row" in failure.text


def test_a_call_that_waits_for_ready_is_made_when_somebody_listens() -> None:
    with echo_world() as site:
        site.world.kill(site.server)

        async def work() -> tuple[str, str]:
            channel = site.channel()
            hasty = await outcome(channel, "echo")
            patient = asyncio.ensure_future(outcome(channel, "echo", wait_for_ready=True))
            await asyncio.sleep(5)
            site.serve()
            return hasty, await patient

        assert in_client(site, work()) == ("UNAVAILABLE", "OK")
        assert 5 < site.world.now_s < 6.3


def test_a_call_during_the_back_off_fails_at_once() -> None:
    with echo_world() as site:
        site.world.kill(site.server)

        async def work() -> tuple[str, float]:
            channel = site.channel()
            await outcome(channel, "echo")
            failed_s = site.world.now_s
            return await outcome(channel, "echo"), site.world.now_s - failed_s

        assert in_client(site, work()) == ("UNAVAILABLE", 0.0)


def test_a_host_that_nobody_knows_is_unavailable() -> None:
    with echo_world() as site:

        async def work() -> str:
            channel = site.network.of(site.client).channel(f"nowhere:{PORT}")
            with pytest.raises(grpc.aio.AioRpcError, match="no such host") as raised:
                await call(channel, "echo")
            return raised.value.code().name

        assert in_client(site, work()) == "UNAVAILABLE"


def test_a_server_runs_no_more_calls_than_its_limit() -> None:
    with echo_world(dataclasses.replace(PLAIN, concurrent_calls_max=2)) as site:

        async def work() -> list[str]:
            channel = site.channel()
            held = [asyncio.ensure_future(outcome(channel, "hang", timeout=5)) for _ in range(2)]
            await asyncio.sleep(1)
            refused = await outcome(channel, "echo")
            await asyncio.wait(held)
            await asyncio.sleep(1)
            return [refused, await outcome(channel, "echo")]

        assert in_client(site, work()) == ["RESOURCE_EXHAUSTED", "OK"]


def test_a_writer_waits_for_a_reader_that_does_not_read() -> None:
    window = 10 * 1024
    with echo_world(dataclasses.replace(PLAIN, stream_window_bytes=window)) as site:

        async def work() -> tuple[int, int]:
            stub: Any = site.channel().unary_stream("/Echo/count")
            stream = stub(b"100", timeout=60)
            await asyncio.sleep(1)
            written = len(site.echo.events)
            return written, len([message async for message in stream])

        written, read = in_client(site, work())
        assert written <= 13
        assert read == 100


def test_a_client_that_writes_waits_for_a_server_that_does_not_read() -> None:
    with echo_world(dataclasses.replace(PLAIN, stream_window_bytes=10)) as site:
        sent: list[int] = []

        async def requests() -> AsyncIterator[bytes]:
            for number in range(100):
                sent.append(number)
                yield bytes(100)

        async def work() -> tuple[int, bytes]:
            await call(site.channel(), "echo")
            site.server.pause()
            stub: Any = site.channel().stream_unary("/Echo/join")
            site.server.resume()
            joining = stub(requests(), timeout=60)
            await asyncio.sleep(0.0025)
            site.server.pause()
            await asyncio.sleep(1)
            before = len(sent)
            site.server.resume()
            return before, await joining

        before, joined = in_client(site, work())
        assert before < 10
        assert len(joined) == 100 * 100 + 99


def test_requests_are_asked_for_when_somebody_listens() -> None:
    with echo_world() as site:
        site.world.kill(site.server)
        asked_s: list[float] = []

        async def requests() -> AsyncIterator[bytes]:
            asked_s.append(site.world.now_s)
            yield b"a"
            yield b"b"

        async def work() -> bytes:
            stub: Any = site.channel().stream_unary("/Echo/join")
            with pytest.raises(grpc.aio.AioRpcError, match="refused"):
                await stub(requests(), timeout=60)
            assert asked_s == []
            patient = asyncio.ensure_future(stub(requests(), timeout=60, wait_for_ready=True))
            await asyncio.sleep(5)
            site.serve()
            joined: bytes = await patient
            return joined

        assert in_client(site, work()) == b"a,b"
        assert len(asked_s) == 1
        assert asked_s[0] > 5


def test_health_is_served_and_watched() -> None:
    with echo_world() as site:
        status = health.aio.HealthServicer()
        process = site.world.process(site.world.host("other"), "other")

        async def serve() -> None:
            server = site.network.of(process).server("other:1")
            server.add(health_pb2_grpc.add_HealthServicer_to_server, status)
            await server.start()

        async def work() -> list[int]:
            await process.spawn(serve())
            stub: Any = health_pb2_grpc.HealthStub(site.network.of(site.client).channel("other:1"))
            request = health_pb2.HealthCheckRequest()
            seen = [(await stub.Check(request, timeout=5)).status]
            stream = stub.Watch(request, timeout=5)
            seen.append((await stream.read()).status)
            await process.spawn(status.set("", health_pb2.HealthCheckResponse.NOT_SERVING))
            seen.append((await stream.read()).status)
            stream.cancel()
            return seen

        assert in_client(site, work()) == [1, 1, 2]


def test_an_interceptor_sees_every_call() -> None:
    with echo_world() as site:
        seen: list[str] = []

        class Log(grpc.aio.ServerInterceptor):
            async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
                seen.append(handler_call_details.method)
                return await continuation(handler_call_details)

        process = site.world.process(site.world.host("other"), "other")

        async def work() -> str:
            server = site.network.of(process).server("other:1", interceptors=[Log(), Log()])
            await process.spawn(server.start())
            return await outcome(site.network.of(site.client).channel("other:1"), "echo")

        assert in_client(site, work()) == "UNIMPLEMENTED"
        assert seen == ["/Echo/echo"] * 2


def test_a_server_that_stops_lets_its_calls_end_within_the_grace() -> None:
    with echo_world() as site:
        process = site.world.process(site.world.host("other"), "other")

        async def slow(request: bytes, context: Any) -> bytes:
            await asyncio.sleep(2)
            return b"done"

        def add(_: object, server: Any) -> None:
            handlers: dict[str, Any] = {"slow": grpc.unary_unary_rpc_method_handler(slow)}
            server.add_registered_method_handlers("Echo", handlers)

        async def work() -> tuple[bytes, str, float]:
            server = site.network.of(process).server("other:1")
            server.add(add, None)
            await process.spawn(server.start())
            channel = site.network.of(site.client).channel("other:1")
            running = asyncio.ensure_future(call(channel, "slow"))
            await asyncio.sleep(1)
            stopping = process.spawn(server.stop(30))
            await asyncio.sleep(0.5)
            refused = await outcome(channel, "slow")
            await stopping
            return await running, refused, site.world.now_s

        assert in_client(site, work()) == (b"done", "UNAVAILABLE", pytest.approx(2.003, abs=0.002))


def test_a_second_reader_of_the_status_does_not_cancel_the_call() -> None:
    with echo_world() as site:

        async def work(site: EchoWorld) -> bool:
            stub: Any = site.channel().unary_unary("/Echo/hang")
            waiting = stub(b"", timeout=60)
            onlooker = asyncio.ensure_future(waiting.code())
            await asyncio.sleep(1)
            onlooker.cancel()
            await asyncio.sleep(1)
            return bool(waiting.done())

        assert in_client(site, work(site)) is False
