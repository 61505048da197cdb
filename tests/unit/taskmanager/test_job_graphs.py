"""The graphs of jobs that a TaskManager keeps for its tasks."""

from __future__ import annotations

import asyncio

import pytest

from holdover.config import Configuration
from simulator.world.storage import SimulatedStorage
from taskmanager.job_graphs import JobGraphs, JobGraphUnavailable


class DiskThatTakesItsTime(SimulatedStorage):
    """Publishes when it is told to, whoever has given up waiting: as a thread does."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def publish(self, path: str, data: bytes) -> None:
        self.begun.set()
        await asyncio.shield(asyncio.ensure_future(self._publish_later(path, data)))

    async def _publish_later(self, path: str, data: bytes) -> None:
        await self.go_on.wait()
        await super().publish(path, data)


async def test_a_graph_that_was_being_stored_when_its_job_was_released_is_deleted() -> None:
    disk = DiskThatTakesItsTime()
    await disk.make_directories("/graphs")

    async def fetch(job_id: str) -> bytes:
        return b""

    graphs = JobGraphs(disk, "/graphs", Configuration.of({}), fetch)
    getting = asyncio.ensure_future(graphs.get("job"))
    await disk.begun.wait()
    stopping = asyncio.ensure_future(graphs.stop_fetching("job"))
    with pytest.raises(JobGraphUnavailable, match="released"):
        await getting
    disk.go_on.set()
    await stopping
    await graphs.forget("job")
    assert await disk.list_directory("/graphs") == []
