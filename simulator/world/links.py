"""When a message arrives: latency, bandwidth, loss and slowness of the links between hosts.

MODEL. A message takes the latency of its way, drawn from the seed, and its bytes at the bandwidth.
Messages up to `small_bytes_max` slip between the packets of larger ones; larger ones queue at the
port of the sending and of the receiving host, first come first served. A lost packet costs a time
of retransmission (which doubles if it is lost again), never the message: this is TCP. A cut or a
silent host stops messages; it is for the connection to keep them until the way is open. Processes
of one host always reach each other. What begins while a link is slow, or is lost, keeps the time
of arrival it was given, even if the link is mended meanwhile. Not modelled: congestion windows,
packets, switches between hosts.

Pure: the time is an argument, and the only chance is the source of randomness that it is given.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.world.process import Host


class ConnectionLost(OSError):
    """A transfer broke: the other process died, or nothing was heard of it for too long."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What the network is like without faults. Times in seconds."""

    #: Shortest and longest way of a message between two hosts.
    latency_s: tuple[float, float] = (0.0001, 0.0005)
    #: Draws the way of a message where it is not uniform between these two.
    latency_draw: Callable[[random.Random], float] | None = None
    #: The way within a host.
    loopback_s: float = 0.00002
    #: Of each host, in each direction.
    bytes_per_s: float = 1.25e9
    #: Part of all packets that is lost without any fault.
    loss: float = 0.0
    #: Messages up to this size do not queue behind larger ones.
    small_bytes_max: int = 64 * 1024
    #: What one message costs the process that receives it; it handles one after the other. 0 turns
    #: this off.
    message_cost_s: float = 0.0002
    #: The first retransmission of a lost packet; each further one takes twice as long.
    retransmission_s: float = 0.2
    #: As the real channels and servers are configured: a peer that is silent is found after at
    #: most interval + timeout.
    keepalive_interval_s: float = 30.0
    keepalive_timeout_s: float = 10.0
    #: How long one attempt to connect may take, and the pauses between attempts.
    connect_timeout_s: float = 2.0
    reconnect_backoff_min_s: float = 0.1
    reconnect_backoff_max_s: float = 1.0
    #: Calls that one server runs at a time; more are refused.
    concurrent_calls_max: int = 20_000
    #: Bytes of a stream that may be under way or unread before its writer waits.
    stream_window_bytes: int = 1024 * 1024


@dataclass(eq=False, slots=True)
class Port:
    """What connects a host to the network: an address."""

    host: Host
    #: When what is queued has left, and has come in.
    sends_until_s: float = 0.0
    receives_until_s: float = 0.0
    #: Nothing gets in or out.
    silent: bool = False
    #: Faults of this host, all together.
    slowness: float = 1.0
    extra_latency_s: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Cut:
    """Messages from `sources` do not reach `targets`; with `both`, nor back."""

    sources: frozenset[str]
    targets: frozenset[str]
    both: bool

    def stops(self, source: str, target: str) -> bool:
        """Whether a message between the hosts of these names is stopped."""
        return (source in self.sources and target in self.targets) or (
            self.both and source in self.targets and target in self.sources
        )


@dataclass(frozen=True, slots=True)
class Weakness:
    """What is wrong with the links of some hosts: they are slow, or lose packets."""

    hosts: frozenset[str]
    slowness: float = 1.0
    extra_latency_s: float = 0.0
    loss: float = 0.0


_RETRANSMISSIONS_MAX = 8
_BYTES_PER_LOSS_DRAW = 1024 * 1024
_LOSS_DRAWS_MAX = 64


