"""Modelled output that is put to a shuffle service, and what the service's receiver is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition
from shuffle.errors import OutputRefused
from simulator.world.modelled_puts import PutPartition, put_attempt
from simulator.world.process import Process
from simulator.world.world import World
from tests.doubles.partition_receiver import NotingReceiver

PORT = 6121
KEY = AttemptKey("job", "v", 0, 0, 1)
NAME = partition_name(KEY, 0)
FINISHED = FinishedExecution(attempt=KEY.to_proto(), partitions=[ResultPartition()])
PARTITION = PutPartition(NAME, b"index", b"data", data_bytes=1000)


@dataclass
class Scene:
    """A task's process, and a service on another host."""

    world: World
    task: Process
    service: Process

    async def put(self, *, is_copy: bool = False) -> None:
        await put_attempt(
            self.world, self.task, f"ss:{PORT}", [PARTITION], FINISHED, is_copy=is_copy
        )

    def files(self) -> list[str]:
        storage = self.world.storages.of(self.service.host)
        found = []
        for suffix in (".data.part", ".index.part"):
            try:
                storage.read_now(f"/local/shuffle/{NAME}{suffix}")
            except OSError:
                continue
            found.append(suffix)
        return found


def play(receiver: NotingReceiver, plot: Callable[[Scene], Coroutine[Any, Any, None]]) -> float:
    """Run the plot in the task's process; when it was over."""
    world = World(seed=1)
    service = world.process(world.host("ss"), "ss")
    scene = Scene(world, world.process(world.host("tm"), "tm"), service)

    async def serve() -> None:
        servers = world.runtime(service).partition_servers
        await servers.start("0.0.0.0", PORT, lambda _: None, receiver)

    async def whole() -> None:
        await service.spawn(serve())
        await scene.task.spawn(plot(scene))

    try:
        world.run(whole())
        assert world.failures == []
        return world.now_s
    finally:
        world.close()


def test_a_partition_is_written_and_then_its_attempt_is_published() -> None:
    receiver = NotingReceiver(publishing_s=1.0)

    async def plot(scene: Scene) -> None:
        await scene.put()
        assert scene.files() == [".data.part", ".index.part"]

    assert play(receiver, plot) == pytest.approx(1.0, abs=0.1)
    assert receiver.told == [f"begin {NAME} False", "take", "complete", "end", "publish False"]
    assert receiver.taken_bytes == 1000


@pytest.mark.parametrize("step", ["begin", "take", "complete", "publish"])
def test_what_is_refused_is_told_to_who_puts(step: str) -> None:
    async def plot(scene: Scene) -> None:
        with pytest.raises(OutputRefused, match="it is full"):
            await scene.put()
        if step == "take":
            assert scene.files() == []

    receiver = NotingReceiver(refuses=step)
    play(receiver, plot)
    assert receiver.told[-1] == "discard"


def test_a_service_that_dies_meanwhile_takes_nothing() -> None:
    async def plot(scene: Scene) -> None:
        asyncio.get_running_loop().call_later(0.5, scene.world.kill, scene.service)
        with pytest.raises(OutputRefused, match="cannot be reached"):
            await scene.put()

    play(NotingReceiver(publishing_s=1.0), plot)


def test_where_nobody_listens_nothing_is_put() -> None:
    async def plot(scene: Scene) -> None:
        scene.world.kill(scene.service)
        with pytest.raises(OutputRefused, match="no shuffle service listens"):
            await scene.put()

    play(NotingReceiver(), plot)
