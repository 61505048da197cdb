"""Serving modelled partitions.

MODEL: a server listens at its port in the world's network and lives with its TaskManager. Who
fetches asks one server once for all partitions that it needs from there; the server looks each of
them up as the real one does, and reads rows and sizes from its host's storage, with the faults of
that storage. What the bytes take on the way is the network's. Not modelled: time on the holder's
disk, several calls for one partition, blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import PartitionLookup, PartitionReceiver, PartitionServer
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.errors import PartitionDamaged, PartitionNotFound
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, partition_base
from simulator.world.disk import ProcessDisk
from simulator.world.modelled_puts import PutPartition, TakenPartitions, put_attempt
from simulator.world.process import Process
from simulator.world.rows import DamagedRows, Rows, StoredPartition, stored_partition

if TYPE_CHECKING:
    from simulator.world.storage import SimulatedStorage
    from simulator.world.world import World

_NONE = "no finished partition of this name"


class FoundPartitions(NamedTuple):
    """What a holder has of the partitions that it was asked for, by their places in the question.

    Attributes:
        bytes: of the range that was asked for, of all of them.
        rows: of that range, of those that have any; not to be changed.
        lost: those that are lost, and why.
    """

    bytes: int
    rows: dict[int, Rows]
    lost: dict[int, str]


NOTHING_FOUND = FoundPartitions(0, {}, {})


@dataclass(frozen=True, slots=True)
class StoredTogether:
    """Partitions that are asked for together, by many who each want another range. Most have
    nothing in most ranges.

    Attributes:
        partitions: those that are whole, by place.
        spread: those of them that have no rows: their bytes are in all ranges.
        targets: the subpartitions in which the others have rows, ascending, each with the place of
            the partition that has them.
        lost: as in `FoundPartitions`.
    """

    partitions: dict[int, StoredPartition]
    spread: list[StoredPartition]
    targets: list[tuple[int, int]]
    lost: dict[int, str]

    @classmethod
    def of(cls, partitions: dict[int, StoredPartition], lost: dict[int, str]) -> StoredTogether:
        """Put partitions together."""
        targets: list[tuple[int, int]] = []
        spread = []
        for place, partition in partitions.items():
            if partition.targets:
                targets += zip(partition.targets, repeat(place))
            else:
                spread.append(partition)
        targets.sort()
        return cls(partitions, spread, targets, lost)

    def part(self, first: int, end: int) -> FoundPartitions:
        """What there is of subpartitions `first <= s < end`."""
        n_bytes, rows = 0, {}
        for partition in self.spread:
            n_bytes += partition.part(first, end)[1]
        low = bisect_left(self.targets, (first,))
        high = bisect_left(self.targets, (end,), low)
        for _, place in self.targets[low:high]:
            if place not in rows:
                rows[place], part_bytes = self.partitions[place].part(first, end)
                n_bytes += part_bytes
        return FoundPartitions(n_bytes, rows, self.lost)


class ModelledPartitionServers:
    """The way to serve partitions in a world. See `PartitionServers`."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    async def start(
        self,
        host: str,
        port: int,
        lookup: PartitionLookup,
        receiver: PartitionReceiver | None = None,
    ) -> PartitionServer:
        """See `PartitionServers.start`; it serves on all addresses of the host."""
        server = ModelledPartitionServer(self._world, self._process, lookup)
        if receiver is not None:
            server.taken = TakenPartitions(receiver, ProcessDisk(self._world, self._process))
        server.port = self._world.network.listen(self._process, port, server)
        return server

    async def copy(self, directory: str, execution: FinishedExecution, address: str) -> None:
        """See `PartitionServers.copy`; reading here takes no time."""
        key = AttemptKey.from_proto(execution.attempt)
        storage = self._world.storages.of(self._process.host)
        partitions = []
        for partition in execution.partitions:
            name = partition_name(key, partition.output)
            base = partition_base(directory, name)
            try:
                index, data = (
                    storage.read_now(base + INDEX_SUFFIX),
                    storage.read_now(base + DATA_SUFFIX),
                )
                stored_partition(index, data)
            except FileNotFoundError as error:
                raise PartitionNotFound(name) from error
            except (OSError, DamagedRows) as error:
                raise PartitionDamaged(name, str(error)) from error
            partitions.append(PutPartition(name, index, data, partition.data_bytes))
        await put_attempt(self._world, self._process, address, partitions, execution, is_copy=True)


class ModelledPartitionServer:
    """A running server."""

    def __init__(self, world: World, process: Process, lookup: PartitionLookup) -> None:
        self._network = world.network
        self._process = process
        #: With these two it is answered what is there; see `partitions_on`.
        self.lookup = lookup
        self.storage = world.storages.of(process.host)
        self._stopped = False
        self.port = 0
        #: What is put to it, where it is a shuffle service's.
        self.taken: TakenPartitions | None = None

    async def stop(self) -> None:
        """See `PartitionServer.stop`."""
        if not self._stopped:
            self._stopped = True
            self._network.unlisten(self._process, self.port)


def partitions_on(
    storage: SimulatedStorage, bases: tuple[str | None, ...], first: int, end: int
) -> FoundPartitions:
    """What a storage has of subpartitions `first <= s < end` of partitions whose files are `base`
    and their suffixes; None is one that is not there."""
    remembered = storage.remembered()
    if remembered is None:
        return _stored_on(storage, bases).part(first, end)
    together: StoredTogether | None = remembered.get(bases)
    if together is None:
        together = remembered[bases] = _stored_on(storage, bases)
    return together.part(first, end)


def _stored_on(storage: SimulatedStorage, bases: Sequence[str | None]) -> StoredTogether:
    partitions: dict[int, StoredPartition] = {}
    lost: dict[int, str] = {}
    for place, base in enumerate(bases):
        if base is None:
            lost[place] = _NONE
            continue
        try:
            index = storage.read_now(base + INDEX_SUFFIX)
            partitions[place] = stored_partition(index, storage.read_now(base + DATA_SUFFIX))
        except FileNotFoundError:
            lost[place] = _NONE
        except (OSError, DamagedRows) as error:
            lost[place] = str(error)
    return StoredTogether.of(partitions, lost)
