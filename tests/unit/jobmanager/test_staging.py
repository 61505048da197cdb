"""The directories in which tasks stage: there while a job may stage, and not once it has ended."""

from __future__ import annotations

import asyncio
import errno

import pytest

from holdover.v1.common_pb2 import StagedFile
from jobmanager.job_files import JobFiles
from jobmanager.job_store import JobStore
from jobmanager.leading import Leading
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.sink_commit import sinks_of, staging_directory
from jobmanager.staging import Staging
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.leader_lives import three_sinks

DIRECTORIES = ("/out/a/.staging-job", "/out/b/.staging-job")


class Waiting(SimulatedStorage):
    """Makes directories when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def make_directories(self, path: str) -> None:
        self.asked.set()
        await self.go_on.wait()
        await super().make_directories(path)


class Cluster:
    """A leader of a job, and what becomes of both."""

    def __init__(self, disk: SimulatedStorage) -> None:
        self.disk = disk
        self.leads, self.over, self.ended = True, False, False
        leading = Leading(lambda: self.leads, lambda: self.over)
        self.staging = Staging(disk, DIRECTORIES, leading, self._has_ended)

    async def _has_ended(self) -> bool:
        return self.ended

    async def there(self) -> list[str]:
        return [path for path in DIRECTORIES if await self.disk.stat(path) is not None]


async def test_what_is_missing_is_made() -> None:
    it = Cluster(SimulatedStorage())
    await it.disk.make_directories(DIRECTORIES[0])
    await it.disk.publish(f"{DIRECTORIES[0]}/staged", b"")
    for _ in range(2):
        await it.staging.make()
        assert await it.there() == list(DIRECTORIES)
    assert await it.disk.stat(f"{DIRECTORIES[0]}/staged") is not None


async def test_who_asks_while_it_is_being_made_waits_for_that() -> None:
    """So that nothing is being made once it is closed."""
    disk = Waiting()
    it = Cluster(disk)
    made = [asyncio.ensure_future(it.staging.make())]
    await disk.asked.wait()
    disk.asked.clear()
    made.append(asyncio.ensure_future(it.staging.make()))
    await asyncio.sleep(0)
    assert not disk.asked.is_set()
    disk.go_on.set()
    await asyncio.gather(*made)
    assert await it.there() == list(DIRECTORIES)


async def test_storage_that_refuses_says_so_and_may_be_asked_again() -> None:
    it = Cluster(SimulatedStorage())
    it.disk.fail("make_directories", errno.EACCES)
    with pytest.raises(PermissionError):
        await it.staging.make()
    await it.staging.make()
    assert await it.there() == list(DIRECTORIES)


@pytest.mark.parametrize("ended", [True, False])
async def test_who_was_frozen_over_it_leaves_nothing_of_a_job_that_has_ended(ended: bool) -> None:
    """Its successor has ended the job, and looked for what is left, before it goes on (P35)."""
    disk = Waiting()
    it = Cluster(disk)
    making = asyncio.ensure_future(it.staging.make())
    await disk.asked.wait()
    making.cancel()  # with its leadership
    it.leads, it.over, it.ended = False, True, ended
    disk.go_on.set()
    await it.staging.close()
    for _ in range(10):
        await asyncio.sleep(0)
    assert making.cancelled()
    assert await it.there() == ([] if ended else list(DIRECTORIES))


async def test_who_leads_no_more_makes_none() -> None:
    it = Cluster(SimulatedStorage())
    it.leads, it.over = False, True
    await it.staging.make()
    assert await it.there() == []


async def test_after_its_end_nothing_is_under_way_and_none_is_made() -> None:
    """A job is cancelled while storage hangs: what is deleted then does not come back."""
    disk = Waiting()
    it = Cluster(disk)
    making = asyncio.ensure_future(it.staging.make())
    await disk.asked.wait()
    closing = asyncio.ensure_future(it.staging.close())
    await asyncio.sleep(0)
    assert not closing.done()
    disk.go_on.set()
    await asyncio.gather(making, closing)
    for path in DIRECTORIES:
        await disk.remove_tree(path)
    await it.staging.make()
    assert await it.there() == []


async def test_what_somebody_deleted_is_made_again_before_its_tasks_run_again() -> None:
    disk, graph = SimulatedStorage(), three_sinks("job")
    files = JobFiles(disk, JobStore(disk, "/storage"), graph, 1, Leading())
    await files.make_staging(ExecutionGraph(graph))
    output = sinks_of(graph)[0][0]
    await disk.remove_tree(output)
    path = f"{staging_directory(output, 'job')}/k0-0-0-1/part"
    checked = await files.check_staged(act.CheckStagedFiles((StagedFile(staged_path=path),)))
    assert checked == sig.StagedFilesChecked((path,))
    assert await disk.stat(staging_directory(output, "job")) is not None


async def test_what_was_deleted_while_tasks_run_is_made_when_one_of_them_has_failed() -> None:
    """Once; when storage refuses it, the next failure asks again."""
    disk, graph = SimulatedStorage(), three_sinks("job")
    files = JobFiles(disk, JobStore(disk, "/storage"), graph, 1, Leading())
    staging = staging_directory(sinks_of(graph)[0][0], "job")
    disk.fail("make_directories", errno.EACCES)
    await files.make_staging_again()
    assert await disk.stat(staging) is None
    await files.make_staging_again()
    assert await disk.stat(staging) is not None
