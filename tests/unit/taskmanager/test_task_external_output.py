"""A task whose output goes to a shuffle service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import (
    FAILURE_KIND_OUTPUT_REFUSED,
    FAILURE_KIND_TASK,
    ExecutionAttempt,
    FinishedExecution,
)
from holdover.v1.job_pb2 import JobGraph, Operator, SequenceSource, Source, Split
from tests.unit.shuffle.shuffle_service_harness import ServiceWorld
from tests.unit.taskmanager.task_process_harness import (
    TaskProcessHarness,
    function,
    graph,
    output,
    vertex,
)

NUMBERS = Operator(name="numbers", source=Source(sequence=SequenceSource(start=0, end=1000)))
KEY = AttemptKey("job", "v0", 0, 0, 1)
JOB = graph(vertex(NUMBERS, outputs=[output("HASH", "value"), output()]))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServiceWorld]:
    world = ServiceWorld(tmp_path / "service")
    await world.start()
    yield world
    await world.stop()


@pytest.fixture
def task(tmp_path: Path) -> Iterator[TaskProcessHarness]:
    harness = TaskProcessHarness(tmp_path)
    yield harness
    harness.close()


def start(task: TaskProcessHarness, world: ServiceWorld, job: JobGraph = JOB) -> ExecutionAttempt:
    attempt = task.start(
        job, subpartitions=[4, 1], record_finished=True, shuffle_address=world.address
    )
    task.answer_split(Split(index=0, start=0, end=100))
    task.answer_split(None)
    return attempt


async def test_all_outputs_are_held_by_the_service_and_nothing_is_left_here(
    world: ServiceWorld, task: TaskProcessHarness
) -> None:
    def run() -> FinishedExecution:
        start(task, world)
        return task.finished()

    finished = await asyncio.to_thread(run)
    assert world.service.finished.inventory() == [finished]
    assert [partition.rows for partition in finished.partitions] == [100, 100]
    assert all(world.service.finished.path_of(f"job/v0-{number}-0-0-1") for number in range(2))
    assert task.left_files() == []


async def test_a_failed_task_leaves_nothing_at_the_service(
    world: ServiceWorld, task: TaskProcessHarness
) -> None:
    def fails(batch: object) -> object:
        raise ValueError("no")

    job = graph(vertex(NUMBERS, function(fails), outputs=[output("HASH", "value"), output()]))

    def run() -> int:
        task.start(job, subpartitions=[4, 1], shuffle_address=world.address)
        task.answer_split(Split(index=0, start=0, end=100))
        return task.failed().failure.kind

    assert await asyncio.to_thread(run) == FAILURE_KIND_TASK
    assert (world.files(), world.service.jobs) == ([], [])


async def test_a_service_that_takes_nothing_is_no_failure_of_the_task(
    world: ServiceWorld, task: TaskProcessHarness
) -> None:
    world.service.drain()

    def run() -> tuple[int, str]:
        start(task, world)
        failure = task.failed().failure
        return failure.kind, failure.message

    kind, message = await asyncio.to_thread(run)
    assert kind == FAILURE_KIND_OUTPUT_REFUSED
    assert "it is being drained" in message
