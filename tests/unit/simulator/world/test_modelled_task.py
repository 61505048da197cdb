"""Modelled tasks: what they answer, what they leave, and how they read what others left."""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdover.api import Job
from holdover.ids import AttemptKey, partition_name
from holdover.runtime import ExitStatus, TaskProcess, TaskProcessPool, TaskProcessSpec
from holdover.v1.common_pb2 import (
    FAILURE_KIND_CANCELED,
    FAILURE_KIND_JOB,
    FAILURE_KIND_PARTITION_LOST,
    FAILURE_KIND_TASK,
    ConfigEntry,
    Failure,
    FinishedExecution,
    PartitionLocation,
)
from holdover.v1.job_pb2 import JobGraph, Split
from holdover.v1.taskmanager_pb2 import (
    CancelTask,
    InputGate,
    RunTask,
    SplitAnswer,
    TaskCommand,
    TaskDeployment,
    TaskEvent,
)
from shuffle.partition_name import partition_base
from simulator.observer import PartitionRead
from simulator.world.modelled_outputs import parse_sink_content
from simulator.world.process import Process
from simulator.world.rows import maker_subtask, stored_partition
from simulator.world.task_processes import TASK_ENTRY
from simulator.world.world import World

PORT = 6121


@dataclass
class Seen:
    """An observer that remembers."""

    ends: list[str] = field(default_factory=list)
    reads: list[PartitionRead] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    sees_reads: bool = True

    def attempt_started(self, worker: str, deployment: TaskDeployment, at_s: float) -> None:
        self.starts_s.append(at_s)

    def attempt_ended(
        self, worker: str, key: AttemptKey, end: str, execution: FinishedExecution | None
    ) -> None:
        self.ends.append(f"{worker} {key.vertex_id}[{key.subtask}] {end}")

    def partitions_read(self, reads: Sequence[PartitionRead]) -> None:
        self.reads += reads


