"""How modelled output comes to a shuffle service.

MODEL: a partition is one transfer of all its bytes; then the service is asked to take it, writes
its files under their temporary names, and at the end is asked to publish the attempt. Who asks goes
on asking until it is done: the answer of the real one comes by itself. What is refused is refused
when all bytes have arrived. A connection that breaks fails the put, as in the real one. Who has
failed asks the service, once, to discard what it has put. Not modelled: the repetition of a publish
that was not answered, blocks, several partitions at once.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdover.runtime import PartitionReceiver
from holdover.v1.common_pb2 import ExecutionAttempt, FinishedExecution
from shuffle.errors import OutputRefused
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, PART_SUFFIX, partition_base
from simulator.world.disk import NewFile, ProcessDisk
from simulator.world.links import ConnectionLost
from simulator.world.process import Process

if TYPE_CHECKING:
    from simulator.world.world import World

#: What asking takes on the way, and the answer.
_MESSAGE_BYTES = 200
_CALL_TIMEOUT_S = 30.0
_DISCARD_TIMEOUT_S = 2.0
_ASK_AGAIN_S = 0.002


@dataclass(frozen=True, slots=True)
class PutPartition:
    """One partition that is put: its name, its files, and as how large its data count."""

    name: str
    index: bytes
    data: bytes
    data_bytes: int


class TakenPartitions:
    """The side of a service: what arrives is written where its receiver wants it."""

    def __init__(self, receiver: PartitionReceiver, disk: ProcessDisk) -> None:
        self._receiver = receiver
        self._disk = disk

    async def take(self, partition: PutPartition, is_copy: bool) -> None:
        """Write a partition's files. Raises OutputRefused, OSError."""
        put = self._receiver.begin(partition.name, is_copy)
        base = partition_base(self._receiver.directory, partition.name)
        data, index = base + DATA_SUFFIX + PART_SUFFIX, base + INDEX_SUFFIX + PART_SUFFIX
        try:
            self._receiver.take(put, partition.data_bytes)
            await self._disk.make_directories(posixpath.dirname(base))
            await self._remove(data, index)
            await self._disk.write_files(
                [
                    NewFile(data, partition.data, partition.data_bytes),
                    NewFile(index, partition.index, 0),
                ]
            )
            self._receiver.complete(put)
        finally:
            if self._receiver.end(put):
                await self._remove(data, index)

    async def publish(self, execution: FinishedExecution, is_copy: bool) -> None:
        """Publish an attempt. Raises OutputRefused, OSError."""
        await self._receiver.publish(execution, is_copy)

    async def discard(self, attempt: ExecutionAttempt) -> None:
        """Delete what an attempt has put and not published."""
        await self._receiver.discard(attempt)

    async def _remove(self, *paths: str) -> None:
        for path in paths:
            await self._disk.remove(path, missing_ok=True)


async def put_attempt(
    world: World,
    process: Process,
    address: str,
    partitions: Sequence[PutPartition],
    execution: FinishedExecution,
    *,
    is_copy: bool = False,
) -> None:
    """Put an attempt's partitions from a process to the service at `address`, and publish them.

    Raises OutputRefused, also when the service cannot be reached or is gone meanwhile.
    """
    listener = world.network.listener(address)
    taken = getattr(listener.handler, "taken", None) if listener is not None else None
    if listener is None or not isinstance(taken, TakenPartitions):
        raise OutputRefused(f"no shuffle service listens at {address}")
    holder = listener.node.process
    try:
        if is_copy and await _is_published(world, process, holder, taken, execution):
            return
        for partition in partitions:
            await world.network.transfer(process, holder, partition.data_bytes)
            await _ask(world, process, holder, _taking(taken, partition, is_copy))
        await _ask(world, process, holder, lambda: taken.publish(execution, is_copy))
    except (OutputRefused, ConnectionLost) as error:
        attempt = execution.attempt
        if not is_copy:
            with suppress(OutputRefused, ConnectionLost):
                discarding = lambda: taken.discard(attempt)  # noqa: E731
                await _ask(world, process, holder, discarding, _DISCARD_TIMEOUT_S)
        if isinstance(error, OutputRefused):
            raise
        raise OutputRefused(
            f"the shuffle service at {address} cannot be reached: {error}"
        ) from error


async def _is_published(
    world: World,
    process: Process,
    holder: Process,
    taken: TakenPartitions,
    execution: FinishedExecution,
) -> bool:
    """Whether a copy is there already: then it need not be made again."""
    try:
        await _ask(world, process, holder, lambda: taken.publish(execution, True))
    except OutputRefused:
        return False
    return True


def _taking(
    taken: TakenPartitions, partition: PutPartition, is_copy: bool
) -> Callable[[], Coroutine[Any, Any, None]]:
    return lambda: taken.take(partition, is_copy)


async def _ask(
    world: World,
    process: Process,
    holder: Process,
    work: Callable[[], Coroutine[Any, Any, None]],
    timeout_s: float = _CALL_TIMEOUT_S,
) -> None:
    """Have the service do something. Raises its OutputRefused, ConnectionLost."""
    outcome: list[OutputRefused | None] = []

    async def carry_out() -> None:
        try:
            await work()
            outcome.append(None)
        except (OutputRefused, OSError) as error:
            outcome.append(OutputRefused(str(error)))

    def begin() -> int:
        holder.spawn(carry_out())
        return _MESSAGE_BYTES

    exchange = world.network.exchange
    await exchange(process, holder, _MESSAGE_BYTES, begin, timeout_s)
    while not outcome:
        await asyncio.sleep(_ASK_AGAIN_S)
        await exchange(process, holder, _MESSAGE_BYTES, lambda: _MESSAGE_BYTES, timeout_s)
    if outcome[0] is not None:
        raise outcome[0]