class Links:
    """All links of a world."""

    def __init__(self, settings: LinkSettings, source: random.Random) -> None:
        self.settings = settings
        #: Whether any host is silent or cut off; `blocked` need not be asked otherwise.
        self.interrupted = False
        self._source = source
        self._random = source.random
        self._ports: dict[str, Port] = {}
        #: Whether there is an address that is nobody's any more.
        self._addresses_left = False
        self._cuts: dict[int, Cut] = {}
        self._weaknesses: dict[int, Weakness] = {}
        self._tokens = itertools.count(1)

    def port(self, host: Host) -> Port:
        """The port of a host."""
        port = self._ports.get(host.name)
        if port is None:
            port = self._ports[host.name] = Port(host)
            self._weigh(port)
        return port

    # ------------------------------------------------------------------ faults

    def cut(self, sources: Sequence[Host], targets: Sequence[Host], *, both: bool) -> int:
        """Stop messages; returns what `heal` takes."""
        token = next(self._tokens)
        names = frozenset(host.name for host in sources)
        self._cuts[token] = Cut(names, frozenset(host.name for host in targets), both)
        self._look_for_interruptions()
        return token

    def weaken(
        self,
        hosts: Sequence[Host],
        *,
        slowness: float = 1.0,
        extra_latency_s: float = 0.0,
        loss: float = 0.0,
    ) -> int:
        """Multiply the time that messages of these hosts take, add to it, lose packets, both ways;
        returns what `heal` takes. The slower of two that slow a host counts; the rest adds up."""
        token = next(self._tokens)
        names = frozenset(host.name for host in hosts)
        self._weaknesses[token] = Weakness(names, slowness, extra_latency_s, loss)
        for host in hosts:
            self._weigh(self.port(host))
        return token

    def heal(self, token: int) -> None:
        """End that fault; nothing happens when it has ended already."""
        self._cuts.pop(token, None)
        if self._weaknesses.pop(token, None) is not None:
            for port in self._ports.values():
                self._weigh(port)
        self._look_for_interruptions()

    def heal_all(self) -> None:
        """End all cuts, slowness and loss. Hosts that are silent stay so."""
        for token in [*self._cuts, *self._weaknesses]:
            self.heal(token)

    def silence(self, host: Host, silent: bool) -> None:
        """No message comes from this host or reaches it, until it is heard again."""
        self.port(host).silent = silent
        self._look_for_interruptions()

    def change_address(self, host: Host) -> Port:
        """Give the host another port; nothing reaches it, or comes from it, by the old one."""
        port = self.port(host)
        self._ports[host.name] = Port(host, silent=port.silent)
        self._weigh(self._ports[host.name])
        port.silent = True
        self._addresses_left = True
        self._look_for_interruptions()
        return self._ports[host.name]

    def _weigh(self, port: Port) -> None:
        port.slowness, port.extra_latency_s, kept = 1.0, 0.0, 1.0 - self.settings.loss
        for weakness in self._weaknesses.values():
            if port.host.name in weakness.hosts:
                port.slowness = max(port.slowness, weakness.slowness)
                port.extra_latency_s += weakness.extra_latency_s
                kept *= 1.0 - weakness.loss
        port.loss = 1.0 - kept

    def _look_for_interruptions(self) -> None:
        silent = self._addresses_left or any(port.silent for port in self._ports.values())
        self.interrupted = silent or bool(self._cuts)

    def blocked(self, source: Port, target: Port) -> bool:
        """Whether a message from one to the other would not arrive now."""
        if source is target:
            return False
        if source.silent or target.silent:
            return True
        names = source.host.name, target.host.name
        return any(cut.stops(*names) for cut in self._cuts.values())

    # ------------------------------------------------------------------ arithmetic

    def arrival_s(self, source: Port, target: Port, n_bytes: int, now_s: float) -> float:
        """When a message that is sent now over an open way arrives."""
        settings = self.settings
        if source is target:
            return now_s + settings.loopback_s
        if settings.latency_draw is not None:
            latency_s = settings.latency_draw(self._source)
        else:
            low_s, high_s = settings.latency_s
            latency_s = low_s + (high_s - low_s) * self._random()
        factor = source.slowness if source.slowness > target.slowness else target.slowness
        extra_s = source.extra_latency_s + target.extra_latency_s
        if factor != 1.0:
            latency_s *= factor
        if source.loss or target.loss:
            extra_s += self._retransmission_s(source, target, n_bytes)
        duration_s = n_bytes * factor / settings.bytes_per_s
        if n_bytes <= settings.small_bytes_max:
            return now_s + latency_s + duration_s + extra_s
        source.sends_until_s = max(now_s, source.sends_until_s) + duration_s
        first_s = source.sends_until_s - duration_s + latency_s
        target.receives_until_s = max(first_s, target.receives_until_s) + duration_s
        return target.receives_until_s + extra_s

    def latency_s(self, source: Port, target: Port, now_s: float) -> float:
        """How long the shortest message takes from one to the other."""
        return self.arrival_s(source, target, 0, now_s) - now_s

    def _retransmission_s(self, source: Port, target: Port, n_bytes: int) -> float:
        probability = 1.0 - (1.0 - source.loss) * (1.0 - target.loss)
        delay_s = 0.0
        for _ in range(min(1 + n_bytes // _BYTES_PER_LOSS_DRAW, _LOSS_DRAWS_MAX)):
            again_s = self.settings.retransmission_s
            for _ in range(_RETRANSMISSIONS_MAX):
                if self._random() >= probability:
                    break
                delay_s += again_s
                again_s *= 2
        return delay_s


def silence_ends_s(heard_s: float, silent_from_s: float, settings: LinkSettings) -> float:
    """When a peer that was last heard at `heard_s`, and is silent from `silent_from_s` on, is
    given up: pings were answered until then, the next one is not."""
    pings = max(0.0, silent_from_s - heard_s) // settings.keepalive_interval_s
    answered_s = heard_s + pings * settings.keepalive_interval_s
    return answered_s + settings.keepalive_interval_s + settings.keepalive_timeout_s
