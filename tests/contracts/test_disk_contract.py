"""What every arm's disk keeps; durability itself is tested on the power-loss arm."""

from __future__ import annotations

import asyncio
import errno
import gc

import pytest

from holdover.runtime import Entry, FileStat
from tests.contracts.conftest import DiskArm


async def write_file(arm: DiskArm, name: str, data: bytes) -> str:
    path = f"{arm.root}/{name}"
    await arm.disk.publish(path, data)
    return path


async def test_published_data_is_read_back_whole_or_in_part(disk_arm: DiskArm) -> None:
    path = await write_file(disk_arm, "a", b"0123456789")
    assert await disk_arm.disk.read(path) == b"0123456789"
    assert await disk_arm.disk.read(path, offset=3) == b"3456789"
    assert await disk_arm.disk.read(path, offset=3, length=2) == b"34"
    assert await disk_arm.disk.read(path, offset=8, length=100) == b"89"
    assert await disk_arm.disk.read(path, offset=50) == b""


async def test_publish_replaces_and_leaves_no_temporary_file(disk_arm: DiskArm) -> None:
    await write_file(disk_arm, "a", b"old")
    await write_file(disk_arm, "a", b"new and longer")
    assert await disk_arm.disk.list_directory(disk_arm.root) == [Entry("a", False, 14)]


async def test_publish_into_a_missing_directory_says_so(disk_arm: DiskArm) -> None:
    with pytest.raises(FileNotFoundError):
        await write_file(disk_arm, "missing/a", b"")
    with pytest.raises(FileNotFoundError):
        await disk_arm.disk.publish_new(f"{disk_arm.root}/missing/a", b"")


