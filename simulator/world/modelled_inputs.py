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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from holdover.ids import AttemptKey, partition_name
from holdover.v1.taskmanager_pb2 import InputGate, RunTask
from shuffle.environment import FetchLimits
from shuffle.errors import PartitionLost, PartitionUnreachable
from shuffle.partition_name import partition_base
from shuffle.survey import SURVEY_TIMEOUT_S
from simulator.observer import PartitionRead
from simulator.world.links import ConnectionLost
from simulator.world.partitions import FoundPartition, ModelledPartitionServer, partition_on
from simulator.world.process import Process
from simulator.world.rows import Rows

if TYPE_CHECKING:
    from simulator.world.world import World

#: What asking for one partition takes on the way.
_REQUEST_BYTES = 100
_NAMES_KEPT_MAX = 1 << 16
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


@dataclass(frozen=True, slots=True)
class _Call:
    """What one holder is asked for one edge."""

    input: int
    address: str
    names: list[str]
    #: Where each stands among the partitions of its edge.
    places: list[int]
    first: int
    end: int


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

    async def read(self) -> InputRows:
        """All rows of all inputs. Raises LostInputs, PartitionUnreachable."""
        inputs = InputRows()
        gates = [list(self._calls(gate)) for gate in self._run.deployment.inputs]
        calls = [call for of_gate in gates for call in of_gate]
        answers: list[list[FoundPartition]] = []
        for number, call in enumerate(calls):
            found = await self._fetch(call)
            lost = [partition for partition in found if partition.lost]
            if lost:
                names = [partition.name for partition in lost]
                names += await self._survey(calls[number + 1 :])
                raise LostInputs(PartitionLost(lost[0].name, lost[0].lost), names)
            answers.append(found)
        answered = iter(answers)
        for of_gate in gates:
            self._take(inputs, [(call, next(answered)) for call in of_gate])
        return inputs

    def _take(
        self, inputs: InputRows, answers: Sequence[tuple[_Call, list[FoundPartition]]]
    ) -> None:
        """The rows of one edge, in the order of its producers, whoever holds their partitions."""
        placed: dict[int, FoundPartition] = {}
        for call, found in answers:
            placed.update(zip(call.places, found, strict=True))
            inputs.by_input.setdefault(call.input, Rows())
        for place in sorted(placed):
            inputs.by_input[answers[0][0].input].extend(placed[place].rows)
            inputs.rows += len(placed[place].rows)
        inputs.partitions += len(placed)

    def _calls(self, gate: InputGate) -> Iterator[_Call]:
        """One for each holder, in the order in which the holders are listed."""
        names: dict[int, list[str]] = {}
        places: dict[int, list[int]] = {}
        job, vertex, output = self._key.job_id, gate.source_vertex_id, gate.source_output
        producers = zip(
            gate.subtasks, gate.attempts, gate.epochs, gate.location_indexes, strict=True
        )
        for place, (subtask, attempt, epoch, location) in enumerate(producers):
            name = _name_of(job, vertex, output, subtask, attempt, epoch)
            names.setdefault(location, []).append(name)
            places.setdefault(location, []).append(place)
        for location, held in names.items():
            address = gate.locations[location].data_address
            first, end = gate.first_subpartition, gate.end_subpartition
            yield _Call(gate.input, address, held, places[location], first, end)

    async def _fetch(self, call: _Call) -> list[FoundPartition]:
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

    async def _ask(self, call: _Call) -> list[FoundPartition]:
        if call.address == self._run.data_address:
            found = self._find_here(call)
            self._tell(call, found)
            return found
        holder, server = self._holder(call.address)
        answers: list[FoundPartition] = []

        def answer() -> int:
            answers.extend(server.find(call.names, call.first, call.end))
            self._tell(call, answers)
            return sum(partition.bytes for partition in answers)

        request_bytes = _REQUEST_BYTES * len(call.names)
        await self._world.network.exchange(
            self._process, holder, request_bytes, answer, _CALL_TIMEOUT_S
        )
        return answers

    def _find_here(self, call: _Call) -> list[FoundPartition]:
        storage = self._world.storages.of(self._process.host)
        directory = self._run.shuffle_directory
        return [
            partition_on(storage, name, partition_base(directory, name), call.first, call.end)
            for name in call.names
        ]

    def _holder(self, address: str) -> tuple[Process, ModelledPartitionServer]:
        listener = self._world.network.listener(address)
        if listener is None or not isinstance(listener[1], ModelledPartitionServer):
            raise ConnectionLost(f"nobody listens at {address}")
        return listener[0], listener[1]

    async def _survey(self, calls: Sequence[_Call]) -> list[str]:
        """Names of lost partitions among those that were not asked for; silence says nothing."""
        lost: list[str] = []
        try:
            async with asyncio.timeout(SURVEY_TIMEOUT_S):
                for call in calls:
                    try:
                        found = await self._ask(call)
                    except ConnectionLost:
                        continue
                    lost += [partition.name for partition in found if partition.lost]
        except TimeoutError:
            return lost
        return lost

    def _tell(self, call: _Call, found: Sequence[FoundPartition]) -> None:
        observers = [observer for observer in self._world.observers if observer.sees_reads]
        if observers:
            reads = [
                PartitionRead(self._key, partition.name, call.address, not partition.lost)
                for partition in found
            ]
            for observer in observers:
                observer.partitions_read(reads)


@lru_cache(maxsize=_NAMES_KEPT_MAX)
def _name_of(job: str, vertex: str, output: int, subtask: int, attempt: int, epoch: int) -> str:
    """Many attempts read the same partitions."""
    return partition_name(AttemptKey(job, vertex, subtask, attempt, epoch), output)
