"""Modelled output that is put to a shuffle service, and what the service's receiver is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdover.ids import AttemptKey, partition_name
from holdover.v1.common_pb2 import ExecutionAttempt, FinishedExecution
from shuffle.errors import OutputRefused
from simulator.world.modelled_puts import PutPartition, put_attempt
from simulator.world.process import Process
from simulator.world.world import World

PORT = 6121
KEY = AttemptKey("job", "v", 0, 0, 1)
NAME = partition_name(KEY, 0)
FINISHED = FinishedExecution(attempt=KEY.to_proto())
PARTITION = PutPartition(NAME, b"index", b"data", data_bytes=1000)


@dataclass
class Receiver:
    """A service that notes what it is told; it refuses what it is told to."""

    refuses: str = ""
    told: list[str] = field(default_factory=list)
    directory: str = "/local/shuffle"

    def _note(self, what: str) -> None:
        self.told.append(what)
        if what.split()[0] == self.refuses:
            raise OutputRefused("it is full")

    def begin(self, partition_name: str, is_copy: bool) -> int:
        self._note(f"begin {partition_name == NAME} {is_copy}")
        return 7

    def take(self, put: int, wanted_bytes: int) -> None:
        self._note(f"take {put} {wanted_bytes}")

    def complete(self, put: int) -> None:
        self._note(f"complete {put}")

    def end(self, put: int) -> bool:
        self.told.append(f"end {put}")
        return f"complete {put}" not in self.told

    async def publish(self, execution: FinishedExecution, is_copy: bool) -> FinishedExecution:
        await asyncio.sleep(1.0)
        self._note(f"publish {is_copy}")
        return execution

    async def discard(self, attempt: ExecutionAttempt) -> None:
        self.told.append("discard")


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


def play(receiver: Receiver, plot: Callable[[Scene], Coroutine[Any, Any, None]]) -> float:
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
    receiver = Receiver()

    async def plot(scene: Scene) -> None:
        await scene.put()
        assert scene.files() == [".data.part", ".index.part"]

    assert play(receiver, plot) == pytest.approx(1.0, abs=0.1)
    assert receiver.told == [
        "begin True False",
        "take 7 1000",
        "complete 7",
        "end 7",
        "publish False",
    ]


def test_a_copy_says_that_it_is_one() -> None:
    receiver = Receiver()
    play(receiver, lambda scene: scene.put(is_copy=True))
    assert (receiver.told[0], receiver.told[-1]) == ("begin True True", "publish True")


@pytest.mark.parametrize("step", ["begin", "take", "complete", "publish"])
def test_what_is_refused_is_told_to_who_puts(step: str) -> None:
    async def plot(scene: Scene) -> None:
        with pytest.raises(OutputRefused, match="it is full"):
            await scene.put()
        if step == "take":
            assert scene.files() == []

    play(Receiver(refuses=step), plot)


def test_a_service_that_dies_meanwhile_takes_nothing() -> None:
    async def plot(scene: Scene) -> None:
        asyncio.get_running_loop().call_later(0.5, scene.world.kill, scene.service)
        with pytest.raises(OutputRefused, match="cannot be reached"):
            await scene.put()

    play(Receiver(), plot)


def test_where_nobody_listens_nothing_is_put() -> None:
    async def plot(scene: Scene) -> None:
        scene.world.kill(scene.service)
        with pytest.raises(OutputRefused, match="no shuffle service listens"):
            await scene.put()

    play(Receiver(), plot)