class Worker:
    """The part of a TaskManager that tasks see: a pool, a partition server, a job graph."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.host = world.host(name)
        self.process: Process = world.process(self.host, name)
        self.runtime = world.runtime(self.process)
        self.shuffle = f"/local/{name}/shuffle"
        self.address = f"{name}:{PORT}"
        self.released: list[str] = []

    async def start(self, graph: JobGraph) -> None:
        spec = TaskProcessSpec(entry=TASK_ENTRY, log_path="/log", spare=1)
        self.pool: TaskProcessPool = await self.runtime.task_processes.open(spec)
        await self.runtime.partition_servers.start("0.0.0.0", PORT, self._lookup)
        await self.runtime.disk.make_directories("/local")
        await self.runtime.disk.make_directories("/shared/out/.staging-j")
        await self.runtime.disk.publish("/local/graph", graph.SerializeToString())

    def _lookup(self, name: str) -> str | None:
        return None if name in self.released else partition_base(self.shuffle, name)

    async def begin(
        self, vertex: str, subtask: int, *gates: InputGate, parts: int = 0, attempt: int = 0
    ) -> TaskProcess:
        """Give an attempt to a task process."""
        process = await self.pool.acquire()
        await process.send(
            TaskCommand(
                run=RunTask(
                    deployment=TaskDeployment(
                        attempt=AttemptKey("j", vertex, subtask, attempt, 1).to_proto(),
                        inputs=gates,
                        output_subpartitions=[parts] if parts else [],
                    ),
                    job_graph_path="/local/graph",
                    shuffle_directory=self.shuffle,
                    data_address=self.address,
                    options=[ConfigEntry(key="shuffle.fetch.retry-timeout", value="5 s")],
                )
            ).SerializeToString()
        )
        return process

    async def run(
        self, vertex: str, subtask: int, *gates: InputGate, parts: int = 0, attempt: int = 0
    ) -> TaskEvent:
        """Run an attempt to its end."""
        process = await self.begin(vertex, subtask, *gates, parts=parts, attempt=attempt)
        event = await answer(process)
        self.pool.release(process)
        return event

    def rows(self, name: str, first: int, end: int) -> list[int]:
        storage, base = self.world.storages.of(self.host), partition_base(self.shuffle, name)
        index, data = storage.read_now(f"{base}.index"), storage.read_now(f"{base}.data")
        return list(stored_partition(index, data).part(first, end)[0].ids)


async def answer(process: TaskProcess) -> TaskEvent:
    """The next event after "ready"."""
    while (message := await process.receive()) is not None:
        event = TaskEvent.FromString(message)
        if not event.HasField("ready"):
            return event
    raise AssertionError(f"the process {(await process.wait()).text}")


def failure(event: TaskEvent) -> Failure:
    assert event.HasField("failed"), event
    return event.failed.failure


def gate(*held: tuple[str, int], first: int = 0, end: int = 1) -> InputGate:
    """First attempts of v0: (address, subtask)."""
    addresses = list(dict.fromkeys(address for address, _ in held))
    return InputGate(
        source_vertex_id="v0",
        first_subpartition=first,
        end_subpartition=end,
        locations=[PartitionLocation(worker_id=a, data_address=a) for a in addresses],
        subtasks=[subtask for _, subtask in held],
        attempts=[0] * len(held),
        epochs=[1] * len(held),
        location_indexes=[addresses.index(address) for address, _ in held],
    )


def made(subtask: int, vertex: str = "v0", attempt: int = 0) -> str:
    return partition_name(AttemptKey("j", vertex, subtask, attempt, 1), 0)


def two_stages(**fields: Any) -> JobGraph:
    job = Job("j")
    mapped = job.workload(3.0, 8_000, rows=10, parallelism=2, **fields)
    mapped.hash("value").workload(1.0, pass_rows=True, parallelism=2).write_csv("/shared/out")
    return job.build("j")


@pytest.fixture
def world() -> Iterator[World]:
    world = World(seed=1)
    yield world
    assert world.failures == []
    world.close()


@pytest.fixture
def seen(world: World) -> Seen:
    seen = Seen()
    world.observers.append(seen)
    return seen


Play = Callable[[Worker, Worker], Coroutine[Any, Any, None]]


def play(world: World, graph: JobGraph, work: Play) -> None:
    """Run `work` in the first of two workers."""
    workers = [Worker(world, "tm-1"), Worker(world, "tm-2")]

    async def together() -> None:
        for worker in workers:
            await worker.process.spawn(worker.start(graph))
        await workers[0].process.spawn(work(*workers))

    world.run(together())


def test_a_source_leaves_a_partition_after_its_seconds(world: World, seen: Seen) -> None:
    async def work(one: Worker, _: Worker) -> None:
        event = await one.run("v0", 1, parts=2)
        found = event.finished
        assert sum(found.partitions[0].subpartition_bytes) == 8_000
        assert (found.rows_out, found.partitions[0].rows) == (10, 10)
        ids = [(1 << 32) + row for row in range(10)]
        assert sorted(one.rows(made(1), 0, 2)) == ids
        stat = await one.runtime.disk.stat(partition_base(one.shuffle, made(1)) + ".data")
        assert stat is not None
        assert stat.bytes == 8_000
        assert found.duration_ms == pytest.approx(3_000, abs=20)

    play(world, two_stages(), work)
    assert seen.ends == ["tm-1 v0[1] finished"]


def test_rows_of_both_hosts_arrive_once_and_are_staged(world: World, seen: Seen) -> None:
    async def work(one: Worker, two: Worker) -> None:
        await one.run("v0", 0, parts=2)
        await two.process.spawn(two.run("v0", 1, parts=2))
        written: list[int] = []
        for subtask in range(2):
            inputs = gate((one.address, 0), (two.address, 1), first=subtask, end=subtask + 1)
            found = (await one.run("v1", subtask, inputs)).finished
            staged = found.staged_files[0]
            assert staged.final_path == f"/shared/out/part-v1-0000{subtask}.csv"
            content = await one.runtime.disk.read(staged.staged_path)
            assert len(content) == staged.bytes
            assert posixpath.dirname(staged.staged_path) == (
                f"/shared/out/.staging-j/v1-{subtask}-0-1"
            )
            written += [row for row, _ in parse_sink_content(content)]
            assert found.rows_in == found.rows_out == staged.rows
        assert sorted(written) == [(s << 32) + row for s in range(2) for row in range(10)]

    play(world, two_stages(), work)
    assert len(seen.reads) == 4
    assert all(read.found for read in seen.reads)


def test_all_lost_partitions_are_named_together(world: World, seen: Seen) -> None:
    async def work(one: Worker, two: Worker) -> None:
        await one.run("v0", 0, parts=2)
        two.released.append(made(1))
        inputs = gate((one.address, 5), (two.address, 1), (one.address, 0), (two.address, 2))
        told = failure(await one.run("v1", 0, inputs))
        assert told.kind == FAILURE_KIND_PARTITION_LOST
        assert list(told.lost_partitions) == [made(5), made(1), made(2)]
        assert told.message.startswith("vertex v1 (workload -> write_csv), subtask 0: partition")

    play(world, two_stages(), work)
    assert seen.ends[-1] == "tm-1 v1[0] failed"


def test_damage_is_a_loss(world: World) -> None:
    async def work(one: Worker, two: Worker) -> None:
        await one.run("v0", 0, parts=2)
        base = partition_base(one.shuffle, made(0))
        world.storages.of(one.host).overwrite(f"{base}.data", b"1234567812345678")
        told = failure(await one.run("v1", 0, gate((one.address, 0))))
        assert list(told.lost_partitions) == [made(0)]
        assert "not what the index describes" in told.message

    play(world, two_stages(), work)


def test_a_holder_that_is_gone_is_asked_until_the_timeout(world: World) -> None:
    async def work(one: Worker, two: Worker) -> None:
        await two.process.spawn(two.run("v0", 0, parts=2))
        world.kill(two.process)
        began_s = world.now_s
        told = failure(await one.run("v1", 0, gate((two.address, 0))))
        assert told.kind == FAILURE_KIND_PARTITION_LOST
        assert list(told.lost_partitions) == [made(0)]
        assert "cannot be fetched from tm-2:6121: nobody listens" in told.message
        assert 5 <= world.now_s - began_s < 8

    play(world, two_stages(), work)


def test_a_holder_that_was_paused_answers_later(world: World) -> None:
    async def work(one: Worker, two: Worker) -> None:
        await two.process.spawn(two.run("v0", 0, parts=2))
        two.process.pause()
        context = world.loop.world_process.context
        world.loop.call_later(4.0, two.process.resume, context=context)
        event = await one.run("v1", 0, gate((two.address, 0), end=2))
        assert event.finished.rows_in == 10

    play(world, two_stages(), work)


def test_each_holder_has_its_time_to_answer(world: World) -> None:
    async def work(one: Worker, two: Worker) -> None:
        three = Worker(world, "tm-3")
        await three.process.spawn(three.start(two_stages()))
        await two.process.spawn(two.run("v0", 0, parts=2))
        await three.process.spawn(three.run("v0", 1, parts=2))
        for worker in (two, three):
            worker.process.pause()
        context = world.loop.world_process.context
        world.loop.call_later(20.0, two.process.resume, context=context)
        began_s = world.now_s
        told = failure(await one.run("v1", 0, gate((two.address, 0), (three.address, 1))))
        assert "cannot be fetched from tm-3:6121: tm-3 gives no answer" in told.message
        assert 50 <= world.now_s - began_s < 51

    play(world, two_stages(), work)


def test_an_attempt_that_is_cancelled_while_it_reads_asks_nobody_any_more(
    world: World, seen: Seen
) -> None:
    async def work(one: Worker, two: Worker) -> None:
        two.process.pause()
        process = await one.begin("v1", 0, gate((two.address, 0), (one.address, 0)))
        await asyncio.sleep(1.0)
        cancel = CancelTask(attempt=AttemptKey("j", "v1", 0, 0, 1).to_proto())
        await process.send(TaskCommand(cancel=cancel).SerializeToString())
        assert failure(await answer(process)).kind == FAILURE_KIND_CANCELED
        two.process.resume()
        await asyncio.sleep(60.0)

    play(world, two_stages(), work)
    assert seen.reads == []


def test_a_cancelled_attempt_stops_at_once(world: World, seen: Seen) -> None:
    async def work(one: Worker, _: Worker) -> None:
        process = await one.begin("v0", 0, parts=2)
        await asyncio.sleep(1.0)
        cancel = CancelTask(attempt=AttemptKey("j", "v0", 0, 0, 1).to_proto())
        await process.send(TaskCommand(cancel=cancel).SerializeToString())
        process.interrupt()
        assert failure(await answer(process)).kind == FAILURE_KIND_CANCELED
        assert world.now_s < 2.0

    play(world, two_stages(), work)
    assert seen.ends == ["tm-1 v0[0] canceled"]


def test_a_killed_process_is_lost_and_one_of_a_dead_worker_as_well(
    world: World, seen: Seen
) -> None:
    async def work(one: Worker, two: Worker) -> None:
        process = await one.begin("v0", 0, parts=2)
        await two.process.spawn(two.begin("v0", 1, parts=2))
        await asyncio.sleep(1.0)
        process.kill()
        assert await process.wait() == ExitStatus(None, 9)
        world.kill(two.process)
        assert [p.name for p in two.host.living()] == []
        await asyncio.sleep(10.0)

    play(world, two_stages(), work)
    assert seen.ends == ["tm-1 v0[0] lost", "tm-2 v0[1] lost"]


def test_an_attempt_that_draws_its_failure_fails_after_a_part_of_its_time(world: World) -> None:
    async def work(one: Worker, _: Worker) -> None:
        told = failure(await one.run("v0", 0, parts=2))
        assert told.kind == FAILURE_KIND_TASK
        assert "WorkloadFailure: operator 'workload' was to fail" in told.message
        assert 0 < world.now_s < 3.0

    play(world, two_stages(failure_probability=1.0), work)


def test_a_full_disk_fails_the_attempt_and_names_the_file(world: World) -> None:
    async def work(one: Worker, _: Worker) -> None:
        world.storages.of(one.host).capacity_bytes = 7_000
        told = failure(await one.run("v0", 0, parts=2))
        assert told.kind == FAILURE_KIND_TASK
        assert f"[Errno {errno.ENOSPC}]" in told.message
        assert f"{made(0)}.data" in told.message

    play(world, two_stages(), work)


def test_rows_of_an_indeterminate_stage_say_which_attempt_made_them(world: World) -> None:
    async def work(one: Worker, _: Worker) -> None:
        makers = []
        for attempt in (0, 1):
            await one.run("v0", 1, parts=1, attempt=attempt)
            base = partition_base(one.shuffle, made(1, attempt=attempt))
            storage = world.storages.of(one.host)
            index, data = storage.read_now(f"{base}.index"), storage.read_now(f"{base}.data")
            makers.append({*stored_partition(index, data).part(0, 1)[0].makers})
        assert makers[0].isdisjoint(makers[1])
        assert [maker_subtask(maker) for found in makers for maker in found] == [(0, 1), (0, 1)]

    play(world, two_stages(determinism="indeterminate"), work)


def sequence(rows: int) -> JobGraph:
    job = Job("j")
    job.sequence(0, rows, parallelism=1).map_batches("a.b:c").write_text("/shared/out")
    return job.build("j")


def test_a_sequence_is_read_split_by_split(world: World) -> None:
    async def work(one: Worker, _: Worker) -> None:
        process = await one.begin("v0", 0)
        for number, split in enumerate([Split(index=4, start=0, end=15_000), None]):
            wanted = await answer(process)
            assert wanted.split_wanted.received == number
            command = TaskCommand(split=SplitAnswer(split=split))
            await process.send(command.SerializeToString())
        found = (await answer(process)).finished
        assert list(found.splits) == [4]
        assert found.rows_in == found.staged_files[0].rows == 7_500

    play(world, sequence(20_000), work)


def test_a_source_that_is_not_modelled_fails_the_job(world: World) -> None:
    async def work(one: Worker, _: Worker) -> None:
        process = await one.begin("v0", 0)
        assert (await answer(process)).HasField("split_wanted")
        await process.send(TaskCommand(split=SplitAnswer()).SerializeToString())
        told = failure(await answer(process))
        assert told.kind == FAILURE_KIND_JOB
        assert "a text source cannot be simulated" in told.message

    job = Job("j")
    job.read_text("/data/*", parallelism=1).write_text("/shared/out")
    play(world, job.build("j"), work)


def test_rows_are_read_in_the_order_of_their_producers_whoever_holds_them(world: World) -> None:
    """Dealt out by position, they go where they went when their partitions lay elsewhere."""

    async def work(one: Worker, two: Worker) -> None:
        for subtask, worker in enumerate((one, two, one)):
            await worker.process.spawn(worker.run("v0", subtask, parts=1))
        inputs = gate((one.address, 0), (two.address, 1), (one.address, 2))
        staged = (await one.run("v1", 0, inputs)).finished.staged_files[0]
        content = await one.runtime.disk.read(staged.staged_path)
        read = [row >> 32 for row, _ in parse_sink_content(content)]
        assert read == [0] * 10 + [1] * 10 + [2] * 10

    job = Job("j")
    mapped = job.workload(3.0, 8_000, rows=10, parallelism=3)
    mapped.rebalance().workload(1.0, pass_rows=True, parallelism=1).write_csv("/shared/out")
    play(world, job.build("j"), work)
