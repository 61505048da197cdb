"""What the servicers of a JobManager process share: who leads, and the services of the present
leadership.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
import grpc.aio

from holdover.config import Configuration
from holdover.runtime import Runtime
from holdover.runtime.loop_lag import LoopLagMonitor
from jobmanager.dispatcher import Dispatcher
from jobmanager.job_store import JobStore
from jobmanager.resource_manager import ResourceManager

LEADER_METADATA = "holdover-leader"


@dataclass(frozen=True, slots=True)
class LeadershipServices:
    """Exists while this process leads."""

    epoch: int
    dispatcher: Dispatcher
    resources: ResourceManager
    store: JobStore
    since_wall_ms: int


class LeaderState:
    """Whether this process leads, and whom it knows to lead otherwise."""

    def __init__(self, runtime: Runtime, config: Configuration, address: str, version: str) -> None:
        self.runtime = runtime
        self.config = config
        self.address = address
        self.version = version
        self.services: LeadershipServices | None = None
        #: The leader as far as this process knows; 0 and "" if unknown.
        self.known_epoch = 0
        self.known_address = ""
        #: Set when somebody has seen a newer leader than this process.
        self.deposed = asyncio.Event()
        #: How late this process's event loop runs (P55).
        self.lag = LoopLagMonitor()

    async def leading(
        self, context: grpc.aio.ServicerContext[object, object], epoch_seen: int
    ) -> LeadershipServices:
        """The services of the present leadership, ready for calls; ends the call otherwise.

        A caller that has seen a newer leader proves that this one is over.
        """
        services = self.services
        if services is not None and epoch_seen > services.epoch:
            self.deposed.set()
            services = None
        if services is None:
            context.set_trailing_metadata(((LEADER_METADATA, self.known_address),))
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"not the leader; {self.known_address or 'nobody known'} leads",
            )
            raise AssertionError("abort raises")
        if not services.dispatcher.ready.is_set():
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "not ready, retry: jobs are still being loaded"
            )
        return services
