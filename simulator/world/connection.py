"""Connections between two processes: ordered, reliable while they last, and mortal.

MODEL. A connection is TCP with gRPC's keepalive on top. Each direction delivers in order. What is
sent or under way while the way is cut is kept, and arrives after healing. The end of a process, or
of one side of a connection, is told to the other side by one more message, which a cut keeps as
well. A side that has heard nothing for the keepalive time, while the way is cut or the other
process is paused, gives the connection up. Pings are not messages here: their answers are reckoned
when a silence begins. What was under way when a process is paused still leaves its host.

What belongs to which process: `arrive` and all that is called from it run as the receiver.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from simulator.world.handle import ReadyHandle
from simulator.world.links import silence_ends_s
from simulator.world.process import Process, ProcessState

if TYPE_CHECKING:
    from simulator.world.calls import ClientCall
    from simulator.world.network import SimulatedNetwork
    from simulator.world.server import SimulatedServer
    from simulator.world.servicer import ServedCall
    from simulator.world.transfers import Transfer

#: Virtual seconds by which a timer may be early, for the rounding of clock rates.
_TIMER_PRECISION_S = 1e-9
#: Deadlines of a process before those of calls that have ended are let go: each keeps its call, and
#: a large world has thousands of processes that make few.
_EXPIRED_DEADLINES_MIN = 16

_PAUSED = ProcessState.PAUSED

Deliver = Callable[..., object]


class Expiring(Protocol):
    """A call that has a deadline."""

    def has_ended(self) -> bool:
        """Whether its deadline does not matter any more."""
        ...

    def deadline_passed(self) -> None:
        """Called at the deadline, when it has not ended."""
        ...


class Node:
    """A process, as the network sees it."""

    def __init__(self, network: SimulatedNetwork, process: Process) -> None:
        self.network = network
        self.process = process
        self.port = network.links.port(process.host)
        self.context = process.context
        self._loop = process.loop
        #: Until when it handles messages that have arrived.
        self.busy_until_s = 0.0
        #: Messages on their way to it.
        self.incoming = 0
        self.deadlines: Deadlines = Deadlines(self)
        #: The ports it listens on.
        self.ports: dict[int, None] = {}
        #: What breaks when it dies.
        self.peers: dict[Connection | Transfer, None] = {}

    def at(self, when_s: float, callback: Deliver, *args: Any) -> ReadyHandle:
        """Call in the name of this process, at a time of the world."""
        return self._loop.call_of(self.process, when_s, callback, *args)


class Deadlines:
    """All deadlines of a process, with one timer for the next of them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = node.process.loop
        self._heap: list[tuple[float, int, Expiring]] = []
        self._numbers = itertools.count()
        self._timer: ReadyHandle | None = None
        self._timer_s = float("inf")
        self._sweep_at = _EXPIRED_DEADLINES_MIN

    def add(self, when_s: float, call: Expiring) -> None:
        """Tell the call at this time of the world, unless it has ended before."""
        heap = self._heap
        if len(heap) >= self._sweep_at:
            self._heap = heap = [entry for entry in heap if not entry[2].has_ended()]
            heapq.heapify(heap)
            self._sweep_at = max(_EXPIRED_DEADLINES_MIN, 2 * len(heap))
        heapq.heappush(heap, (when_s, next(self._numbers), call))
        if when_s < self._timer_s:
            self._arm(when_s)

    def _arm(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = when_s
        self._timer = self._node.at(when_s, self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_s = None, float("inf")
        due_s = self._loop.now_s + _TIMER_PRECISION_S
        # A call that is told may add others: the heap may be another one afterwards.
        while heap := self._heap:
            when_s, _, call = heap[0]
            ended = call.has_ended()
            if when_s > due_s and not ended:
                break
            heapq.heappop(heap)
            if not ended:
                call.deadline_passed()
        # And it may have set a nearer timer.
        if heap and heap[0][0] < self._timer_s:
            self._arm(heap[0][0])


class Direction:
    """One way of a connection: what is sent arrives once and in order."""

    __slots__ = (
        "_held",
        "_last_s",
        "_late",
        "_sent",
        "_source_port",
        "_target_port",
        "heard_s",
        "network",
        "owner",
        "source",
        "target",
    )

    def __init__(self, owner: Connection | Transfer, source: Node, target: Node) -> None:
        self.network = source.network
        self.owner = owner
        self.source = source
        self.target = target
        # Addresses: those of the hosts may change.
        self._source_port = source.port
        self._target_port = target.port
        #: When something arrived last.
        self.heard_s = self.network.loop.now_s
        self._last_s = 0.0
        #: How many messages were sent: their numbers.
        self._sent = 0
        #: What waits for the way to open: (number, bytes, what to call).
        self._held: list[tuple[int, int, Deliver, tuple[Any, ...]]] = []
        #: The first message that found the way cut when it arrived, and has not arrived since; 0 is
        #: none. Those that were under way behind it must not overtake it.
        self._late = 0

    def blocked(self) -> bool:
        """Whether nothing gets through now."""
        links = self.network.links
        return links.interrupted and links.blocked(self._source_port, self._target_port)

    def silent(self) -> bool:
        """Whether its target hears nothing: what it hears of a paused process is old."""
        return self.source.process.state is _PAUSED or self.blocked()

    def hold(self, n_bytes: int, deliver: Deliver, args: tuple[Any, ...] = ()) -> None:
        """Send when the silence is over."""
        self.target.incoming += 1
        self._sent += 1
        self._hold(self._sent, n_bytes, deliver, args)

    def post(
        self, n_bytes: int, deliver: Deliver, args: tuple[Any, ...] = (), number: int = 0
    ) -> None:
        """Send; `deliver(*args)` is called as the target when it has arrived. What is sent again
        has its number already."""
        if not number:
            self.target.incoming += 1
            self._sent = number = self._sent + 1
        network, source, target = self.network, self._source_port, self._target_port
        links = network.links
        if links.interrupted and links.blocked(source, target):
            self._hold(number, n_bytes, deliver, args)
            return
        when_s = links.arrival_s(source, target, n_bytes, network.loop.now_s)
        when_s += links.settings.message_cost_s
        if when_s < self._last_s:
            when_s = self._last_s
        self._last_s = when_s
        target_node = self.target
        network.loop.call_of(
            target_node.process, when_s, self._arrive, number, n_bytes, deliver, args
        )

    def _arrive(self, number: int, n_bytes: int, deliver: Deliver, args: tuple[Any, ...]) -> None:
        links, target = self.network.links, self.target
        if links.interrupted and links.blocked(self._source_port, self._target_port):
            self._late = min(number, self._late or number)
            self._hold(number, n_bytes, deliver, args)
            return
        if self._late:
            if number > self._late:
                self.post(n_bytes, deliver, args, number)
                return
            self._late = 0
        loop = self.network.loop
        now_s = loop.now_s
        cost_s = links.settings.message_cost_s
        if cost_s:
            # Its own cost is in the time of arrival already; others may have come before it.
            if target.busy_until_s > now_s - cost_s + _TIMER_PRECISION_S:
                target.busy_until_s += cost_s
                loop.call_of(target.process, target.busy_until_s, self._handle, deliver, args)
                return
            target.busy_until_s = now_s
        self.heard_s = now_s
        target.incoming -= 1
        deliver(*args)

    def _handle(self, deliver: Deliver, args: tuple[Any, ...]) -> None:
        self.heard_s = self.network.loop.now_s
        self.target.incoming -= 1
        deliver(*args)

    def _hold(self, number: int, n_bytes: int, deliver: Deliver, args: tuple[Any, ...]) -> None:
        self._held.append((number, n_bytes, deliver, args))
        self.network.stall(self.owner)

    def reopen(self) -> None:
        """The way is open again: what was held is under way, in the order it was sent."""
        if not self.silent():
            self.heard_s = self.network.loop.now_s
        held, self._held = sorted(self._held, key=lambda message: message[0]), []
        for number, n_bytes, deliver, args in held:
            self.post(n_bytes, deliver, args, number)

    def forget(self) -> None:
        """Nobody waits for what is held."""
        self._late = 0
        if self._held:
            self.target.incoming -= len(self._held)
            self._held.clear()


class Connection:
    """Between a channel's process and a server's."""

    def __init__(self, client: Node, server: Node, gate: SimulatedServer, client_port: int) -> None:
        self.network = client.network
        self.client = client
        self.server = server
        self.gate = gate
        self.client_port = client_port
        self.up = Direction(self, client, server)
        self.down = Direction(self, server, client)
        self.client_open = True
        self.server_open = True
        #: The server has said that it takes no new calls.
        self.draining = False
        self.client_calls: dict[ClientCall, None] = {}
        self.served_calls: dict[ServedCall, None] = {}
        client.peers[self] = None
        server.peers[self] = None
        gate.connections[self] = None

    # ------------------------------------------------------------------ ends

    def node_ended(self, node: Node) -> None:
        """A process at one end has died; the other end is told."""
        if node is self.client and self.client_open:
            self.client_open = False
            self.up.post(0, self.break_server)
        elif node is self.server and self.server_open:
            self.server_open = False
            self.down.post(0, self.break_client, ("Socket closed",))
        self._settle()

    def close_client(self) -> None:
        """The channel is closed."""
        if self.client_open:
            self.client_open = False
            self.client.peers.pop(self, None)
            self.up.post(0, self.break_server)
            self._settle()

    def close_server(self) -> None:
        """The server is stopped."""
        if self.server_open:
            self.server_open = False
            self.server.peers.pop(self, None)
            self.gate.connections.pop(self, None)
            self.down.post(0, self.break_client, ("Socket closed",))
            self._settle()

    def break_client(self, reason: str) -> None:
        """The client finds it broken: its calls end."""
        if not self.client_open:
            return
        self.client_open = False
        self.client.peers.pop(self, None)
        calls = list(self.client_calls)
        self.client_calls.clear()
        for call in calls:
            call.connection_broke(reason)
        self._settle()

    def break_server(self) -> None:
        """The server finds it broken: the handlers of its calls are cancelled."""
        if not self.server_open:
            return
        self.server_open = False
        self.server.peers.pop(self, None)
        self.gate.connections.pop(self, None)
        for call in list(self.served_calls):
            call.client_left()
        self._settle()

    def _settle(self) -> None:
        if not self.client_open and not self.server_open:
            self.up.forget()
            self.down.forget()
            self.network.stalled.pop(self, None)

    # ------------------------------------------------------------------ silence

    def begin_silence(self) -> None:
        """Nothing is heard any more, at least in one direction."""
        now_s, settings = self.network.loop.now_s, self.network.links.settings
        for direction in (self.down, self.up):
            ends_s = silence_ends_s(direction.heard_s, now_s, settings)
            direction.heard_s = ends_s - self.network.keepalive_s
            if direction.target.process.alive:
                direction.target.at(ends_s, self._look_at, direction)

    def _look_at(self, direction: Direction) -> None:
        """Give up, as the target of the direction, when nothing has come of it for too long."""
        receives = self.client_open if direction is self.down else self.server_open
        if not receives or self not in self.network.stalled:
            return
        ends_s = direction.heard_s + self.network.keepalive_s
        if ends_s > self.network.loop.now_s + _TIMER_PRECISION_S:
            direction.target.at(ends_s, self._look_at, direction)
        elif direction is self.down:
            self.break_client("keepalive watchdog timeout")
            if self.server_open:
                self.up.post(0, self.break_server)
        else:
            self.break_server()
            if self.client_open:
                self.down.post(0, self.break_client, ("Connection reset by peer",))
