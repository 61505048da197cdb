"""gRPC channels and servers, as services see them.

The seam is the channel and the server, not the socket: generated stubs and servicers run unchanged
on a network that only exists in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:  # the zygote imports this package and must stay free of gRPC (case P52)
    import grpc
    import grpc.aio

# The largest message either side sends or accepts. Lists are paged well below it (case P53).
GRPC_MESSAGE_BYTES_MAX = 16 * 1024 * 1024

_PORT_MAX = 65_535

# In the text of a call that reached none of its server's addresses.
_NO_CONNECTION = "failed to connect"
_OTHER_CAUSES = ("refused", "imeout", "imed out", "unreachable")

ServicerT = TypeVar("ServicerT")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; raises ValueError when it is not that."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > _PORT_MAX:
        raise ValueError(f"address must be 'host:port', for example 'localhost:6123': {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Server(Protocol):
    """A gRPC server that is configured first, then started once, then stopped once."""

    def add(
        self, add_servicer_to_server: Callable[[ServicerT, Any], None], servicer: ServicerT
    ) -> None:
        """Register a servicer: `server.add(add_JobServiceServicer_to_server, servicer)`."""
        ...

    def add_generic_rpc_handlers(
        self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]
    ) -> None:
        """What generated code calls; services use `add`."""
        ...

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """What generated code calls; services use `add`."""
        ...

    async def start(self) -> int:
        """Bind and serve; return the port, which is a free one if the bind address ended in `:0`.

        Raises `AddressInUse` when another process has the port: ports are never shared.
        Raises `AddressUnavailable` when the host cannot be bound for another reason.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls at once, give running calls `grace_s` seconds, then cancel them."""
        ...


class Network(Protocol):
    """The way to other processes."""

    def channel(
        self, address: str, *, in_clear: bool = False, idle_pings: bool = True
    ) -> grpc.aio.Channel:
        """A new channel to `host:port`; the caller closes it.

        Two are for servers outside of the cluster: `in_clear` for those that speak no TLS, whatever
        the cluster does, and no `idle_pings` for those that end a connection which is tested while
        no call runs on it (P58).

        It connects lazily, resolves the name again at every reconnect (P57) and waits at most one
        second between attempts (P51). Every call must be given a timeout (P54). Raises `ValueError`
        when the address is not `host:port`.
        """
        ...

    def server(
        self, bind_address: str, *, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    ) -> Server:
        """A new server for `host:port`, not yet bound."""
        ...

    async def obstacle(self, address: str) -> str:
        """What keeps this process from a secure connection to a server, in words for people.

        Empty when nothing is known. Takes some seconds at most; see `may_be_insecure`.
        """
        ...


def may_be_insecure(failure: str) -> bool:
    """Whether a call may have failed for want of a certificate, as far as gRPC's text tells.

    It says little of certificates, and nothing when it is the server that refuses them. Then
    `Network.obstacle` knows more.
    """
    return _NO_CONNECTION in failure and not any(cause in failure for cause in _OTHER_CAUSES)
