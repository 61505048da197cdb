"""One TaskManager on real gRPC and real files, with a scripted JobManager and scripted tasks."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdover.config import Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.ids import AttemptKey, partition_name
from holdover.runtime import PartitionLookup, PartitionReceiver, Runtime
from holdover.v1.common_pb2 import ConfigEntry, FinishedExecution
from holdover.v1.job_pb2 import IntermediateDataSet, JobGraph, JobVertex
from shuffle.finished_record import record_name
from taskmanager.process import TaskManager
from tests.doubles.resource_manager_double import ResourceManagerDouble
from tests.doubles.scripted_tasks import ScriptedTasks

VERTICES = ("finishes", "waits", "late", "stubborn", "dies", "fails", "splits")


def graph(job_id: str, **job_options: str) -> JobGraph:
    return JobGraph(
        job_id=job_id,
        vertices=[
            JobVertex(vertex_id=vertex, outputs=[IntermediateDataSet(subpartitions=1)])
            for vertex in VERTICES
        ],
        options=[ConfigEntry(key=key, value=value) for key, value in job_options.items()],
    )


def attempt(vertex: str, subtask: int = 0, job: str = "job-a", epoch: int = 1) -> AttemptKey:
    return AttemptKey(job, vertex, subtask, attempt=0, epoch=epoch)


@dataclasses.dataclass
class ServedPartitions:
    """A partition server that only remembers how it looks partitions up."""

    lookup: PartitionLookup = lambda _: None
    port: int = 1

    async def start(
        self,
        host: str,
        port: int,
        lookup: PartitionLookup,
        receiver: PartitionReceiver | None = None,
    ) -> ServedPartitions:
        assert receiver is None, "a TaskManager takes no output of others"
        self.lookup = lookup
        return self

    async def copy(self, directory: str, execution: FinishedExecution, address: str) -> None:
        raise AssertionError("a TaskManager copies nothing")

    async def stop(self) -> None:
        pass


@dataclasses.dataclass
class World:
    """One TaskManager, and the JobManagers that lead one after another at one address."""

    runtime: Runtime
    root: Path
    served: ServedPartitions
    tasks: ScriptedTasks
    jm: ResourceManagerDouble
    taskmanagers: list[TaskManager] = dataclasses.field(default_factory=list)

    async def start(self, **options: str) -> TaskManager:
        """Start the TaskManager; options with `_` for `.` win over short times."""
        values = {
            "jobmanager.rpc.port": str(self.jm.port),
            "io.tmp.dirs": str(self.root / "tmp"),
            "high-availability.storageDir": str(self.root / "storage"),
            "taskmanager.resource-id": "tm-1",
            "taskmanager.numberOfTaskSlots": "4",
            "taskmanager.registration.initial-backoff": "10 ms",
            "taskmanager.registration.max-backoff": "50 ms",
            "task.cancellation.timeout": "200 ms",
            **options,
        }
        configuration = Configuration.of(values)
        leader_service = configured_leader_service(self.runtime, configuration)
        taskmanager = TaskManager(self.runtime, configuration, leader_service)
        self.taskmanagers.append(taskmanager)
        await taskmanager.start()
        return taskmanager

    async def registered(self, count: int = 1) -> None:
        """Wait until the present JobManager has so many registrations."""
        await self.jm.until(lambda: len(self.jm.registrations) >= count, "registration")

    async def next_leader(self, epoch: int, **fields: object) -> ResourceManagerDouble:
        """Another JobManager leads at the same address."""
        self.jm = dataclasses.replace(
            ResourceManagerDouble(self.runtime, epoch, graphs=self.jm.graphs, port=self.jm.port),
            **fields,  # type: ignore[arg-type]
        )
        await self.jm.start(self.jm.port)
        return self.jm

    async def run(self, *keys: AttemptKey) -> None:
        """Deploy into the first slots, and wait until a process has each."""
        answer = await self.jm.deploy(*((key, slot) for slot, key in enumerate(keys)))
        assert not answer.refusals
        await self.until(lambda: all(key in self.tasks.runs for key in keys), "tasks run")

    async def finish(self, *keys: AttemptKey) -> None:
        """Deploy, and wait until each is reported as finished."""
        await self.run(*keys)
        for key in keys:
            await self.jm.until_state(key, "FINISHED")

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
        """Wait for what no message tells: files, above all."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"not within {timeout_s} s: {what}; files {self.files()}")

    def files(self) -> list[str]:
        """The partition files on disk, relative to the shuffle directory."""
        root = self.root / "tmp" / "tm-1" / "shuffle"
        found = []
        # A directory may go while it is looked at, which os.walk takes for an empty one.
        for directory, _, names in os.walk(root):
            found += [str((Path(directory) / name).relative_to(root)) for name in names]
        return sorted(found)


def files_of(*keys: AttemptKey) -> list[str]:
    files = [record_name(key) for key in keys]
    for name in [partition_name(key, 0) for key in keys]:
        files += [name + suffix for suffix in (".data", ".index")]
    return sorted(files)
