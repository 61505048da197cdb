"""The network of a world: names, ports, faults, and the way from one process to another.

MODEL. A host is reached by its name, which is its DNS name and has one address; `move` gives the
name to another host, for all who look it up later. `localhost` and the addresses of the loopback
are the host of the process that says them. All processes of a host share its ports, whatever they
bind to. gRPC channels and servers are `channel`, `server`, `calls`, `servicer`; what they send
goes over connections (`connection`) by the arithmetic of `links`. What the data plane sends is a
`transfer`: bytes on a connection of their own. A host that lost its power is silent; connections
to what died with it break when it is heard again, or when keepalive finds them.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio

from holdover.runtime.errors import AddressInUse, AddressUnavailable
from holdover.runtime.network import Server, split_address
from simulator.world.channel import SimulatedChannel
from simulator.world.connection import Connection, Direction, Node
from simulator.world.links import ConnectionLost, Links, LinkSettings
from simulator.world.loop import VirtualLoop
from simulator.world.process import Host, Process, ProcessState
from simulator.world.promise import Promise
from simulator.world.server import SimulatedServer
from simulator.world.transfers import Arrival, Exchange, Over, Transfer

if TYPE_CHECKING:
    from simulator.world.world import World

__all__ = ["ConnectionLost", "LinkSettings", "ProcessNetwork", "SimulatedNetwork"]

_FREE_PORTS = range(32_768, 61_000)
#: Addresses that are remembered in their parts: as many as a large world has TaskManagers.
_ADDRESSES_KEPT_MAX = 1 << 15
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"})


_split_address = functools.lru_cache(_ADDRESSES_KEPT_MAX)(split_address)


class Listener(NamedTuple):
    """Who has a port."""

    node: Node
    #: A server, or whatever the data plane listens with.
    handler: object
    #: The server again, when it takes channels.
    gate: SimulatedServer | None


class SimulatedNetwork:
    """See the module."""

    def __init__(self, world: World, settings: LinkSettings | None = None) -> None:
        self.world = world
        self.loop: VirtualLoop = world.loop
        self.note: Callable[[str, str, str], None] = world.trace.note
        self.links = Links(settings or LinkSettings(), world.random("network"))
        #: Connections and transfers whose way is cut, at least in one direction.
        self.stalled: dict[Connection | Transfer, None] = {}
        self._nodes: dict[Process, Node] = {}
        self._ports: dict[tuple[str, int], Listener] = {}
        self._free_ports: dict[str, itertools.cycle[int]] = {}
        self._moved: dict[str, Host] = {}

    @property
    def settings(self) -> LinkSettings:
        """What the network is like without faults; may be replaced before the run."""
        return self.links.settings

    @settings.setter
    def settings(self, settings: LinkSettings) -> None:
        self.links.settings = settings

    @property
    def keepalive_s(self) -> float:
        """How long a silent peer is believed in."""
        settings = self.links.settings
        return settings.keepalive_interval_s + settings.keepalive_timeout_s

    @property
    def messages_in_flight(self) -> int:
        """Messages that were sent to living processes and not handled yet."""
        return sum(node.incoming for node in self._nodes.values())

    # ------------------------------------------------------------------ processes

    def of(self, process: Process) -> ProcessNetwork:
        """The network as a process has it."""
        return ProcessNetwork(self, self.node(process))

    def node(self, process: Process) -> Node:
        """The network's view of a process."""
        node = self._nodes.get(process)
        if node is None:
            node = self._nodes[process] = Node(self, process)
            process.on_end(lambda: self._process_ended(node))
            process.on_pause(lambda: self._process_paused(node))
        return node

    def _process_ended(self, node: Node) -> None:
        self._nodes.pop(node.process, None)
        for port in node.ports:
            del self._ports[node.process.host.name, port]
        for peer in list(node.peers):
            peer.node_ended(node)
        node.peers.clear()

    def _process_paused(self, node: Node) -> None:
        """It is silent now, or goes on."""
        if node.process.state is ProcessState.PAUSED:
            self._stall_connections_of(node)
        else:
            self._reopen()

    # ------------------------------------------------------------------ names and ports

    def resolve(self, name: str) -> Host | None:
        """The host of this name, as somebody on any host sees it."""
        return self._moved.get(name) or self.world.hosts.get(name)

    def move(self, name: str, host: Host) -> None:
        """From now on the name is that host's; connections that exist stay where they are."""
        self.note("network", "move", f"{name} to {host.name}")
        self._moved[name] = host

    def resolve_for(self, host: Host, name: str) -> Host | None:
        """The host of this name, as somebody on `host` sees it."""
        return host if name in _LOOPBACK else self.resolve(name)

    def listen(self, process: Process, port: int, handler: object) -> int:
        """Take a port of the process's host, 0 for a free one, and return it.

        Raises `AddressInUse`.
        """
        return self.bind(self.node(process), f"{process.host.name}:{port}", handler)

    def unlisten(self, process: Process, port: int) -> None:
        """Give the port back."""
        listener = self._ports.get((process.host.name, port))
        if listener is not None and listener.node.process is process:
            self.unbind(listener.node, port, listener.handler)

    def listener(self, address: str) -> Listener | None:
        """Who listens at `host:port` now, and with what; None when nobody does."""
        name, port = _split_address(address)
        if name in self._moved:
            name = self._moved[name].name
        return self._ports.get((name, port))

    def bind(
        self, node: Node, bind_address: str, handler: object, gate: SimulatedServer | None = None
    ) -> int:
        """See `Server.start`."""
        name, port = split_address(bind_address)
        host = node.process.host
        if self.resolve_for(host, name) is not host:
            raise AddressUnavailable(bind_address, "not an address of this host")
        port = port or self._free_port(host)
        if (host.name, port) in self._ports:
            raise AddressInUse(bind_address)
        self._ports[host.name, port] = Listener(node, handler, gate)
        node.ports[port] = None
        self.note(node.process.name, "listens", f"{host.name}:{port}")
        return port

    def unbind(self, node: Node, port: int, handler: object) -> None:
        """Give back what `bind` has given to this handler."""
        key = node.process.host.name, port
        if key in self._ports and self._ports[key].handler is handler:
            del self._ports[key]
            del node.ports[port]

    def _free_port(self, host: Host) -> int:
        ports = self._free_ports.setdefault(host.name, itertools.cycle(_FREE_PORTS))
        for port in itertools.islice(ports, len(_FREE_PORTS)):
            if (host.name, port) not in self._ports:
                return port
        raise AddressInUse(f"{host.name}:0")

    # ------------------------------------------------------------------ connecting

    def connect(self, channel: SimulatedChannel, attempt: int, name: str, port: int) -> None:
        """Find who listens; the channel is told, unless nothing comes back."""
        node = channel.node
        self.note(node.process.name, "connect", f"{name}:{port}")
        host = self.resolve_for(node.process.host, name)
        now_s = self.loop.now_s
        if host is None:
            when_s = now_s + self.links.settings.latency_s[1]
            node.at(when_s, channel.failed, attempt, "no such host")
            return
        target = self.links.port(host)
        if not self.links.blocked(node.port, target):
            when_s = self.links.arrival_s(node.port, target, 0, now_s)
            self._at(when_s, self._knock, channel, attempt, host, port)

    def _knock(self, channel: SimulatedChannel, attempt: int, host: Host, port: int) -> None:
        """The kernel of the host looks who listens."""
        node, target = channel.node, self.links.port(host)
        if self.links.blocked(node.port, target):
            return
        listener = self._ports.get((host.name, port))
        if listener is not None and listener.gate is not None:
            self.loop.call_soon(
                self._accept, channel, attempt, listener.gate, context=listener.node.context
            )
        elif not self.links.blocked(target, node.port):
            when_s = self.links.arrival_s(target, node.port, 0, self.loop.now_s)
            node.at(when_s, channel.failed, attempt, "Connection refused")

    def _accept(self, channel: SimulatedChannel, attempt: int, gate: SimulatedServer) -> None:
        """The server answers, as soon as its process runs."""
        if gate.accepts and channel.node.process.alive:
            client_port = self._free_port(channel.node.process.host)
            connection = Connection(channel.node, gate.node, gate, client_port)
            connection.down.post(0, channel.connected, (attempt, connection))

    def _at(self, when_s: float, callback: Callable[..., object], *args: Any) -> None:
        world = self.loop.world_process
        self.loop.call_at(when_s, callback, *args, context=world.context)

    # ------------------------------------------------------------------ the data plane

    async def transfer(self, source: Process, target: Process, n_bytes: int) -> None:
        """Move bytes; returns when they have arrived.

        Awaited by one of the two processes. Raises `ConnectionLost` when the other one dies
        meanwhile, or the way is cut for longer than keepalive believes in it.
        """
        if not source.alive or not target.alive:
            raise ConnectionLost(f"{(target if source.alive else source).name} has ended")
        self.note(source.name, "transfer", f"{n_bytes} to {target.name}")
        arrival = Arrival(loop=self.loop)
        transfer = Transfer(self.node(source), self.node(target), arrival, arrival.settle)
        try:
            transfer.begin(n_bytes)
            await arrival
        finally:
            transfer.abandon()

    async def exchange(
        self,
        client: Process,
        server: Process,
        n_bytes: int,
        answer: Callable[[], int],
        timeout_s: float,
    ) -> None:
        """Send a request of so many bytes; returns when its answer has arrived.

        `answer` is called as the server when the request has arrived, which it must within the
        timeout, and tells the bytes of the answer. Awaited by the client. Raises `ConnectionLost`
        as `transfer` does, and when the time is over.
        """
        if not client.alive or not server.alive:
            raise ConnectionLost(f"{(server if client.alive else client).name} has ended")
        node, arrival = self.node(client), Arrival(loop=self.loop)
        exchange = self.ask(node, self.node(server), n_bytes, answer, arrival, arrival.settle)
        try:
            node.deadlines.add(self.loop.now_s + timeout_s, exchange)
            await arrival
        finally:
            exchange.abandon()

    def ask(
        self,
        client: Node,
        server: Node,
        n_bytes: int,
        answer: Callable[[], int],
        waiter: Promise[Any],
        over: Over,
    ) -> Exchange:
        """Begin an exchange with a living process, which has no deadline. See `exchange`,
        `Transfer`."""
        self.note(client.process.name, "transfer", f"{n_bytes} to {server.process.name}")
        return Exchange(client, server, n_bytes, answer, waiter, over)

    # ------------------------------------------------------------------ faults

    def cut(self, sources: Sequence[Host], targets: Sequence[Host], *, both: bool) -> int:
        """Nothing gets from `sources` to `targets` (and back, with `both`) until `heal`."""
        names = [[host.name for host in hosts] for hosts in (sources, targets)]
        self.note("network", "cut", f"{names[0]} {'<->' if both else '->'} {names[1]}")
        token = self.links.cut(sources, targets, both=both)
        self._stall_connections_on(sources if len(sources) <= len(targets) else targets)
        return token

    def slow(self, hosts: Sequence[Host], factor: float, extra_latency_s: float = 0.0) -> int:
        """See `Links.weaken`; returns what `heal` takes."""
        names = [host.name for host in hosts]
        self.note("network", "slow", f"{names} {factor} {extra_latency_s}")
        return self.links.weaken(hosts, slowness=factor, extra_latency_s=extra_latency_s)

    def lose(self, hosts: Sequence[Host], probability: float) -> int:
        """See `Links.weaken`; returns what `heal` takes."""
        self.note("network", "lose", f"{[host.name for host in hosts]} {probability}")
        return self.links.weaken(hosts, loss=probability)

    def heal(self, token: int) -> None:
        """End what `cut`, `slow` or `lose` began."""
        self.note("network", "heal", str(token))
        self.links.heal(token)
        self._reopen()

    def heal_all(self) -> None:
        """End all cuts, slowness and loss; a silent host stays silent."""
        self.note("network", "heal", "all")
        self.links.heal_all()
        self._reopen()

    def silence(self, host: Host) -> None:
        """Nothing is heard of this host, and it hears nothing, until `end_silence`."""
        self.note("network", "silent", host.name)
        self.links.silence(host, silent=True)
        self._stall_connections_on([host])

    def end_silence(self, host: Host) -> None:
        """It is heard again; what it had promised to dead processes is refused."""
        self.note("network", "heard", host.name)
        self.links.silence(host, silent=False)
        self._reopen()

    def change_address(self, host: Host) -> None:
        """The name of the host means a new address; connections to the old one hear nothing any
        more, those within the host go on."""
        self.note("network", "address", host.name)
        port = self.links.change_address(host)
        self._stall_connections_on([host])
        for process in host.living():
            if process in self._nodes:
                self._nodes[process].port = port

    def stall(self, owner: Connection | Transfer) -> None:
        """Its way is cut; it looks to itself."""
        if owner not in self.stalled:
            self.stalled[owner] = None
            owner.begin_silence()

    def _stall_connections_on(self, hosts: Sequence[Host]) -> None:
        for process in [process for host in hosts for process in host.living()]:
            if process in self._nodes:
                self._stall_connections_of(self._nodes[process])

    def _stall_connections_of(self, node: Node) -> None:
        for peer in list(node.peers):
            if isinstance(peer, Connection) and _interrupted(peer):
                self.stall(peer)

    def _reopen(self) -> None:
        for owner in list(self.stalled):
            if not _interrupted(owner):
                del self.stalled[owner]
            for direction in _directions(owner):
                if not direction.blocked():
                    direction.reopen()


