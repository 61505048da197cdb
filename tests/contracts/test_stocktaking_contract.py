"""What a worker finds of itself after a restart, in both worlds (P38, P40)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import google_crc32c
import pytest

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import Runtime
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition
from shuffle.finished_record import encode_record, files_of, record_name
from shuffle.stocktaking import Stock, take_stock
from tests.contracts.conftest import DiskArm

DATA = b"rows and rows"


def attempt(subtask: int, job: str = "job") -> AttemptKey:
    return AttemptKey(job, "map", subtask, attempt=0, epoch=1)


def index() -> tuple[bytes, int]:
    checksum = google_crc32c.value(b"an index")
    return b"an index" + checksum.to_bytes(4, "little"), checksum


async def leave(arm: DiskArm, key: AttemptKey, outputs: int = 1) -> FinishedExecution:
    """Write what a finished attempt leaves."""
    content, checksum = index()
    await arm.disk.make_directories(f"{arm.root}/{key.job_id}")
    for output in range(outputs):
        base = f"{arm.root}/{partition_name(key, output)}"
        await arm.disk.publish(f"{base}.data", DATA)
        await arm.disk.publish(f"{base}.index", content)
    execution = FinishedExecution(
        attempt=key.to_proto(),
        partitions=[
            ResultPartition(output=output, data_bytes=len(DATA), index_crc32c=checksum)
            for output in range(outputs)
        ],
    )
    await arm.disk.publish(f"{arm.root}/{record_name(key)}", encode_record(execution))
    return execution


async def stock_of(arm: DiskArm, runtime: Runtime) -> Stock:
    return await take_stock(arm.disk, runtime.clock, arm.root)


async def files(arm: DiskArm) -> list[str]:
    found = await arm.disk.glob(f"{arm.root}/**/*")
    return [each.path.removeprefix(f"{arm.root}/") for each in found]


async def test_whole_attempts_are_found_and_all_else_is_deleted(
    disk_arm: DiskArm, runtime_arm: Runtime
) -> None:
    keys = [*(attempt(n) for n in range(40)), attempt(0, "other")]
    left = {key: await leave(disk_arm, key, outputs=2) for key in keys}
    for rubbish in ("job/map-0-90-0-1.index", "job/map-0-91-0-1.data.part", "job/x.finished.part"):
        await disk_arm.disk.publish(f"{disk_arm.root}/{rubbish}", b"?")
    await disk_arm.disk.make_directories(f"{disk_arm.root}/job/directory")
    await disk_arm.disk.make_directories(f"{disk_arm.root}/Not A Job")
    await disk_arm.disk.make_directories(f"{disk_arm.root}/empty")
    await disk_arm.disk.publish(f"{disk_arm.root}/a-file", b"?")
    stock = await stock_of(disk_arm, runtime_arm)
    assert stock.found == left
    assert stock.bytes == len(left) * 2 * len(DATA)
    assert (stock.damaged, stock.deleted) == (0, 7)
    assert await files(disk_arm) == sorted(f for each in left.items() for f in files_of(*each))
    names = [entry.name for entry in await disk_arm.disk.list_directory(disk_arm.root)]
    assert names == ["job", "other"]


async def test_an_attempt_without_partitions_is_found(
    disk_arm: DiskArm, runtime_arm: Runtime
) -> None:
    execution = await leave(disk_arm, attempt(0), outputs=0)
    assert (await stock_of(disk_arm, runtime_arm)).found == {attempt(0): execution}


@pytest.mark.parametrize("cut_bytes", [0, 1])
async def test_the_attempts_of_a_group_are_found_up_to_where_it_is_cut_off(
    disk_arm: DiskArm, runtime_arm: Runtime, cut_bytes: int
) -> None:
    """They have left no files; a kill, or a loss of power, may have cut off the last record."""
    left = {key: FinishedExecution(attempt=key.to_proto()) for key in map(attempt, range(40))}
    content = b"".join(map(encode_record, left.values()))
    await disk_arm.disk.make_directories(f"{disk_arm.root}/job")
    group = f"{disk_arm.root}/job/map-0-0-1.attempts"
    await disk_arm.disk.publish(group, content[: len(content) - cut_bytes])
    for empty in ("job/map-50-0-1.attempts", "empty/map-0-0-1.attempts"):
        await disk_arm.disk.make_directories(f"{disk_arm.root}/{empty.split('/')[0]}")
        await disk_arm.disk.publish(f"{disk_arm.root}/{empty}", b"")
    stock = await stock_of(disk_arm, runtime_arm)
    if cut_bytes:
        del left[attempt(39)]
    assert stock.found == left
    assert (stock.damaged, stock.deleted) == (cut_bytes, 2)
    assert await files(disk_arm) == ["job/map-0-0-1.attempts"]


Damage = Callable[[bytes], bytes | None]
DAMAGES: Sequence[tuple[str, Damage]] = [
    ("is missing", lambda _: None),
    ("is empty", lambda _: b""),
    ("is cut", lambda content: content[:-1]),
    ("is longer", lambda content: content + b"!"),
    ("is flipped", lambda content: bytes([content[0] ^ 1]) + content[1:]),
]


@pytest.mark.parametrize("damage", [pytest.param(how, id=what) for what, how in DAMAGES])
@pytest.mark.parametrize("file", range(5), ids=["record", "index", "data", "index 1", "data 1"])
async def test_an_attempt_of_which_anything_is_wrong_is_deleted_whole_and_its_neighbour_stays(
    disk_arm: DiskArm, runtime_arm: Runtime, file: int, damage: Damage
) -> None:
    whole = await leave(disk_arm, attempt(0))
    broken = await leave(disk_arm, attempt(1), outputs=2)
    path = f"{disk_arm.root}/{files_of(attempt(1), broken)[file]}"
    content = await disk_arm.disk.read(path)
    damaged = damage(content)
    await disk_arm.disk.remove(path)
    if damaged is not None:
        await disk_arm.disk.publish(path, damaged)
    stock = await stock_of(disk_arm, runtime_arm)
    flipped_data = path.endswith(".data") and damaged is not None and len(damaged) == len(content)
    if flipped_data:  # what is in a block is verified by who reads it
        assert list(stock.found) == [attempt(0), attempt(1)]
    else:
        assert stock.found == {attempt(0): whole}
        assert await files(disk_arm) == sorted(files_of(attempt(0), whole))


async def test_an_empty_directory_has_nothing(disk_arm: DiskArm, runtime_arm: Runtime) -> None:
    assert await stock_of(disk_arm, runtime_arm) == Stock()