async def test_what_is_published_as_new_replaces_nothing(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/a"
    await disk_arm.disk.publish_new(path, b"first")
    for late in (b"late", b""):
        with pytest.raises(FileExistsError) as raised:
            await disk_arm.disk.publish_new(path, late)
        assert raised.value.filename == path
    assert await disk_arm.disk.read(path) == b"first"
    assert await disk_arm.disk.list_directory(disk_arm.root) == [Entry("a", False, 5)]


async def test_the_same_bytes_may_be_published_as_new_twice(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/a"
    await disk_arm.disk.publish_new(path, b"first")
    await disk_arm.disk.publish_new(path, b"first")
    assert await disk_arm.disk.list_directory(disk_arm.root) == [Entry("a", False, 5)]


async def test_of_those_who_publish_as_new_at_once_one_does(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/a"
    texts = [b"%02d" % number for number in range(20)]
    publishing = (disk_arm.disk.publish_new(path, text) for text in texts)
    outcomes = await asyncio.gather(*publishing, return_exceptions=True)
    done = [text for text, outcome in zip(texts, outcomes, strict=True) if outcome is None]
    assert [await disk_arm.disk.read(path)] == done
    assert sum(isinstance(outcome, FileExistsError) for outcome in outcomes) == 19


async def test_reading_a_missing_file_names_it(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/missing"
    with pytest.raises(FileNotFoundError) as raised:
        await disk_arm.disk.read(path)
    assert raised.value.filename == path
    assert raised.value.errno == errno.ENOENT


async def test_an_append_file_grows_over_reopening(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/log"
    file = await disk_arm.disk.open_append(path)
    assert file.path == path
    await file.write(b"one ")
    await file.sync()
    await file.close()
    await file.close()
    file = await disk_arm.disk.open_append(path)
    await file.write(b"two")
    await file.close()
    await disk_arm.disk.sync_directory(disk_arm.root)
    assert await disk_arm.disk.read(path) == b"one two"


async def test_a_truncated_file_goes_on_at_its_new_end(disk_arm: DiskArm) -> None:
    file = await disk_arm.disk.open_append(f"{disk_arm.root}/log")
    await file.write(b"0123456789")
    await file.truncate(4)
    await file.write(b"x")
    await file.close()
    assert await disk_arm.disk.read(file.path) == b"0123x"


async def test_rename_moves_files_and_directories_and_replaces_files(disk_arm: DiskArm) -> None:
    root, disk = disk_arm.root, disk_arm.disk
    await write_file(disk_arm, "a", b"a")
    await write_file(disk_arm, "b", b"b")
    await disk.rename(f"{root}/a", f"{root}/b")
    await disk.make_directories(f"{root}/d")
    await write_file(disk_arm, "d/x", b"x")
    await disk.rename(f"{root}/d", f"{root}/e")
    assert await disk.list_directory(root) == [Entry("b", False, 1), Entry("e", True, 0)]
    assert await disk.read(f"{root}/b") == b"a"
    assert await disk.read(f"{root}/e/x") == b"x"


async def test_remove_minds_a_missing_file_unless_told(disk_arm: DiskArm) -> None:
    path = await write_file(disk_arm, "a", b"")
    await disk_arm.disk.remove(path)
    await disk_arm.disk.remove(path, missing_ok=True)
    with pytest.raises(FileNotFoundError):
        await disk_arm.disk.remove(path)


async def test_remove_all_takes_what_is_there(disk_arm: DiskArm) -> None:
    disk, root = disk_arm.disk, disk_arm.root
    for name in ("a", "b", "c"):
        await disk.publish(f"{root}/{name}", b"1")
    assert await disk.remove_all([f"{root}/a", f"{root}/missing", f"{root}/c"]) == []
    assert [entry.name for entry in await disk.list_directory(root)] == ["b"]
    assert await disk.remove_all([]) == []


async def test_remove_all_tells_what_it_cannot_and_takes_the_others(disk_arm: DiskArm) -> None:
    disk, root = disk_arm.disk, disk_arm.root
    await disk.make_directories(f"{root}/directory")
    await disk.publish(f"{root}/file", b"1")
    failures = await disk.remove_all([f"{root}/directory", f"{root}/file"])
    assert [failure.filename for failure in failures] == [f"{root}/directory"]
    assert [entry.name for entry in await disk.list_directory(root)] == ["directory"]


async def test_remove_tree_takes_all_although_others_remove_there_too(disk_arm: DiskArm) -> None:
    """A job is released while single partitions of it are being deleted (P35)."""
    disk, root = disk_arm.disk, disk_arm.root
    await disk.make_directories(f"{root}/d")
    for number in range(500):
        await (await disk.open_append(f"{root}/d/{number}")).close()
    removals = (disk.remove_tree(f"{root}/d", missing_ok=True) for _ in range(4))
    await asyncio.gather(*removals)
    assert await disk.stat(f"{root}/d") is None


async def test_remove_tree_takes_all_below_and_nothing_beside(disk_arm: DiskArm) -> None:
    root, disk = disk_arm.root, disk_arm.disk
    await disk.make_directories(f"{root}/d/deep/er")
    await write_file(disk_arm, "d/deep/x", b"x")
    await write_file(disk_arm, "beside", b"b")
    await disk.remove_tree(f"{root}/d")
    await disk.remove_tree(f"{root}/d", missing_ok=True)
    assert [entry.name for entry in await disk.list_directory(root)] == ["beside"]
    with pytest.raises(FileNotFoundError):
        await disk.remove_tree(f"{root}/d")


async def test_make_directories_makes_parents_and_accepts_existing_ones(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/a/b/c"
    await disk_arm.disk.make_directories(path)
    await disk_arm.disk.make_directories(path)
    assert await disk_arm.disk.stat(path) == FileStat(path, 0, True)
    await write_file(disk_arm, "file", b"")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        await disk_arm.disk.make_directories(f"{disk_arm.root}/file/below")


async def test_stat_knows_files_directories_and_nothing(disk_arm: DiskArm) -> None:
    path = await write_file(disk_arm, "a", b"123")
    assert await disk_arm.disk.stat(path) == FileStat(path, 3)
    assert await disk_arm.disk.stat(f"{disk_arm.root}/missing/deep") is None
    assert await disk_arm.disk.stat(f"{path}/below-a-file") is None


async def test_glob_finds_files_only_sorted_and_recursive(disk_arm: DiskArm) -> None:
    root, disk = disk_arm.root, disk_arm.disk
    await disk.make_directories(f"{root}/sub/deep")
    for name in ("b.csv", "a.csv", "a.txt", ".hidden.csv", "sub/c.csv", "sub/deep/d.csv"):
        await write_file(disk_arm, name, name.encode())

    async def names(pattern: str) -> list[str]:
        return [found.path.removeprefix(f"{root}/") for found in await disk.glob(pattern)]

    assert await names(f"{root}/*.csv") == ["a.csv", "b.csv"]
    assert await names(f"{root}/[!a].*") == ["b.csv"]
    assert await names(f"{root}/?.txt") == ["a.txt"]
    assert await names(f"{root}/**/*.csv") == ["a.csv", "b.csv", "sub/c.csv", "sub/deep/d.csv"]
    assert await names(f"{root}/sub/c.csv") == ["sub/c.csv"]
    assert await names(f"{root}/su*") == []
    assert (await disk.glob(f"{root}/a.csv"))[0].bytes == 5


async def test_a_lock_is_exclusive_until_released(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/lock"
    held = await disk_arm.disk.lock(path)
    assert held is not None
    assert await disk_arm.disk.lock(path) is None
    await held.release()
    await held.release()
    again = await disk_arm.disk.lock(path)
    assert again is not None
    await again.release()


async def test_a_cancelled_lock_is_not_held_by_nobody(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/lock"
    attempt = asyncio.create_task(disk_arm.disk.lock(path))
    await asyncio.sleep(0)
    if attempt.cancel():
        await asyncio.wait([attempt])
    elif (held := attempt.result()) is not None:
        await held.release()
    async with asyncio.timeout(60):
        while (held := await disk_arm.disk.lock(path)) is None:
            await asyncio.sleep(0.01)
    await held.release()


async def test_cancelled_calls_leave_nothing_open(disk_arm: DiskArm) -> None:
    """An unclosed file is a ResourceWarning, which fails the test."""
    path = await write_file(disk_arm, "a", bytes(1_000_000))
    for _ in range(50):
        reading = asyncio.create_task(disk_arm.disk.read(path))
        opening = asyncio.create_task(disk_arm.disk.open_append(path))
        await asyncio.sleep(0)
        reading.cancel()
        opening.cancel()
        await asyncio.wait([reading, opening])
        if not opening.cancelled():
            await opening.result().close()
        del reading, opening
    gc.collect()


async def test_free_bytes_is_a_positive_number(disk_arm: DiskArm) -> None:
    assert await disk_arm.disk.free_bytes(disk_arm.root) > 0
