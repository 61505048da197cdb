"""Bytes of the data plane, each on a connection of its own.

MODEL. A transfer is one message of any size. An exchange is a request, which the process that it
reaches answers as soon as it runs, and the answer. Both end with `ConnectionLost` when the other
side dies, or when nothing is heard of it for the keepalive time. Connecting takes no time.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.world.connection import Direction, Node
from simulator.world.links import ConnectionLost
from simulator.world.promise import Promise


class Transfer:
    """Bytes from one process to another."""

    __slots__ = ("_ends", "arrived", "directions", "network")

    def __init__(self, source: Node, target: Node) -> None:
        self.network = source.network
        self.directions: tuple[Direction, ...] = (Direction(self, source, target),)
        self.arrived: Promise[None] = Promise(loop=self.network.loop)
        self._ends = (source, target)
        source.peers[self] = None
        target.peers[self] = None

    async def run(self, n_bytes: int) -> None:
        """See `SimulatedNetwork.transfer`."""
        source, target = self._ends
        try:
            _begin(self.directions[0], n_bytes, self._done)
            await self.arrived
        finally:
            for direction in self.directions:
                direction.forget()
            if self.network.stalled:
                self.network.stalled.pop(self, None)
            source.peers.pop(self, None)
            target.peers.pop(self, None)
        # Nothing of it is under way any more. What keeps itself is kept until garbage is collected,
        # and a large world has a million of these.
        self.directions = ()

    def _done(self) -> None:
        if not self.arrived.done():
            self.arrived.wake(None)

    def _fail(self, reason: str) -> None:
        if not self.arrived.done():
            self.arrived.set_exception(ConnectionLost(reason))

    def node_ended(self, node: Node) -> None:
        """One end has died; the other finds out, at once or after a silence."""
        source, target = self._ends
        other = target if node is source else source
        other.peers.pop(self, None)
        links, now_s = self.network.links, self.network.loop.now_s
        if links.blocked(node.port, other.port):
            wait_s = self.network.keepalive_s
        else:
            wait_s = links.latency_s(node.port, other.port, now_s)
        other.at(now_s + wait_s, self._fail, f"{node.process.name} has ended")

    def begin_silence(self) -> None:
        """The way is cut."""
        give_up_s = self.network.loop.now_s + self.network.keepalive_s
        for node in self._ends:
            node.at(give_up_s, self._give_up, give_up_s)

    def _give_up(self, after_s: float) -> None:
        if self not in self.network.stalled:
            return
        heard_s = max(direction.heard_s for direction in self.directions)
        if heard_s <= after_s - self.network.keepalive_s:
            self._fail("nothing was heard of the other side for too long")


class Exchange(Transfer):
    """A request and its answer, whose bytes the server tells. Awaited by the client."""

    __slots__ = ("_answer",)

    def __init__(
        self, client: Node, server: Node, answer: Callable[[], int], timeout_s: float
    ) -> None:
        super().__init__(client, server)
        #: Nothing once it has been called.
        self._answer: Callable[[], int] | None = answer
        client.deadlines.add(self.network.loop.now_s + timeout_s, self)

    def _done(self) -> None:
        """The request has arrived; called as the server."""
        client, server = self._ends
        answer, self._answer = self._answer, None
        if answer is None or self.arrived.done() or not client.process.alive:
            return
        n_bytes = answer()
        self.network.note(server.process.name, "transfer", f"{n_bytes} to {client.process.name}")
        back = Direction(self, server, client)
        self.directions += (back,)
        _begin(back, n_bytes, super()._done)

    def has_ended(self) -> bool:
        """See `Expiring`: it is for the request to arrive in time; the answer then comes, or its
        connection breaks."""
        return self._answer is None or self.arrived.done()

    def deadline_passed(self) -> None:
        """See `Expiring`."""
        self._fail(f"{self._ends[1].process.name} gives no answer")


def _begin(direction: Direction, n_bytes: int, deliver: Callable[[], None]) -> None:
    send = direction.hold if direction.silent() else direction.post
    send(n_bytes, deliver)
