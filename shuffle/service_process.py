"""A shuffle service's process: what it opens, in which order, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdover import config as options
from holdover.config import Configuration
from holdover.coordination.leader import LeaderService
from holdover.runtime import PartitionServer, Runtime, Server, StorageNotWritable
from holdover.runtime.log import Log
from holdover.runtime.serving import BackgroundFailure, close_together, server_with_health
from holdover.runtime.supervisor import Supervisor
from holdover.v1 import shuffle_service_pb2
from holdover.v1.shuffle_service_pb2_grpc import add_ShuffleServiceServicer_to_server
from shuffle.service import ServiceIdentity, ShuffleService
from shuffle.service_directory import ServiceDirectory
from shuffle.service_rpc import ShuffleRpcService
from shuffle.stocktaking import take_stock

SERVICE_NAME = shuffle_service_pb2.DESCRIPTOR.services_by_name["ShuffleService"].full_name

#: Parts of an orderly end, which takes less than 5 s in all.
_UNREGISTER_TIMEOUT_S = 1.0
_SERVER_GRACE_S = 0.2
_CLOSE_TIMEOUT_S = 2.0
_REMOVE_TIMEOUT_S = 1.5

_log = Log(__name__)


class ShuffleServiceProcess:
    """One shuffle service with everything around it.

    `failed` gets an exception when a background loop ended that must not: the process then ends.
    """

    def __init__(
        self, runtime: Runtime, configuration: Configuration, leader_service: LeaderService
    ) -> None:
        self._runtime = runtime
        self._configuration = configuration
        self._leader_service = leader_service
        configured = configuration.get(options.SHUFFLE_SERVICE_RESOURCE_ID)
        self._generated = not configured
        self.resource_id = configured or f"shuffle-{runtime.randomness.token_hex(6)}"
        self.address = ""
        self.data_address = ""
        failure = BackgroundFailure()
        self.failed = failure.future
        self._supervisor = Supervisor("shuffle service", on_fatal=failure.loop_ended)
        self._directory: ServiceDirectory | None = None
        self._partition_server: PartitionServer | None = None
        self._server: Server | None = None
        self._service: ShuffleService | None = None

    @property
    def service(self) -> ShuffleService | None:
        """Who decides, to be read only; None before `start`."""
        return self._service

    async def start(self) -> None:
        """Open everything and begin to look for a leader.

        Raises `ConfigurationError`, `StorageNotWritable`, `AddressInUse`, `AddressUnavailable`;
        `stop` then closes what was opened.
        """
        config, runtime = self._configuration, self._runtime
        host = config.get(options.SHUFFLE_SERVICE_HOST)
        bind_host = config.get(options.SHUFFLE_SERVICE_BIND_HOST)
        directory = await ServiceDirectory.claim(
            runtime.disk,
            config.get(options.IO_TMP_DIRS),
            self.resource_id,
            generated=self._generated,
        )
        self._directory = directory
        service = ShuffleService(
            runtime,
            config,
            ServiceIdentity(self.resource_id, runtime.randomness.token_hex(8)),
            directory.shuffle,
            self._supervisor,
            self._leader_service.retrieval(),
        )
        await self._find_finished(directory, service)
        self._service = service
        self._partition_server = await runtime.partition_servers.start(
            bind_host,
            config.get(options.SHUFFLE_SERVICE_DATA_PORT),
            service.finished.path_of,
            service,
        )
        self.data_address = f"{host}:{self._partition_server.port}"
        port = config.get(options.SHUFFLE_SERVICE_RPC_PORT)
        self._server = await self._serving(f"{bind_host}:{port}", service)
        self.address = f"{host}:{await self._server.start()}"
        service.start(self.address, self.data_address)
        self._supervisor.start("sweep", directory.sweep_neighbours())
        _log.info(
            "shuffle service ready",
            resource_id=self.resource_id,
            address=self.address,
            data_address=self.data_address,
        )

    async def _find_finished(self, directory: ServiceDirectory, service: ShuffleService) -> None:
        try:
            stock = await take_stock(self._runtime.disk, self._runtime.clock, directory.shuffle)
            await service.measure()
        except OSError as error:
            raise StorageNotWritable(directory.shuffle, error) from error
        service.take_up_found(stock)

    async def stopped(self) -> str:
        """Wait until there is a reason to end: it is drained, or a loop has failed."""
        assert self._service is not None, "start comes first"
        drained = asyncio.ensure_future(self._service.drained.wait())
        ends: list[asyncio.Future[Any]] = [drained, self.failed]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return "a background loop has ended" if self.failed.done() else "it is drained"
        finally:
            drained.cancel()

    async def stop(self, reason: str) -> None:
        """Leave the cluster and close the servers. Takes less than 5 s.

        What is finished stays on the disk for a process of the same resource id, unless the service
        is drained.
        """
        if self._service is not None:
            await self._service.leave(reason, _UNREGISTER_TIMEOUT_S)
        await self._supervisor.close()
        if self._service is not None:
            await self._service.close()
        await self._close_servers()
        if self._directory is not None:
            await self._leave(self._directory)

    async def _close_servers(self) -> None:
        closings: list[Coroutine[Any, Any, None]] = []
        if self._server is not None:
            closings.append(self._server.stop(_SERVER_GRACE_S))
        if self._partition_server is not None:
            closings.append(self._partition_server.stop())
        await close_together(closings, _CLOSE_TIMEOUT_S)

    async def _leave(self, directory: ServiceDirectory) -> None:
        service = self._service
        # Of a drained one all that is needed is elsewhere by now.
        holds = service is None or bool(service.finished.jobs and not service.drained.is_set())
        try:
            async with asyncio.timeout(_REMOVE_TIMEOUT_S):
                if directory.generated or not holds:
                    await directory.remove()
                else:
                    await directory.release()
        except (OSError, TimeoutError) as error:
            _log.warning("the next start sweeps what is left", path=directory.path, error=error)

    async def _serving(self, bind_address: str, service: ShuffleService) -> Server:
        return await server_with_health(
            self._runtime.network,
            bind_address,
            SERVICE_NAME,
            add_ShuffleServiceServicer_to_server,
            ShuffleRpcService(service),
        )