def _directions(owner: Connection | Transfer) -> tuple[Direction, ...]:
    return (owner.up, owner.down) if isinstance(owner, Connection) else owner.directions


def _interrupted(owner: Connection | Transfer) -> bool:
    return any(direction.silent() for direction in _directions(owner))


class ProcessNetwork:
    """See `Network`: channels and servers of one process."""

    def __init__(self, network: SimulatedNetwork, node: Node) -> None:
        self._network = network
        self._node = node
        self._random: random.Random | None = None

    def _source(self) -> random.Random:
        """Chance for what channels do; made when it is first needed, which it seldom is."""
        if self._random is None:
            process = self._node.process
            self._random = self._network.world.random(f"channels/{process.name}/{process.life}")
        return self._random

    def channel(
        self, address: str, *, in_clear: bool = False, idle_pings: bool = True
    ) -> grpc.aio.Channel:
        """See `Network.channel`. MODEL: nothing is encrypted, and nobody pings."""
        del in_clear, idle_pings
        host, port = split_address(address)
        return SimulatedChannel(self._network, self._node, host, port, self._source)

    def server(
        self, bind_address: str, *, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    ) -> Server:
        """See `Network.server`."""
        return SimulatedServer(self._network, self._node, bind_address, interceptors)

    async def obstacle(self, address: str) -> str:
        """See `Network.obstacle`. MODEL: connections are as they are, and need no certificates."""
        split_address(address)
        return ""
