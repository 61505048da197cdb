"""A TaskManager with a scripted JobManager that leads epoch 1."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdover.runtime.real import real_runtime
from tests.doubles.resource_manager_double import ResourceManagerDouble
from tests.doubles.scripted_tasks import ScriptedTasks
from tests.doubles.taskmanager_world import ServedPartitions, World, graph


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    tasks, served = ScriptedTasks(), ServedPartitions()
    runtime = dataclasses.replace(real_runtime(), task_processes=tasks, partition_servers=served)
    graphs = {job: graph(job) for job in ("job-a", "job-b")}
    jm = ResourceManagerDouble(runtime, epoch=1, graphs=graphs)
    await jm.start()
    world = World(runtime, tmp_path, served, tasks, jm)
    yield world
    for taskmanager in world.taskmanagers:
        await taskmanager.stop("the test is over")
        if taskmanager.failed.done():
            taskmanager.failed.result()
    await world.jm.vanish()
