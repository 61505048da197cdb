"""How a modelled task reads its inputs.

MODEL: partitions on the task's own host are read from its disk at once; others are fetched with one
call for each edge and holder, one call after another: a request, and the bytes of all partitions
together. A holder that is not there, does not answer or breaks off is asked again, with the real
reader's pauses, until the real reader's timeout. What a holder does not have (or has damaged) is
lost; then all other holders are asked once, as the real survey does, so that all lost partitions
are named together. Not modelled: the real reader's second call beside the first, progress within
a broken transfer, bytes that wait to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from holdover.ids import AttemptKey, partition_name
from holdover.v1.taskmanager_pb2 import InputGate, RunTask
from shuffle.environment import FetchLimits
from shuffle.errors import PartitionLost, PartitionUnreachable
from shuffle.survey import SURVEY_TIMEOUT_S
from simulator.observer import PartitionRead
from simulator.world.connection import Node
from simulator.world.links import ConnectionLost
from simulator.world.partitions import NOTHING_FOUND, ModelledPartitionServer, partitions_on
from simulator.world.process import Process
from simulator.world.promise import Promise
from simulator.world.rows import Rows
from simulator.world.transfers import Exchange

if TYPE_CHECKING:
    from simulator.world.world import World

#: What asking for one partition takes on the way.
_REQUEST_BYTES = 100
#: Edges whose holders are remembered.
_EDGES_KEPT_MAX = 16
_RETRY_PAUSE_FIRST_S = 0.05
_RETRY_PAUSE_MAX_S = 1.0
_CALL_TIMEOUT_S = FetchLimits().call_timeout_s


@dataclass(slots=True)
class InputRows:
    """What an attempt has read.

    Attributes:
        by_input: rows by number of the vertex's input.
        rows: all rows of all inputs.
        partitions: how many partitions were read.
    """

    by_input: dict[int, Rows] = field(default_factory=dict)
    rows: int = 0
    partitions: int = 0


class LostInputs(Exception):
    """Partitions that are lost: the first that was missed, and all others that are."""

    def __init__(self, first: PartitionLost, names: Sequence[str]) -> None:
        super().__init__(str(first))
        self.first = first
        self.names = tuple(names)


class _Held(NamedTuple):
    """Partitions of one edge that one holder has, with their places among all of the edge."""

    location: int
    names: list[str]
    places: list[int]


class InputFetcher:
    """Reads all inputs of one attempt."""

    def __init__(
        self, world: World, process: Process, key: AttemptKey, run: RunTask, retry_timeout_s: float
    ) -> None:
        self.network = world.network
        self.process = process
        self.storage = world.storages.of(process.host)
        self.key = key
        self.run = run
        self.observers = [each for each in world.observers if each.sees_reads]
        self._retry_timeout_s = retry_timeout_s

    async def read(self) -> InputRows:
        """All rows of all inputs. Raises LostInputs, PartitionUnreachable."""
        inputs = InputRows()
        gates = iter(self.run.deployment.inputs)
        for gate in gates:
            questions = _Questions(self, gate)
            lost = await self._ask_all(questions)
            if lost:
                left = chain([questions], (_Questions(self, other) for other in gates))
                names = [*questions.names_lost(lost), *await self._survey(left)]
                raise LostInputs(PartitionLost(names[0], next(iter(lost.values()))), names)
            if gate.subtasks:
                inputs.by_input.setdefault(gate.input, Rows())
                inputs.partitions += len(gate.subtasks)
            # In the order of the producers, whoever holds their partitions.
            for place in sorted(questions.placed):
                rows = questions.placed[place]
                inputs.by_input[gate.input].extend(rows)
                inputs.rows += len(rows)
        return inputs

    async def _ask_all(self, questions: _Questions) -> dict[int, str]:
        """Ask each holder until it answers; what the first has lost that has lost anything."""
        stop = await questions.ask()
        while isinstance(stop, ConnectionLost):
            if questions.asked_for_s() >= self._retry_timeout_s:
                name, address = questions.held.names[0], questions.address
                raise PartitionUnreachable(name, address, str(stop)) from stop
            await asyncio.sleep(questions.pause_s)
            questions.pause_s = min(questions.pause_s * 2, _RETRY_PAUSE_MAX_S)
            stop = await questions.ask(again=True)
        return stop

    async def _survey(self, edges: Iterable[_Questions]) -> list[str]:
        """Names of lost partitions among those that were not asked for; silence says nothing."""
        lost: list[str] = []
        try:
            async with asyncio.timeout(SURVEY_TIMEOUT_S):
                for questions in edges:
                    while stop := await questions.ask():
                        if not isinstance(stop, ConnectionLost):
                            lost += questions.names_lost(stop)
        except TimeoutError:
            return lost
        return lost


class _Questions:
    """What a reader asks the holders of one edge, one after another.

    An answer asks the next holder at once: a reader asks thousands, and need not wake for each.
    """

    def __init__(self, fetcher: InputFetcher, gate: InputGate) -> None:
        self._fetcher = fetcher
        self._gate = gate
        self._network = fetcher.network
        self._host = fetcher.process.host
        self._node: Node | None = None
        self._left = iter(
            _holders(
                (fetcher.key.job_id, gate.source_vertex_id, gate.source_output),
                tuple(gate.subtasks),
                tuple(gate.attempts),
                tuple(gate.epochs),
                tuple(gate.location_indexes),
            )
        )
        self._range = gate.first_subpartition, gate.end_subpartition
        #: What has been read, by place among all partitions of the edge.
        self.placed: dict[int, Rows] = {}
        #: Who was asked last, and where.
        self.held = _Held(0, [], [])
        self.address = ""
        self._asked_since_s = 0.0
        #: How long to wait before that one is asked again.
        self.pause_s = 0.0
        self._exchange: Exchange | None = None
        #: Until when the request must have arrived; whether that is watched.
        self._until_s = 0.0
        self._watched = False
        self._server: ModelledPartitionServer | None = None
        self._found = NOTHING_FOUND
        self._stop: Promise[ConnectionLost | dict[int, str]]

    async def ask(self, *, again: bool = False) -> ConnectionLost | dict[int, str]:
        """Ask the holders that are left, at first that of the last question with `again`.

        Returns when one cannot be reached, with why; when one has lost something, with why by place
        in the question; or with nothing, when all have answered.
        """
        self._stop = Promise(loop=self._network.loop)
        self._watched = False
        try:
            if again:
                self._ask()
            else:
                self._ask_next()
            return await self._stop
        finally:
            if self._exchange is not None:
                self._exchange.abandon()

    def look_at_deadline(self, deadline: _Deadline) -> None:
        """Give up a request that has not arrived in time, or look again when the next one must."""
        assert self._node is not None
        assert self._exchange is not None
        now_s = self._network.loop.now_s
        if self._until_s > now_s:
            self._node.deadlines.add(self._until_s, deadline)
        elif self._exchange.has_ended():
            # The answer is on its way, and nobody is asked before it is here.
            self._node.deadlines.add(now_s + _CALL_TIMEOUT_S, deadline)
        else:
            self._exchange.deadline_passed()

    def asked_for_s(self) -> float:
        """How long the last one has been asked, by the clock of the reader's host."""
        return self._host.local_s(self._network.loop.now_s) - self._asked_since_s

    def names_lost(self, lost: Iterable[int]) -> list[str]:
        """Names of partitions by their places in the last question."""
        return [self.held.names[place] for place in lost]

    # Each of these goes on in another one as its last act, or wakes who waits; see `Promise.wake`.

    def _ask_next(self) -> None:
        for held in self._left:
            self.held = held
            self.address = self._gate.locations[held.location].data_address
            self._asked_since_s = self._host.local_s(self._network.loop.now_s)
            self.pause_s = _RETRY_PAUSE_FIRST_S
            self._ask()
            return
        self._stop.wake({})

    def _ask(self) -> None:
        run, names = self._fetcher.run, self.held.names
        if self.address == run.data_address:
            # These names are whole and safe: they were made of a deployment.
            bases = tuple([f"{run.shuffle_directory}/{name}" for name in names])
            self._found = partitions_on(self._fetcher.storage, bases, *self._range)
            if self._fetcher.observers:
                self._tell()
            self._over(None)
            return
        listener = self._network.listener(self.address)
        if listener is None or not isinstance(listener.handler, ModelledPartitionServer):
            self._stop.wake(ConnectionLost(f"nobody listens at {self.address}"))
            return
        if self._node is None:
            self._node = self._network.node(self._fetcher.process)
        self._server = listener.handler
        self._exchange = self._network.ask(
            self._node,
            listener.node,
            _REQUEST_BYTES * len(names),
            self._answer,
            self._stop,
            self._over,
        )
        self._until_s = self._network.loop.now_s + _CALL_TIMEOUT_S
        if not self._watched:
            self._watched = True
            self._node.deadlines.add(self._until_s, _Deadline(self, self._stop))

    def _answer(self) -> int:
        """Called as the holder."""
        server = self._server
        assert server is not None
        bases = tuple(map(server.lookup, self.held.names))
        self._found = found = partitions_on(server.storage, bases, *self._range)
        if self._fetcher.observers:
            self._tell()
        return found.bytes

    def _over(self, error: ConnectionLost | None) -> None:
        """See `Over`."""
        _, rows, lost = self._found
        if error is not None:
            self._stop.set_result(error)
        elif lost:
            self._stop.wake(lost)
        else:
            for place in rows:
                self.placed[self.held.places[place]] = rows[place]
            self._ask_next()

    def _tell(self) -> None:
        lost = self._found.lost
        reads = [
            PartitionRead(self._fetcher.key, name, self.address, place not in lost)
            for place, name in enumerate(self.held.names)
        ]
        for observer in self._fetcher.observers:
            observer.partitions_read(reads)


