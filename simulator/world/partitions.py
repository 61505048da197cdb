"""Serving modelled partitions.

MODEL: a server listens at its port in the world's network and lives with its TaskManager. Who
fetches asks one server once for all partitions that it needs from there; the server looks each of
them up as the real one does, and reads rows and sizes from its host's storage, with the faults of
that storage. What the bytes take on the way is the network's. Not modelled: time on the holder's
disk, several calls for one partition, blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import PartitionLookup, PartitionReceiver, PartitionServer
from holdover.v1.common_pb2 import FinishedExecution
from shuffle.errors import PartitionDamaged, PartitionNotFound
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, partition_base
from simulator.world.disk import ProcessDisk
from simulator.world.modelled_puts import PutPartition, TakenPartitions, put_attempt
from simulator.world.process import Process
from simulator.world.rows import NO_ROWS, DamagedRows, Rows, StoredPartition, stored_partition

if TYPE_CHECKING:
    from simulator.world.storage import SimulatedStorage
    from simulator.world.world import World


class FoundPartition(NamedTuple):
    """What a holder has of a partition: its rows of the range that was asked for (which are not to
    be changed) and their bytes, or why it is lost.
    """

    rows: Rows
    bytes: int
    lost: str = ""


_NONE = FoundPartition(NO_ROWS, 0, "no finished partition of this name")
_NOTHING = FoundPartition(NO_ROWS, 0)


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
        self._world = world
        self._process = process
        self._lookup = lookup
        self._stopped = False
        self.port = 0
        #: What is put to it, where it is a shuffle service's.
        self.taken: TakenPartitions | None = None

    async def stop(self) -> None:
        """See `PartitionServer.stop`."""
        if not self._stopped:
            self._stopped = True
            self._world.network.unlisten(self._process, self.port)

    def find(self, names: Sequence[str], first: int, end: int) -> list[FoundPartition]:
        """Subpartitions `first <= s < end` of each partition."""
        lookup = self._lookup
        storage = self._world.storages.of(self._process.host)
        return partitions_on(storage, [lookup(name) for name in names], first, end)


def partitions_on(
    storage: SimulatedStorage, bases: Sequence[str | None], first: int, end: int
) -> list[FoundPartition]:
    """What a storage has of partitions whose files are `base` and their suffixes; None is one that
    is not there."""
    remembered = storage.remembered()
    found = []
    for base in bases:
        if base is None:
            found.append(_NONE)
            continue
        stored: StoredPartition | None = None if remembered is None else remembered.get(base)
        if stored is None:
            try:
                index = storage.read_now(base + INDEX_SUFFIX)
                stored = stored_partition(index, storage.read_now(base + DATA_SUFFIX))
            except FileNotFoundError:
                found.append(_NONE)
                continue
            except (OSError, DamagedRows) as error:
                found.append(FoundPartition(NO_ROWS, 0, str(error)))
                continue
            if remembered is not None:
                remembered[base] = stored
        rows, n_bytes = stored.part(first, end)
        found.append(FoundPartition(rows, n_bytes) if n_bytes or rows.ids else _NOTHING)
    return found
