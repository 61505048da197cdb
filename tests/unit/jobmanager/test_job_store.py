"""What a JobManager keeps between its lives."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdover.errors import InvalidId, JobAlreadyExists, StorageError
from holdover.runtime.real_disk import LocalDisk
from holdover.v1.archive_pb2 import ArchivedJob
from holdover.v1.common_pb2 import JOB_STATE_FINISHED
from holdover.v1.job_pb2 import AttachedFile, JobGraph
from holdover.v1.jobmanager_pb2 import JobStatus, ResultFile, VertexStatus
from jobmanager.checked_file import StoredFileDamaged, publish_checked, read_checked
from jobmanager.job_store import BrokenJob, JobAlreadyEnded, JobStore, StoredJob, graph_digest
from jobmanager.leading import LeadershipLost
from simulator.world.storage import PowerLoss, SimulatedStorage

ROOT = "/storage"


def graph(job_id: str = "job-1", name: str = "a job") -> JobGraph:
    files = [AttachedFile(name="module.py", content=b"x" * 1000)]
    return JobGraph(job_id=job_id, name=name, files=files)


def ended(job_id: str = "job-1", wall_ms: int = 7, epoch: int = 4) -> ArchivedJob:
    return ArchivedJob(
        status=JobStatus(
            job_id=job_id,
            state=JOB_STATE_FINISHED,
            ended_wall_ms=wall_ms,
            vertices=[VertexStatus(vertex_id="v0")],
        ),
        result_files=[ResultFile(path="/out/part-0", bytes=3)],
        graph_digest=graph_digest(graph(job_id)),
        leader_epoch=epoch,
    )


async def opened(
    disk: SimulatedStorage | LocalDisk, root: str = ROOT, archives: int = 1000
) -> JobStore:
    store = JobStore(disk, root, archives_max=archives)
    await store.open()
    return store


async def stored(store: JobStore, job: JobGraph) -> bool:
    return await store.store(job, submitted_wall_ms=5, leader_epoch=2)


def lose_power(disk: SimulatedStorage) -> None:
    disk.power_loss()
    disk.power_on()


async def test_a_stored_job_survives_a_power_loss_whole() -> None:
    """P42, P49."""
    disk = SimulatedStorage()
    assert await stored(await opened(disk), graph())
    lose_power(disk)
    jobs = await (await opened(disk)).load_all()
    assert jobs == [StoredJob("job-1", graph(), graph_digest(graph()), 5, 0)]


async def test_a_power_cut_anywhere_leaves_the_whole_job_or_none() -> None:
    """P04, P42: cut after every system call of a submission."""
    for cut in range(1, 100):
        disk = SimulatedStorage(unsynced="torn")
        store = await opened(disk)
        disk.cut_after_mutation(cut)
        acknowledged = True
        try:
            await stored(store, graph())
        except PowerLoss:
            acknowledged = False
        lose_power(disk)
        again = await opened(disk)
        jobs = await again.load_all()
        assert [job.graph for job in jobs if isinstance(job, StoredJob)] in ([], [graph()])
        assert len(jobs) == 1 or not acknowledged
        assert await stored(again, graph()) == (not jobs)
        if acknowledged:
            return
    raise AssertionError("the submission never came to its end")


async def test_the_same_job_is_stored_once_and_another_under_its_id_is_refused() -> None:
    """P43."""
    disk = SimulatedStorage()
    assert await stored(await opened(disk), graph())
    store = await opened(disk)
    assert not await stored(store, graph())
    with pytest.raises(JobAlreadyExists):
        await stored(store, graph(name="another"))


async def test_a_refused_submission_leaves_nothing() -> None:
    """P49."""
    disk = SimulatedStorage()
    store = await opened(disk)
    disk.fail("publish", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        await stored(store, graph())
    assert await disk.list_directory(f"{ROOT}/jobs") == []
    with pytest.raises(InvalidId):
        await stored(store, graph("../other"))


@pytest.mark.parametrize(
    "damage", [b"", b"short", b"HOLDFILE" + bytes(40)], ids=["empty", "short", "zeroed"]
)
async def test_a_broken_job_stops_no_other_and_is_kept(damage: bytes) -> None:
    """P10."""
    disk = SimulatedStorage()
    store = await opened(disk)
    for job_id in ("a", "b", "c"):
        await stored(store, graph(job_id))
    broken = f"{ROOT}/jobs/b/graph.pb"
    disk.overwrite(broken, damage)
    for _ in range(3):
        first, second, third = await (await opened(disk)).load_all()
        assert isinstance(first, StoredJob)
        assert isinstance(second, BrokenJob)
        assert broken in second.reason
        assert isinstance(third, StoredJob)
    assert await disk.read(broken) == damage


async def test_every_changed_byte_of_a_graph_is_noticed() -> None:
    disk = SimulatedStorage()
    store = await opened(disk)
    await stored(store, graph())
    path = f"{ROOT}/jobs/job-1/graph.pb"
    data = await disk.read(path)
    for at in range(len(data)):
        disk.overwrite(path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        (job,) = await store.load_all()
        assert isinstance(job, BrokenJob), f"byte {at}"


class ManyReaders(SimulatedStorage):
    """Counts the reads that are under way."""

    under_way = most = 0

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        return await super().read(path, offset, length)


async def test_jobs_are_loaded_side_by_side_and_not_all_at_once() -> None:
    """A store that answers late does not make the last of many jobs wait for all others."""
    disk = ManyReaders()
    store = await opened(disk)
    names = [f"job-{number:02}" for number in range(40)]
    for name in names:
        await stored(store, graph(name))
    disk.most = 0
    loaded = await (await opened(disk)).load_all()
    assert [job.job_id for job in loaded] == names
    assert 1 < disk.most <= 16


async def test_a_job_that_had_events_and_whose_directory_was_emptied_is_no_new_job() -> None:
    """P09: neither the graph nor the log is there, and yet it ran."""
    disk = SimulatedStorage()
    store = await opened(disk)
    await stored(store, graph())
    await store.mark_recorded_events("job-1")
    await disk.remove(f"{ROOT}/jobs/job-1/graph.pb")
    (job,) = await (await opened(disk)).load_all()
    assert isinstance(job, BrokenJob)
    assert "graph.pb" in job.reason


async def test_that_a_job_without_a_log_is_cancelled_survives_a_power_loss() -> None:
    """P47. One that has ended meanwhile is left as it is."""
    disk = SimulatedStorage()
    store = await opened(disk)
    await stored(store, graph())
    assert not await store.is_cancelled("job-1")
    await store.mark_cancelled("job-1")
    lose_power(disk)
    store = await opened(disk)
    (job,) = await store.load_all()
    assert isinstance(job, StoredJob)
    assert await store.is_cancelled("job-1")
    await store.remove("job-1")
    await store.mark_cancelled("job-1")
    assert await disk.stat(f"{ROOT}/jobs/job-1") is None


async def test_events_without_a_graph_are_no_new_job() -> None:
    """P09."""
    disk = SimulatedStorage()
    store = await opened(disk)
    await stored(store, graph())
    await disk.make_directories(store.events_directory("job-1"))
    await disk.publish(f"{store.events_directory('job-1')}/0000000000000001-000000.log", b"x")
    await disk.remove(f"{ROOT}/jobs/job-1/graph.pb")
    (job,) = await store.load_all()
    assert isinstance(job, BrokenJob)
    assert "missing, though the job has events" in job.reason
    with pytest.raises(StorageError, match="has events"):
        await stored(store, graph())


async def test_an_ended_job_is_only_cleaned_up_however_often_that_fails() -> None:
    """P44."""
    disk = SimulatedStorage()
    store = await opened(disk)
    await stored(store, graph())
    await stored(store, graph("other"))
    await store.archive(ended())
    lose_power(disk)
    disk.fail("remove_tree", errno.EIO, times=3)
    for _ in range(3):
        store = await opened(disk)
        assert [job.job_id for job in await store.load_all()] == ["other"]
        assert await store.jobs_to_clean_up() == ["job-1"]
    await store.remove("job-1")
    await store.remove("job-1")
    assert await store.jobs_to_clean_up() == []
    assert await store.read_archive("job-1") == ended()


async def test_a_power_cut_between_the_end_marker_and_clean_up_never_runs_the_job_again() -> None:
    """P44."""
    for cut in range(1, 100):
        disk = SimulatedStorage()
        store = await opened(disk)
        await stored(store, graph())
        disk.cut_after_mutation(cut)
        archived = done = False
        try:
            await store.archive(ended())
            archived = True
            await store.remove("job-1")
            done = True
        except PowerLoss:
            pass
        lose_power(disk)
        store = await opened(disk)
        jobs = await store.load_all()
        assert (await store.read_archive("job-1") is not None) != bool(jobs)
        assert not (archived and jobs), f"cut after {cut}"
        if done:
            return
    raise AssertionError("the clean-up never came to its end")


async def test_an_ended_id_is_refused_in_words() -> None:
    """P44."""
    store = await opened(SimulatedStorage())
    await store.archive(ended())
    for job, same in ((graph(), True), (graph(name="another"), False)):
        with pytest.raises(JobAlreadyEnded, match=r"already ended \(FINISHED\)") as error:
            await stored(store, job)
        assert error.value.same_graph is same


async def test_a_damaged_end_marker_does_not_make_the_job_run_again() -> None:
    """P44."""
    disk = SimulatedStorage()
    store = await opened(disk)
    await stored(store, graph())
    await store.archive(ended())
    disk.overwrite(f"{ROOT}/archive/job-1.pb", b"rubbish")
    (job,) = await (await opened(disk)).load_all()
    assert isinstance(job, BrokenJob)
    assert "archive/job-1.pb" in job.reason


async def test_an_end_is_recorded_over_that_of_a_leader_before() -> None:
    """That one was frozen over it, did not know that the job went on, and is over (P44)."""
    disk = SimulatedStorage()
    before, store = await opened(disk), await opened(disk)
    await before.archive(ended(epoch=1))
    for wall_ms in (70, 80):
        await store.archive(ended(wall_ms=wall_ms, epoch=2))
        assert await store.read_archive("job-1") == ended(wall_ms=wall_ms, epoch=2)
        assert [status.ended_wall_ms for status in await store.list_archives()] == [wall_ms]


async def test_a_leader_that_is_over_does_not_record_an_end_over_that_of_its_successor() -> None:
    """P44."""
    disk = SimulatedStorage()
    store = await opened(disk)
    await store.archive(ended(epoch=2))
    with pytest.raises(LeadershipLost, match="another JobManager has recorded how job-1 ended"):
        await store.archive(ended(wall_ms=70, epoch=1))
    assert await store.read_archive("job-1") == ended(epoch=2)


async def test_who_was_frozen_over_an_end_records_none_of_a_job_that_another_began_anew() -> None:
    """A job without log: all that was done for its end is undone by then, and it runs again."""
    disk = SimulatedStorage()
    frozen, store = await opened(disk), await opened(disk)
    await stored(store, graph())
    await store.mark_begun_anew("job-1", 5)
    await frozen.archive(ended(epoch=4))
    lose_power(disk)
    store = await opened(disk)
    assert await store.read_archive("job-1") is None
    assert not await store.has_ended("job-1")
    assert await store.list_archives() == []
    (job,) = await store.load_all()
    assert isinstance(job, StoredJob)
    await store.archive(ended(epoch=5))
    for _ in range(2):
        assert await store.has_ended("job-1")
        assert await store.read_archive("job-1") == ended(epoch=5)
        await store.remove("job-1")


class Overtaken(SimulatedStorage):
    """Somebody does something else before a file is published as new; it may fail, too."""

    others: Callable[[], Awaitable[object]] | None = None
    error: OSError | None = None

    async def publish_new(self, path: str, data: bytes) -> None:
        others, self.others = self.others, None
        if others is not None:
            await others()
            if self.error is not None:
                raise self.error
        await super().publish_new(path, data)


async def test_a_job_is_stored_once_though_another_leader_was_faster() -> None:
    """A leader that was frozen over a submission goes on after its successor (P43)."""
    disk = Overtaken()
    store, successor = await opened(disk), await opened(disk)
    disk.others = lambda: stored(successor, graph())
    assert not await store.store(graph(), submitted_wall_ms=4, leader_epoch=1)
    disk.others = lambda: stored(successor, graph("job-2", name="another"))
    with pytest.raises(JobAlreadyExists):
        await store.store(graph("job-2"), submitted_wall_ms=4, leader_epoch=1)
    jobs = await (await opened(disk)).load_all()
    names = [job.graph.name for job in jobs if isinstance(job, StoredJob)]
    assert names == ["a job", "another"]


async def test_a_submission_that_fails_takes_nothing_from_another_leader() -> None:
    """P43, P49: the disk fails for a leader that is over; its successor has stored the job."""
    disk = Overtaken()
    store, successor = await opened(disk), await opened(disk)
    disk.others = lambda: stored(successor, graph())
    disk.error = OSError(errno.EIO, "Input/output error", ROOT)
    with pytest.raises(OSError, match="Input/output"):
        await store.store(graph(), submitted_wall_ms=5, leader_epoch=1)
    (job,) = await (await opened(disk)).load_all()
    assert isinstance(job, StoredJob)


async def test_archives_are_listed_newest_first_and_the_oldest_go() -> None:
    disk = SimulatedStorage()
    store = await opened(disk, archives=3)
    for number in range(5):
        await store.archive(ended(f"job-{number}", wall_ms=number))
    for listing in (await store.list_archives(), await (await opened(disk)).list_archives()):
        assert [status.job_id for status in listing] == ["job-4", "job-3", "job-2"]
        assert not listing[0].vertices
    assert await store.read_archive("job-0") is None


async def test_an_old_end_marker_stays_until_the_job_is_cleaned_up() -> None:
    """P44: without it the job would run again."""
    disk = SimulatedStorage()
    store = await opened(disk, archives=1)
    await stored(store, graph("old"))
    await store.archive(ended("old", wall_ms=1))
    await store.archive(ended("new", wall_ms=2))
    assert await store.read_archive("old") is not None
    await store.remove("old")
    await store.archive(ended("newest", wall_ms=3))
    assert [status.job_id for status in await store.list_archives()] == ["newest"]


async def test_recovery_attempts_are_counted_durably_until_cleared() -> None:
    disk = SimulatedStorage()
    store = await opened(disk)
    await stored(store, graph())
    for expected in (1, 2, 3):
        assert await store.raise_recovery_attempts("job-1") == expected
        lose_power(disk)
    (job,) = await (await opened(disk)).load_all()
    assert isinstance(job, StoredJob)
    assert job.recovery_attempts == 3
    await store.clear_recovery_attempts("job-1")
    await store.clear_recovery_attempts("job-1")
    lose_power(disk)
    assert await store.raise_recovery_attempts("job-1") == 1


async def test_known_workers_are_a_hint_that_may_be_lost() -> None:
    disk = SimulatedStorage()
    store = await opened(disk)
    assert await store.read_workers() == []
    await store.write_workers(["tm-b", "tm-a"])
    lose_power(disk)
    assert await store.read_workers() == ["tm-a", "tm-b"]
    disk.overwrite(f"{ROOT}/workers.pb", b"rubbish")
    assert await store.read_workers() == []


async def test_a_storage_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("no directory")
    with pytest.raises(StorageError, match=f"{target}: the storage directory is not writable"):
        await opened(LocalDisk(), str(target))
    if os.getuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(StorageError, match="Permission denied"):
            await opened(LocalDisk(), f"{tmp_path}/new")
        tmp_path.chmod(0o700)


async def test_what_a_crash_left_of_a_publish_is_removed_at_the_start(tmp_path: Path) -> None:
    store = await opened(LocalDisk(), str(tmp_path))
    (tmp_path / "archive" / ".job-1.pb.123.tmp").write_text("half")
    await store.open()
    assert list((tmp_path / "archive").iterdir()) == []


async def test_a_checked_file_is_refused_beyond_its_bound_and_from_a_newer_version() -> None:
    """P07."""
    disk = SimulatedStorage()
    await publish_checked(disk, "/file", b"payload")
    assert await read_checked(disk, "/file", 7) == b"payload"
    with pytest.raises(StoredFileDamaged, match="more than the 6 allowed"):
        await read_checked(disk, "/file", 6)
    data = await disk.read("/file")
    disk.overwrite("/file", data[:8] + b"\x02" + data[9:])
    with pytest.raises(StoredFileDamaged, match="version 2 is not supported"):
        await read_checked(disk, "/file", 7)
    assert await read_checked(disk, "/nothing", 7) is None
