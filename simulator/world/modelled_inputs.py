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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from holdover.ids import AttemptKey, partition_name
from holdover.v1.taskmanager_pb2 import InputGate, RunTask
from shuffle.environment import FetchLimits
from shuffle.errors import PartitionLost, PartitionUnreachable
from shuffle.survey import SURVEY_TIMEOUT_S
from simulator.observer import PartitionRead
from simulator.world.links import ConnectionLost
from simulator.world.partitions import FoundPartitions, ModelledPartitionServer, partitions_on
from simulator.world.process import Process
from simulator.world.rows import Rows

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


class _Call(NamedTuple):
    """What one holder is asked for one edge."""

    input: int
    address: str
    held: _Held
    first: int
    end: int

    @property
    def names(self) -> list[str]:
        """The partitions that it is asked for."""
        return self.held.names


class InputFetcher:
    """Reads all inputs of one attempt."""

    def __init__(
        self, world: World, process: Process, key: AttemptKey, run: RunTask, retry_timeout_s: float
    ) -> None:
        self._world = world
        self._process = process
        self._key = key
        self._run = run
        self._retry_timeout_s = retry_timeout_s
        self._observers = [each for each in world.observers if each.sees_reads]

    async def read(self) -> InputRows:
        """All rows of all inputs. Raises LostInputs, PartitionUnreachable."""
        inputs = InputRows()
        gates = iter(self._run.deployment.inputs)
        for gate in gates:
            calls = self._calls(gate)
            placed: dict[int, Rows] = {}
            for call in calls:
                found = await self._fetch(call)
                if found.lost:
                    others = chain(calls, chain.from_iterable(map(self._calls, gates)))
                    names = [*_lost_names(call, found), *await self._survey(others)]
                    why = next(iter(found.lost.values()))
                    raise LostInputs(PartitionLost(names[0], why), names)
                for place, rows in found.rows.items():
                    placed[call.held.places[place]] = rows
            if gate.subtasks:
                inputs.by_input.setdefault(gate.input, Rows())
                inputs.partitions += len(gate.subtasks)
            # In the order of the producers, whoever holds their partitions.
            for place in sorted(placed):
                inputs.by_input[gate.input].extend(placed[place])
                inputs.rows += len(placed[place])
        return inputs

    def _calls(self, gate: InputGate) -> Iterator[_Call]:
        """One for each holder, in the order in which the holders are listed."""
        held_by = _holders(
            (self._key.job_id, gate.source_vertex_id, gate.source_output),
            tuple(gate.subtasks),
            tuple(gate.attempts),
            tuple(gate.epochs),
            tuple(gate.location_indexes),
        )
        first, end = gate.first_subpartition, gate.end_subpartition
        for held in held_by:
            yield _Call(gate.input, gate.locations[held.location].data_address, held, first, end)

    async def _fetch(self, call: _Call) -> FoundPartitions:
        """What the holder has, asked for until it answers."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        pause_s = _RETRY_PAUSE_FIRST_S
        while True:
            try:
                return await self._ask(call)
            except ConnectionLost as error:
                if loop.time() - began_s >= self._retry_timeout_s:
                    raise PartitionUnreachable(call.names[0], call.address, str(error)) from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _RETRY_PAUSE_MAX_S)

    async def _ask(self, call: _Call) -> FoundPartitions:
        if call.address == self._run.data_address:
            found = self._find_here(call)
            self._tell(call, found)
            return found
        holder, server = self._holder(call.address)
        answers: list[FoundPartitions] = []

        def answer() -> int:
            found = server.find(call.names, call.first, call.end)
            answers.append(found)
            self._tell(call, found)
            return found.bytes

        request_bytes = _REQUEST_BYTES * len(call.names)
        await self._world.network.exchange(
            self._process, holder, request_bytes, answer, _CALL_TIMEOUT_S
        )
        return answers[0]

    def _find_here(self, call: _Call) -> FoundPartitions:
        storage = self._world.storages.of(self._process.host)
        directory = self._run.shuffle_directory
        # These names are whole and safe: they were made of a deployment.
        bases = tuple([f"{directory}/{name}" for name in call.names])
        return partitions_on(storage, bases, call.first, call.end)

    def _holder(self, address: str) -> tuple[Process, ModelledPartitionServer]:
        listener = self._world.network.listener(address)
        if listener is None or not isinstance(listener[1], ModelledPartitionServer):
            raise ConnectionLost(f"nobody listens at {address}")
        return listener[0], listener[1]

    async def _survey(self, calls: Iterable[_Call]) -> list[str]:
        """Names of lost partitions among those that were not asked for; silence says nothing."""
        lost: list[str] = []
        try:
            async with asyncio.timeout(SURVEY_TIMEOUT_S):
                for call in calls:
                    try:
                        found = await self._ask(call)
                    except ConnectionLost:
                        continue
                    lost += _lost_names(call, found)
        except TimeoutError:
            return lost
        return lost

    def _tell(self, call: _Call, found: FoundPartitions) -> None:
        if self._observers:
            reads = [
                PartitionRead(self._key, name, call.address, place not in found.lost)
                for place, name in enumerate(call.names)
            ]
            for observer in self._observers:
                observer.partitions_read(reads)


def _lost_names(call: _Call, found: FoundPartitions) -> list[str]:
    return [call.names[place] for place in found.lost]


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
