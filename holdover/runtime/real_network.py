"""gRPC over TCP, with mutual TLS where it is configured."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from holdover.runtime.errors import AddressInUse, AddressUnavailable
from holdover.runtime.network import GRPC_MESSAGE_BYTES_MAX, Server, ServicerT, split_address
from holdover.runtime.tls_channel import RenewedChannel
from holdover.runtime.tls_obstacle import obstacle_at
from holdover.runtime.transport_security import CredentialFiles, Credentials

# Keepalive is chosen here for both sides: a server closes connections that ping more often than it
# allows, so what it allows must stay below what clients do (case P58). It only cleans up
# connections whose peer has vanished; application heartbeats decide whether a peer is alive.
_CLIENT_PING_INTERVAL_MS = 30_000
_CLIENT_PING_TIMEOUT_MS = 10_000
_SERVER_PING_INTERVAL_MIN_MS = 10_000

# Calls that one server runs at a time; more are refused with RESOURCE_EXHAUSTED. Streams count, and
# each worker and watching client has a few.
_CONCURRENT_CALLS_MAX = 20_000

_OptionList = list[tuple[str, int]]

_MESSAGE_LIMITS: _OptionList = [
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
]

_CHANNEL_OPTIONS: _OptionList = [
    *_MESSAGE_LIMITS,
    ("grpc.keepalive_time_ms", _CLIENT_PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _CLIENT_PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # A leader that came back is found within a second, however long it was away (P51).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name: how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # The same name may mean another address after a restart (P57).
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # A new channel is a new connection, not one more user of a connection that is backing off.
    ("grpc.use_local_subchannel_pool", 1),
    # Cluster addresses are never reached through the machine's HTTP proxy.
    ("grpc.enable_http_proxy", 0),
]

_SERVER_OPTIONS: _OptionList = [
    *_MESSAGE_LIMITS,
    ("grpc.http2.min_ping_interval_without_data_ms", _SERVER_PING_INTERVAL_MIN_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", _CLIENT_PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _CLIENT_PING_TIMEOUT_MS),
    # Two processes that share a port would each get half of the calls.
    ("grpc.so_reuseport", 0),
]


class TcpNetwork:
    """Channels and servers on this machine's network."""

    def __init__(self, files: CredentialFiles | None = None) -> None:
        """With `files`, everybody shows a certificate and asks for one; without, nobody does."""
        self._files = files

    def channel(
        self, address: str, *, in_clear: bool = False, idle_pings: bool = True
    ) -> grpc.aio.Channel:
        """See `Network.channel`."""
        split_address(address)  # gRPC would take a missing port for 443
        options: list[tuple[str, int | str]] = [*_CHANNEL_OPTIONS]
        options.append(("grpc.keepalive_permit_without_calls", int(idle_pings)))
        if self._files is None or in_clear:
            return grpc.aio.insecure_channel(address, options=options)
        if self._files.security.expected_name:
            options.append(("grpc.ssl_target_name_override", self._files.security.expected_name))

        def secure_channel(credentials: Credentials) -> grpc.aio.Channel:
            return grpc.aio.secure_channel(
                address,
                grpc.ssl_channel_credentials(
                    credentials.ca, credentials.private_key, credentials.certificate_chain
                ),
                options=options,
            )

        return RenewedChannel(secure_channel, self._files)

    def server(
        self, bind_address: str, *, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    ) -> Server:
        """See `Network.server`."""
        return TcpServer(bind_address, interceptors, self._files)

    async def obstacle(self, address: str) -> str:
        """See `Network.obstacle`."""
        security = None if self._files is None else self._files.security
        return await asyncio.to_thread(obstacle_at, address, security)


class TcpServer:
    """One gRPC server on one TCP port."""

    def __init__(
        self,
        bind_address: str,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        files: CredentialFiles | None = None,
    ) -> None:
        self._bind_address = bind_address
        self._files = files
        self._server = grpc.aio.server(
            interceptors=interceptors,
            options=_SERVER_OPTIONS,
            maximum_concurrent_rpcs=_CONCURRENT_CALLS_MAX,
        )

    def add(
        self, add_servicer_to_server: Callable[[ServicerT, Any], None], servicer: ServicerT
    ) -> None:
        """See `Server.add`."""
        add_servicer_to_server(servicer, self._server)

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]
    ) -> None:
        """See `Server.add_generic_rpc_handlers`."""
        self._server.add_generic_rpc_handlers(generic_rpc_handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """See `Server.add_registered_method_handlers`."""
        self._server.add_registered_method_handlers(service_name, method_handlers)

    async def start(self) -> int:
        """See `Server.start`."""
        # gRPC is content when one of a host's addresses is free, and does not say why none is.
        obstacle = await asyncio.to_thread(_obstacle_to_bind, self._bind_address)
        if obstacle is not None:
            raise obstacle
        try:
            if self._files is None:
                port = self._server.add_insecure_port(self._bind_address)
            else:
                port = self._server.add_secure_port(
                    self._bind_address, _server_credentials(self._files)
                )
        except RuntimeError as refused:
            # Somebody took it since the look a moment ago.
            raise AddressInUse(self._bind_address) from refused
        await self._server.start()
        return port

    async def stop(self, grace_s: float) -> None:
        """See `Server.stop`."""
        await self._server.stop(grace_s)


def _server_credentials(files: CredentialFiles) -> grpc.ServerCredentials:
    """Asks every client for a certificate; a new connection gets what is new in the files."""
    latest = files.current

    def configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(credentials.private_key, credentials.certificate_chain)], credentials.ca
        )

    def newer() -> grpc.ServerCertificateConfiguration | None:
        # gRPC calls this from threads of its own, before each handshake.
        nonlocal latest
        current = files.current
        if current.version == latest.version:
            return None
        latest = current
        return configuration(current)

    return grpc.dynamic_ssl_server_credentials(
        configuration(latest),
        newer,  # type: ignore[arg-type]  # the stubs do not know that None means "no change"
        require_client_authentication=True,
    )


def _obstacle_to_bind(bind_address: str) -> OSError | None:
    """Why the address cannot be bound as a whole; None when it can."""
    host, port = split_address(bind_address)
    try:
        candidates = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        return AddressUnavailable(bind_address, error.strerror or str(error))
    refusals = []
    for family, kind, protocol, _, socket_address in candidates:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(socket_address)
                probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return AddressInUse(bind_address)
            refusals.append(error.strerror or str(error))
    # A name often has an IPv6 address on machines without IPv6; one that can be bound is enough.
    if len(refusals) == len(candidates):
        return AddressUnavailable(bind_address, "; ".join(refusals))
    return None