class _Deadline:
    """Watches the deadlines of questions, each of which is later than the one before, until nobody
    waits. An entry for each question would be kept for long after its answer."""

    __slots__ = ("_questions", "_waiter")

    def __init__(self, questions: _Questions, waiter: Promise[Any]) -> None:
        self._questions = questions
        self._waiter = waiter

    def has_ended(self) -> bool:
        """See `Expiring`."""
        return self._waiter.done()

    def deadline_passed(self) -> None:
        """See `Expiring`."""
        self._questions.look_at_deadline(self)


@lru_cache(maxsize=_EDGES_KEPT_MAX)
def _holders(
    source: tuple[str, str, int],
    subtasks: tuple[int, ...],
    attempts: tuple[int, ...],
    epochs: tuple[int, ...],
    locations: tuple[int, ...],
) -> list[_Held]:
    """What each location holds of an edge, in the order in which the locations are named. All
    subtasks of a vertex read the same partitions."""
    job, vertex, output = source
    held: dict[int, _Held] = {}
    producers = zip(subtasks, attempts, epochs, locations, strict=True)
    for place, (subtask, attempt, epoch, location) in enumerate(producers):
        if location not in held:
            held[location] = _Held(location, [], [])
        key = AttemptKey(job, vertex, subtask, attempt, epoch)
        held[location].names.append(partition_name(key, output))
        held[location].places.append(place)
    return list(held.values())
