"""One registration carries everything, in messages of bounded size."""

from __future__ import annotations

import pytest

from holdover.coordination.registration import CHUNK_COUNT_MAX, Inventory, register
from holdover.coordination.rpc_call import CallFailed
from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition
from holdover.v1.taskmanager_pb2 import RegisterHeader
from holdover.v1.taskmanager_pb2_grpc import ResourceManagerStub
from tests.doubles.taskmanager_world import World, attempt

HEADER = RegisterHeader(resource_id="tm-1", incarnation="i", slots=1)


def execution(key: AttemptKey, subpartitions: int) -> FinishedExecution:
    partition = ResultPartition(output=0, subpartition_bytes=[1 << 40] * subpartitions)
    return FinishedExecution(attempt=key.to_proto(), partitions=[partition])


@pytest.mark.parametrize(("count", "subpartitions"), [(20_000, 1), (10, 300_000)])
async def test_an_inventory_of_any_size_arrives_whole(
    world: World, count: int, subpartitions: int
) -> None:
    """P53: no message comes near the limit, by number of partitions or by their size."""
    channel = world.runtime.network.channel(f"127.0.0.1:{world.jm.port}")
    finished = [execution(attempt("finishes", n), subpartitions) for n in range(count)]
    running = [attempt("waits", n) for n in range(3)]
    answer = await register(
        ResourceManagerStub(channel), HEADER, lambda: Inventory(finished, running), timeout_s=20
    )
    assert answer.accepted.leader_epoch == 1
    assert len(world.jm.current.finished) == count
    assert world.jm.current.running == running
    assert world.jm.largest_chunk <= CHUNK_COUNT_MAX
    await channel.close()


async def test_a_refusal_carries_its_reason(world: World) -> None:
    world.jm.ready = False
    channel = world.runtime.network.channel(f"127.0.0.1:{world.jm.port}")
    with pytest.raises(CallFailed, match="not ready, retry") as raised:
        await register(ResourceManagerStub(channel), HEADER, lambda: Inventory([], []), timeout_s=5)
    assert raised.value.transient
    await channel.close()
