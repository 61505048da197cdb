"""`holdover health`, against a server that says what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from holdover.cli.main import app
from holdover.runtime.real import real_runtime
from tests.doubles.ports import free_port

pytestmark = pytest.mark.blocking_allowed("the command has an event loop of its own")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, Any]]:
    """host:port, and what says how it is."""
    status = health.aio.HealthServicer()
    serving = real_runtime().network.server("127.0.0.1:0")
    serving.add(health_pb2_grpc.add_HealthServicer_to_server, status)
    yield f"127.0.0.1:{await serving.start()}", status
    await serving.stop(0)


async def asked(*arguments: str) -> tuple[int, str]:
    ended = await asyncio.to_thread(CliRunner().invoke, app, ["health", *arguments])
    return ended.exit_code, ended.output


@pytest.mark.parametrize(
    ("state", "arguments", "code", "says"),
    [
        (SERVING, (), 0, "serving\n"),
        (SERVING, ("--serving",), 0, "serving\n"),
        (NOT_SERVING, (), 0, "standby\n"),
        (NOT_SERVING, ("--serving",), 4, "does not lead"),
        (SERVING, ("--json",), 0, '"state": "serving"'),
    ],
)
async def test_a_standby_is_well_but_does_not_serve(
    server: tuple[str, Any], state: Any, arguments: tuple[str, ...], code: int, says: str
) -> None:
    address, status = server
    await status.set("", state)
    ended = await asked(address, "--timeout", "30", *arguments)
    assert ended[0] == code, ended
    assert says in ended[1]


async def test_silence_is_an_exit_code_and_a_sentence() -> None:
    code, output = await asked(f"127.0.0.1:{free_port()}", "--timeout", "1")
    assert code == 4
    assert output.startswith("holdover: nothing answers at 127.0.0.1:")


async def test_an_address_without_port_is_refused() -> None:
    code, output = await asked("jobmanager")
    assert code == 1
    assert "host:port" in output
