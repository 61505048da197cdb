"""What the power-loss disk forgets, which is what makes it worth testing against."""

from __future__ import annotations

import errno

import pytest

from simulator.world.storage import PowerLoss, SimulatedStorage, Unsynced


async def disk_with_root(unsynced: Unsynced = "dropped") -> SimulatedStorage:
    disk = SimulatedStorage(unsynced)
    await disk.make_directories("/d")
    return disk


@pytest.mark.parametrize(
    ("unsynced", "survivor"), [("dropped", b"aa"), ("zeroed", b"aa\0\0"), ("torn", b"aab")]
)
async def test_what_was_not_synced_is_lost(unsynced: Unsynced, survivor: bytes) -> None:
    disk = await disk_with_root(unsynced)
    file = await disk.open_append("/d/log")
    await disk.sync_directory("/d")
    await file.write(b"aa")
    await file.sync()
    await file.write(b"bb")
    disk.power_loss()
    disk.power_on()
    assert await disk.read("/d/log") == survivor


async def test_a_name_whose_directory_was_not_synced_is_lost() -> None:
    disk = await disk_with_root()
    file = await disk.open_append("/d/log")
    await file.write(b"aa")
    await file.sync()
    disk.power_loss()
    disk.power_on()
    assert await disk.list_directory("/d") == []


async def test_a_file_open_at_the_loss_is_dead() -> None:
    disk = await disk_with_root()
    file = await disk.open_append("/d/log")
    disk.power_loss()
    disk.power_on()
    with pytest.raises(PowerLoss):
        await file.write(b"x")


async def test_a_publish_cut_anywhere_shows_the_old_file_or_the_new() -> None:
    """P04."""
    for cut in range(1, 6):
        disk = await disk_with_root()
        await disk.publish("/d/a", b"old")
        disk.cut_after_mutation(cut)
        with pytest.raises(PowerLoss):
            await disk.publish("/d/a", b"new")
        with pytest.raises(PowerLoss):
            await disk.read("/d/a")
        disk.power_on()
        assert await disk.read("/d/a") == (b"new" if cut == 5 else b"old"), f"cut {cut}"


async def test_a_publish_as_new_cut_anywhere_shows_the_whole_file_or_none() -> None:
    """P04."""
    for cut in range(1, 7):
        disk = await disk_with_root()
        disk.cut_after_mutation(cut)
        with pytest.raises(PowerLoss):
            await disk.publish_new("/d/a", b"new")
        disk.power_on()
        left = [entry.name for entry in await disk.list_directory("/d")]
        assert left == (["a"] if cut == 6 else []), f"cut {cut}"


async def test_a_publish_as_new_that_finds_its_bytes_makes_them_durable() -> None:
    """Whoever has put them there may have died before it did."""
    disk = await disk_with_root()
    disk.stepwise = True
    steps = disk.publish_new_steps("/d/a", b"new")
    for _ in range(4):
        next(steps)
    assert await disk.read("/d/a") == b"new"
    await disk.publish_new("/d/a", b"new")
    disk.power_loss()
    disk.power_on()
    assert await disk.read("/d/a") == b"new"


async def test_a_fault_strikes_when_and_where_it_was_asked_for() -> None:
    disk = await disk_with_root()
    disk.fail("sync", errno.EIO, "/d/log*", skip=1)
    file = await disk.open_append("/d/log")
    await file.sync()
    with pytest.raises(OSError, match="Input/output") as raised:
        await file.sync()
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, "/d/log")
    await file.sync()
