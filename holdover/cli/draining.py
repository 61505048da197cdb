"""Asking a shuffle service to leave."""

from __future__ import annotations

from holdover.coordination.rpc_call import answer
from holdover.runtime import Runtime
from holdover.v1.shuffle_service_pb2 import DrainRequest, DrainResponse
from holdover.v1.shuffle_service_pb2_grpc import ShuffleServiceStub

_CALL_TIMEOUT_S = 10.0


async def ask_to_leave(runtime: Runtime, address: str) -> DrainResponse:
    """Have the service at host:port take nothing new, and end once no live job needs what it holds.
    Answers what that is. Raises CallFailed."""
    channel = runtime.network.channel(address)
    try:
        stub = ShuffleServiceStub(channel)
        return await answer(lambda: stub.Drain(DrainRequest(), timeout=_CALL_TIMEOUT_S))
    finally:
        await channel.close()
