"""Publishing output: each file once, whatever happens in between (P45)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdover.v1.common_pb2 import StagedFile
from jobmanager.leading import LeadershipLost, Leading
from jobmanager.sink_commit import (
    CommitImpossible,
    foreign_file,
    missing_staged_files,
    publish,
    remove_staging,
    staging_directory,
    withdraw,
)
from simulator.world.storage import PowerLoss, SimulatedStorage

OUTPUTS = ("/out/a", "/out/b", "/out/c")
CHANGES = ("rename", "open_append", "remove_tree")
COMPLETE = {
    **{f"{path}/part-{index}": f"{path} {index}".encode() for path in OUTPUTS for index in (0, 1)},
    **{f"{path}/_SUCCESS": b"" for path in OUTPUTS},
}


async def staged(disk: SimulatedStorage) -> list[StagedFile]:
    """Two files for each of three sinks, and what a failed attempt has left."""
    files = []
    for path in OUTPUTS:
        for index in (0, 1):
            directory = f"{staging_directory(path, 'job')}/k-{index}-1-1"
            content = f"{path} {index}".encode()
            await disk.make_directories(directory)
            await disk.publish(f"{directory}/part", content)
            final = f"{path}/part-{index}"
            files.append(
                StagedFile(
                    staged_path=f"{directory}/part", final_path=final, bytes=len(content), rows=1
                )
            )
        await disk.make_directories(f"{staging_directory(path, 'job')}/k-0-0-1")
        await disk.publish(f"{staging_directory(path, 'job')}/k-0-0-1/part", b"of another attempt")
    return files


async def visible(disk: SimulatedStorage) -> dict[str, bytes]:
    """What a reader sees."""
    return {file.path: await disk.read(file.path) for file in await disk.glob("/out/*/*")}


async def test_all_files_are_published_then_the_marks_and_nothing_else_is_left() -> None:
    disk = SimulatedStorage()
    files = await staged(disk)
    assert await missing_staged_files(disk, files) == ()
    disk.operations.clear()
    await publish(disk, "job", files, OUTPUTS, Leading())
    assert await visible(disk) == COMPLETE
    # A death inside `Disk.publish` may leave a temporary file among the output.
    assert not [path for operation, path in disk.operations if operation == "publish"]
    for path in OUTPUTS:
        assert await disk.stat(staging_directory(path, "job")) is None
    steps = [name for name, _ in disk.operations if name in CHANGES]
    assert steps == ["rename"] * 6 + ["open_append"] * 3 + ["remove_tree"] * 3


@pytest.mark.parametrize("unsynced", ["dropped", "torn", "zeroed"])
async def test_a_commit_that_was_cut_anywhere_is_completed_by_the_next(unsynced: str) -> None:
    """A mark is never seen without the output of all sinks, however often the power goes."""
    for cut in range(1, 200):
        disk = SimulatedStorage(unsynced)  # type: ignore[arg-type]
        files = await staged(disk)
        disk.cut_after_mutation(cut)
        try:
            await publish(disk, "job", files, OUTPUTS, Leading())
        except PowerLoss:
            disk.power_on()
        else:
            return
        seen = await visible(disk)
        parts = [path for path in seen if "part-" in path]
        assert len(parts) == 6 or not any(path.endswith("_SUCCESS") for path in seen), cut
        for _ in range(2):  # a further leader does it again, and changes nothing
            await publish(disk, "job", files, OUTPUTS, Leading())
            disk.power_loss()
            disk.power_on()
            assert await visible(disk) == COMPLETE, cut
    raise AssertionError("the commit never came to its end")


class OvertakenStorage(SimulatedStorage):
    """Somebody else does all the work right before one operation that is under way already."""

    def __init__(self) -> None:
        super().__init__()
        self.before = 0
        self.files: list[StagedFile] = []
        self.left_behind: list[str] = []

    def begin(self, operation: str, path: str) -> None:
        """See `Medium.begin`."""
        self.before -= 1
        if self.before == 0:
            with pytest.raises(StopIteration):
                publish(self, "job", self.files, OUTPUTS, Leading()).send(None)
            self.left_behind = self.all_paths("/out")
        super().begin(operation, path)

    def all_paths(self, directory: str) -> list[str]:
        """All files and directories."""
        found = []
        for entry in self.list_directory_now(directory):
            path = f"{directory}/{entry.name}"
            found += [path, *(self.all_paths(path) if entry.is_directory else ())]
        return found


async def test_a_leader_that_wakes_in_any_operation_changes_nothing_of_what_its_successor_did() -> (
    None
):
    """It goes on from there, for as long as storage lets it."""
    for number in range(1, 200):
        disk = OvertakenStorage()
        disk.files += await staged(disk)
        disk.before = number
        with suppress(FileNotFoundError):
            await publish(disk, "job", disk.files, OUTPUTS, Leading())
        if disk.before > 0:
            assert number > 30, "every operation was tried"
            return
        assert disk.all_paths("/out") == disk.left_behind, (number, [*disk.operations][-5:])
        assert await visible(disk) == COMPLETE
    raise AssertionError("the commit never came to its end")


async def test_who_wakes_as_no_leader_any_more_begins_no_further_operation() -> None:
    """Its successor may have begun the job anew, for want of a log, and stages in that place."""
    for certain in range(10):  # for six files, three marks and one removal
        disk = SimulatedStorage()
        files = await staged(disk)
        disk.operations.clear()
        asked, told = iter(range(certain)), asyncio.Event()

        def leads(asked: Iterator[int] = asked, told: asyncio.Event = told) -> bool:
            if next(asked, None) is None:
                told.set()
            return not told.is_set()

        publishing = asyncio.ensure_future(publish(disk, "job", files, OUTPUTS, Leading(leads)))
        await told.wait()
        publishing.cancel()
        changes = [name for name, _ in disk.operations if name in CHANGES]
        assert changes == (["rename"] * 6 + ["open_append"] * 3)[:certain]


@pytest.mark.parametrize("renamed", range(6))
async def test_an_error_of_storage_leaves_a_commit_that_can_be_repeated(renamed: int) -> None:
    disk = SimulatedStorage()
    files = await staged(disk)
    disk.fail("rename", errno.EIO, skip=renamed)
    with pytest.raises(OSError, match="error"):
        await publish(disk, "job", files, OUTPUTS, Leading())
    assert len(await visible(disk)) == renamed
    await publish(disk, "job", files, OUTPUTS, Leading())
    assert await visible(disk) == COMPLETE


async def test_a_staged_file_that_is_gone_or_of_another_size_is_missing() -> None:
    """P34: its subtask must run again before anything is published."""
    disk = SimulatedStorage()
    files = await staged(disk)
    await disk.remove(files[1].staged_path)
    disk.overwrite(files[4].staged_path, b"cut")
    lost = (files[1].staged_path, files[4].staged_path)
    assert await missing_staged_files(disk, files) == lost


async def test_a_commit_whose_file_is_neither_staged_nor_published_is_impossible() -> None:
    disk = SimulatedStorage()
    files = await staged(disk)
    await disk.remove(files[5].staged_path)
    with pytest.raises(CommitImpossible, match="/out/c/part-1 cannot be published"):
        await publish(disk, "job", files, OUTPUTS, Leading())
    assert not [path for path in await visible(disk) if path.endswith("_SUCCESS")]


async def test_output_of_somebody_else_is_never_mixed_with() -> None:
    disk = SimulatedStorage()
    files = await staged(disk)
    await disk.publish("/out/b/part-7", b"of another job")
    assert await foreign_file(disk, OUTPUTS) == "/out/b/part-7"
    with pytest.raises(CommitImpossible, match="/out/b/part-7 was written"):
        await publish(disk, "job", files, OUTPUTS, Leading())
    assert await visible(disk) == {"/out/b/part-7": b"of another job"}


async def test_staging_of_another_job_is_not_touched() -> None:
    disk = SimulatedStorage()
    await staged(disk)
    await disk.make_directories(staging_directory("/out/a", "other"))
    await remove_staging(disk, "job", OUTPUTS)
    await remove_staging(disk, "job", OUTPUTS)
    assert [entry.name for entry in await disk.list_directory("/out/a")] == [".staging-other"]
    assert await foreign_file(disk, OUTPUTS) is None


async def test_staging_that_was_removed_does_not_come_back_with_the_power() -> None:
    disk = SimulatedStorage()
    await staged(disk)
    for path in OUTPUTS:
        await disk.sync_directory(path)
    await remove_staging(disk, "job", [*OUTPUTS, "/out/never-made"])
    disk.power_loss()
    disk.power_on()
    for path in OUTPUTS:
        assert await disk.list_directory(path) == []


async def test_what_was_published_of_a_job_that_begins_anew_is_withdrawn_the_mark_first() -> None:
    """Durably, whatever else stands there; and where nothing was published nothing is done."""
    disk = SimulatedStorage()
    for name in ("_SUCCESS", "part-v1-00000.parquet", "part-v12-00000.parquet", "notes"):
        await disk.make_directories("/out/a")
        await disk.publish(f"/out/a/{name}", b"x")
    disk.operations.clear()
    sinks = [("/out/a", "v1"), ("/out/b", "v2")]
    await withdraw(disk, sinks, Leading())
    removed = [path for operation, path in disk.operations if operation == "remove"]
    assert removed == ["/out/a/_SUCCESS", "/out/a/part-v1-00000.parquet"]
    disk.power_loss()
    disk.power_on()
    assert [*await visible(disk)] == ["/out/a/notes", "/out/a/part-v12-00000.parquet"]
    disk.operations.clear()
    await withdraw(disk, sinks, Leading())
    assert {operation for operation, _ in disk.operations} <= {"stat", "list_directory"}


async def test_who_wakes_as_no_leader_any_more_withdraws_nothing_that_its_successor_published() -> (
    None
):
    """It was frozen between two files, or before the first one."""
    for before in range(2):
        disk = SimulatedStorage()
        await disk.make_directories("/out/a")
        for name in ("_SUCCESS", "part-v1-00000.parquet"):
            await disk.publish(f"/out/a/{name}", b"x")
        answers = iter([True] * before + [False] * 2)
        frozen = Leading(lambda answers=answers: next(answers), lambda: True)  # type: ignore[misc]
        with pytest.raises(LeadershipLost):
            await withdraw(disk, [("/out/a", "v1")], frozen)
        assert len(await visible(disk)) == 2 - before
