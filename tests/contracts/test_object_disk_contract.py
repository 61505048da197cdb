"""What a disk keeps that is an object store: the contract of disks without what is not here.

Not here are locks and patterns, directories that exist while they are empty, and what follows of
those: a file cannot be refused because its directory is missing, nor a directory because a file
has its name. No service asks for these where its storage is.
"""

from __future__ import annotations

import pytest

from holdover.runtime import FileStat, Runtime
from holdover.runtime.object_disk import PART_BYTES_MAX
from tests.contracts.conftest import DiskArm
from tests.contracts.test_disk_contract import (
    test_a_truncated_file_goes_on_at_its_new_end,
    test_an_append_file_grows_over_reopening,
    test_cancelled_calls_leave_nothing_open,
    test_free_bytes_is_a_positive_number,
    test_of_those_who_publish_as_new_at_once_one_does,
    test_publish_replaces_and_leaves_no_temporary_file,
    test_published_data_is_read_back_whole_or_in_part,
    test_reading_a_missing_file_names_it,
    test_remove_all_takes_what_is_there,
    test_remove_minds_a_missing_file_unless_told,
    test_remove_tree_takes_all_although_others_remove_there_too,
    test_remove_tree_takes_all_below_and_nothing_beside,
    test_rename_moves_files_and_directories_and_replaces_files,
    test_stat_knows_files_directories_and_nothing,
    test_the_same_bytes_may_be_published_as_new_twice,
    test_what_is_published_as_new_replaces_nothing,
)

pytestmark = pytest.mark.asyncio(loop_factories=["real"])

__all__ = [
    "test_a_truncated_file_goes_on_at_its_new_end",
    "test_an_append_file_grows_over_reopening",
    "test_cancelled_calls_leave_nothing_open",
    "test_free_bytes_is_a_positive_number",
    "test_of_those_who_publish_as_new_at_once_one_does",
    "test_publish_replaces_and_leaves_no_temporary_file",
    "test_published_data_is_read_back_whole_or_in_part",
    "test_reading_a_missing_file_names_it",
    "test_remove_all_takes_what_is_there",
    "test_remove_minds_a_missing_file_unless_told",
    "test_remove_tree_takes_all_although_others_remove_there_too",
    "test_remove_tree_takes_all_below_and_nothing_beside",
    "test_rename_moves_files_and_directories_and_replaces_files",
    "test_stat_knows_files_directories_and_nothing",
    "test_the_same_bytes_may_be_published_as_new_twice",
    "test_what_is_published_as_new_replaces_nothing",
]


@pytest.fixture
async def disk_arm(runtime_arm: Runtime, object_root: str) -> DiskArm:
    """The disk of the real runtime, which finds the store by the path."""
    return DiskArm(runtime_arm.disk, object_root)


async def test_what_a_disk_keeps_in_parts_is_read_over_their_borders(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/log"
    file = await disk_arm.disk.open_append(path)
    for number in range(40):
        await file.write(b"%02d-%02d " % (number, number))
        await file.sync()
    await file.close()
    content = b"".join(b"%02d-%02d " % (number, number) for number in range(40))
    assert await disk_arm.disk.read(path) == content
    for start in range(0, len(content), 7):
        assert await disk_arm.disk.read(path, start, 11) == content[start : start + 11]
    (entry,) = await disk_arm.disk.list_directory(disk_arm.root)
    assert (entry.name, entry.bytes, entry.is_directory) == ("log", len(content), False)
    assert await disk_arm.disk.read(path, len(content), 10) == b""


async def test_two_writers_of_one_file_never_write_over_each_other(disk_arm: DiskArm) -> None:
    """The one that was slower is told, and its handle is of no more use."""
    path = f"{disk_arm.root}/log"
    first = await disk_arm.disk.open_append(path)
    second = await disk_arm.disk.open_append(path)
    await first.write(b"first")
    await second.write(b"second")
    await first.sync()
    with pytest.raises(OSError, match="another process has written the object before"):
        await second.sync()
    with pytest.raises(OSError, match="failed before"):
        await second.write(b"more")
    await second.close()
    await first.close()
    assert await disk_arm.disk.read(path) == b"first"


async def test_a_hole_in_a_file_is_seen_and_never_makes_it_shorter(disk_arm: DiskArm) -> None:
    """As an interrupted rename leaves it."""
    path = f"{disk_arm.root}/log"
    file = await disk_arm.disk.open_append(path)
    for text in (b"one", b"two", b"three"):
        await file.write(text)
        await file.sync()
    await file.close()
    await disk_arm.disk.remove(f"{path}.parts/{3:020d}")
    assert await disk_arm.disk.read(path) == b"one\0\0\0three"
    await disk_arm.disk.remove(f"{path}.parts/{0:020d}")
    assert await disk_arm.disk.read(path) == b"\0\0\0\0\0\0three"


async def test_an_open_file_whose_last_part_has_gone_is_not_what_it_was(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/log"
    file = await disk_arm.disk.open_append(path)
    for text in (b"one", b"two"):
        await file.write(text)
        await file.sync()
    assert await disk_arm.disk.stat(path) == FileStat(path, 6)
    await disk_arm.disk.remove(f"{path}.parts/{3:020d}")
    assert await disk_arm.disk.stat(path) == FileStat(path, 3)
    await disk_arm.disk.remove(path)
    assert await disk_arm.disk.stat(path) is None
    await file.close()


async def test_a_large_file_is_put_in_bounded_parts(disk_arm: DiskArm) -> None:
    path = f"{disk_arm.root}/log"
    file = await disk_arm.disk.open_append(path)
    content = bytes(range(256)) * (80 * 1024)
    await file.write(content)
    await file.write(b"end")
    await file.sync()
    await file.close()
    sizes = [part.bytes for part in await disk_arm.disk.list_directory(f"{path}.parts")]
    assert max(sizes) == PART_BYTES_MAX
    assert len(sizes) == 3
    assert await disk_arm.disk.read(path) == content + b"end"
    assert await disk_arm.disk.read(path, PART_BYTES_MAX - 3, 6) == b"\xfd\xfe\xff\0\1\2"
