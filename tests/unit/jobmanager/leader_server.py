"""A leader in this event loop that serves clients over gRPC on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from holdover.client import Client, ClientTimeouts
from holdover.config import Configuration
from holdover.runtime.real import real_runtime
from holdover.v1.jobmanager_pb2_grpc import add_JobManagerServicer_to_server
from jobmanager.client_service import ClientService
from jobmanager.leader_state import LeadershipServices, LeaderState
from jobmanager.resource_manager import ResourceManager
from tests.unit.jobmanager.leader_lives import InstantTaskManager, Leader, runtime_on

SHORT = ClientTimeouts(call_s=20, search_s=60, failover_s=60)


@dataclass
class ServingLeader:
    """A leader, what it serves, and a client of it."""

    leader: Leader
    state: LeaderState
    client: Client


@asynccontextmanager
async def serving(
    taskmanager: InstantTaskManager,
    service: type[ClientService] = ClientService,
    *,
    timeouts: ClientTimeouts = SHORT,
    in_office: bool = True,
) -> AsyncIterator[ServingLeader]:
    """Serve until the end of the block; with `in_office=False` all jobs are still to be loaded."""
    leader = Leader(taskmanager, 1)
    state = LeaderState(runtime_on(taskmanager.disk), Configuration(), "127.0.0.1", "test")
    state.services = LeadershipServices(
        1, leader.dispatcher, cast(ResourceManager, leader.resources), leader.store, 0
    )
    server = real_runtime().network.server("127.0.0.1:0")
    server.add(add_JobManagerServicer_to_server, service(state))
    state.address = f"127.0.0.1:{await server.start()}"
    try:
        if in_office:
            await leader.take_office()
        async with Client(state.address, timeouts=timeouts) as client:
            yield ServingLeader(leader, state, client)
    finally:
        await server.stop(0)
        await leader.dispatcher.suspend()
        await leader.supervisor.close()
