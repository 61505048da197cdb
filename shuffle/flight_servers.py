"""Partition servers as a service starts them: the real arm of the runtime's `PartitionServers`."""

from __future__ import annotations

import asyncio

from holdover.runtime import PartitionReceiver, PartitionServer
from holdover.runtime.errors import AddressInUse
from holdover.runtime.log import Log
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.runtime.transport_security import LOOK_INTERVAL_S, CredentialFiles
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.flight import FlightPartitionServer, Lookup
from shuffle.flight_copy import copy_execution
from shuffle.flight_put import PutEndpoint
from shuffle.flight_result_target import ShuffleServiceTarget

# Until the port that the last server had is free: its listener is closed at once.
_BIND_PAUSE_S = 0.02
_RESTART = RestartPolicy(delay_first_s=0.1, delay_max_s=5.0, healthy_after_s=30.0)

_log = Log(__name__)


class FlightPartitionServers:
    """Starts partition servers."""

    def __init__(self, files: CredentialFiles | None = None) -> None:
        """With `files`, they speak TLS, and only to who has a certificate as well."""
        self._files = files

    async def start(
        self, host: str, port: int, lookup: Lookup, receiver: PartitionReceiver | None = None
    ) -> PartitionServer:
        """Serves on `host`:`port` (0: a free one); `lookup` is called in foreign threads.

        What is put goes to `receiver`. Raises AddressInUse or AddressUnavailable when it cannot be
        bound.
        """
        puts = None
        if receiver is not None:
            puts = PutEndpoint(receiver, asyncio.get_running_loop())
        if self._files is None:
            return await asyncio.to_thread(FlightPartitionServer, host, port, lookup, None, puts)
        current = self._files.current
        server = await asyncio.to_thread(FlightPartitionServer, host, port, lookup, current, puts)
        return RenewedPartitionServer(server, host, lookup, self._files, current.version, puts)

    async def copy(self, directory: str, execution: FinishedExecution, address: str) -> None:
        """See `PartitionServers.copy`."""

        def copy() -> None:
            with ShuffleServiceTarget(address, files=self._files) as target:
                copy_execution(directory, execution, target)

        await asyncio.to_thread(copy)


class RenewedPartitionServer:
    """A partition server that follows its certificate files.

    Flight takes certificates only when a server is made. So when they are replaced, a new server
    takes the place of the old one, at the same port and within milliseconds: streams that run break
    off, and their readers ask again for what is missing, as they do whenever a connection breaks.
    """

    def __init__(
        self,
        server: FlightPartitionServer,
        host: str,
        lookup: Lookup,
        files: CredentialFiles,
        version: int,
        puts: PutEndpoint | None,
    ) -> None:
        """`server` runs with the credentials of `version`."""
        self.port: int = server.port
        self._server: FlightPartitionServer | None = server
        self._host = host
        self._lookup = lookup
        self._puts = puts
        self._files = files
        self._version = version
        self._supervisor = Supervisor("partition server", on_fatal=self._on_fatal)
        self._supervisor.run("certificates", self._follow_files, restart=_RESTART)

    async def stop(self) -> None:
        """See `PartitionServer.stop`."""
        await self._supervisor.close()
        if self._server is not None:
            await self._server.stop()

    async def _follow_files(self) -> None:
        while True:
            if self._server is not None:
                await asyncio.sleep(LOOK_INTERVAL_S)
                if self._files.current.version == self._version:
                    continue
                await self._server.stop()
                self._server = None
            self._server = await self._start()
            _log.info("partition server has new certificates", port=self.port)

    async def _start(self) -> FlightPartitionServer:
        credentials = self._files.current
        while True:
            try:
                server = await asyncio.to_thread(
                    FlightPartitionServer,
                    self._host,
                    self.port,
                    self._lookup,
                    credentials,
                    self._puts,
                )
            except AddressInUse:
                await asyncio.sleep(_BIND_PAUSE_S)
                continue
            self._version = credentials.version
            return server

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        raise AssertionError(f"{name} restarts for ever") from exception
