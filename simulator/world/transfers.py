"""Bytes of the data plane, each on a connection of its own.

MODEL. A transfer is one message of any size. An exchange is a request, which the process that it
reaches answers as soon as it runs, and the answer. Both end with `ConnectionLost` when the other
side dies, or when nothing is heard of it for the keepalive time. Connecting takes no time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.world.connection import Direction, Node
from simulator.world.links import ConnectionLost
from simulator.world.promise import Promise

#: Told how it ended: with nothing, as the last act of the callback in which all has arrived (see
#: `Promise.wake`), or with why it broke, whosever callback that is.
Over = Callable[[ConnectionLost | None], None]


class Transfer:
    """Bytes from one process to another.

    Nothing is told when `waiter` is done: nobody waits any more. The waiter then abandons it.
    """

    __slots__ = ("_ends", "_over", "_waiter", "directions", "network")

    def __init__(self, source: Node, target: Node, waiter: Promise[Any], over: Over) -> None:
        self.network = source.network
        self.directions: tuple[Direction, ...] = (Direction(self, source, target),)
        self._ends = (source, target)
        self._waiter = waiter
        #: Nothing when it is over.
        self._over: Over | None = over
        source.peers[self] = None
        target.peers[self] = None

    def begin(self, n_bytes: int) -> None:
        """Send, or as soon as the source is heard again."""
        direction = self.directions[0]
        send = direction.hold if direction.silent() else direction.post
        send(n_bytes, self._done)

    def abandon(self) -> None:
        """Let go of what is under way. Repeating changes nothing."""
        self._over = None
        if self in self.network.stalled:
            del self.network.stalled[self]
            for direction in self.directions:
                direction.forget()
        source, target = self._ends
        source.peers.pop(self, None)
        target.peers.pop(self, None)
        # What keeps itself is kept until garbage is collected, and a large world has a million of
        # these.
        self.directions = ()

    def _done(self) -> None:
        over = self._over
        if over is not None and not self._waiter.done():
            self.abandon()
            over(None)

    def _fail(self, reason: str) -> None:
        over = self._over
        if over is not None and not self._waiter.done():
            self.abandon()
            over(ConnectionLost(reason))

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
        if self._over is None or self not in self.network.stalled:
            return
        heard_s = max(direction.heard_s for direction in self.directions)
        if heard_s <= after_s - self.network.keepalive_s:
            self._fail("nothing was heard of the other side for too long")


class Exchange(Transfer):
    """A request and its answer, whose bytes the server tells. The client begins it,
    and waits for it.
    """

    __slots__ = ("_answer",)

    def __init__(
        self,
        client: Node,
        server: Node,
        n_bytes: int,
        answer: Callable[[], int],
        waiter: Promise[Any],
        over: Over,
    ) -> None:
        super().__init__(client, server, waiter, over)
        #: Nothing once it has been called.
        self._answer: Callable[[], int] | None = answer
        self.directions[0].post(n_bytes, self._asked)

    def _asked(self) -> None:
        """The request has arrived; called as the server."""
        client, server = self._ends
        answer, self._answer = self._answer, None
        if answer is None or self._waiter.done() or not client.process.alive:
            return
        n_bytes = answer()
        self.network.note(server.process.name, "transfer", f"{n_bytes} to {client.process.name}")
        back = Direction(self, server, client)
        self.directions += (back,)
        back.post(n_bytes, self._done)

    def has_ended(self) -> bool:
        """See `Expiring`: it is for the request to arrive in time; the answer then comes, or its
        connection breaks."""
        return self._answer is None or self._over is None

    def deadline_passed(self) -> None:
        """See `Expiring`."""
        self._fail(f"{self._ends[1].process.name} gives no answer")


class Arrival(Promise[None]):
    """What one who begins a single transfer or exchange waits for."""

    __slots__ = ()

    def settle(self, error: ConnectionLost | None) -> None:
        """See `Over`."""
        if error is None:
            self.wake(None)
        else:
            self.set_exception(error)
