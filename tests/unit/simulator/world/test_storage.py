"""What the disks of a world do that a real one would do too, when the time is wrong."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from holdover.runtime import Disk
from simulator.world.disk import ProcessDisk
from simulator.world.medium import UNSYNCED_NAMES_MAX
from simulator.world.process import Process
from simulator.world.storage import SimulatedStorage
from simulator.world.storages import DiskSettings
from simulator.world.world import World

KIB = 1024
#: Long enough for an operation to have begun, too short for it to end.
BEGUN_S = 0.000_01


@pytest.fixture
def world() -> Iterator[World]:
    world = World(seed=1)
    yield world
    assert world.failures == []
    world.close()


def disk_on(world: World, host: str) -> Disk:
    return ProcessDisk(world, world.process(world.host(host), f"{host}-service"))


async def under_way(
    world: World, host: str, work: Callable[[Disk], Coroutine[Any, Any, None]]
) -> Process:
    """Begin with something in a new process, and return before it has ended."""
    process = world.process(world.host(host), "service")
    process.spawn(work(ProcessDisk(world, process)))
    await asyncio.sleep(BEGUN_S)
    return process


async def write_unsynced(disk: Disk, path: str, data: bytes) -> None:
    file = await disk.open_append(path)
    await file.write(data)
    await file.close()


async def number_of(work: Awaitable[object]) -> int | None:
    """The errno of an operation, None for success."""
    try:
        await work
    except OSError as error:
        return error.errno
    return None


def test_operations_take_time_and_bytes_take_more(world: World) -> None:
    disk = disk_on(world, "a")

    async def scene() -> None:
        await disk.publish("/small", b"")
        before_s = world.now_s
        await disk.publish("/large", bytes(50_000_000))
        bytes_s = 50_000_000 / world.storages.settings.bytes_per_s
        assert bytes_s < world.now_s - before_s < bytes_s + 0.01
        assert 0 < before_s < 0.01

    world.run(scene())


def test_a_slow_disk_is_slow_until_healed(world: World) -> None:
    disk = disk_on(world, "a")
    faults = world.storages.of(world.host("a")).faults

    async def took_s() -> float:
        before_s = world.now_s
        await disk.publish("/x", b"x")
        return world.now_s - before_s

    async def scene() -> None:
        normal_s = await took_s()
        token = faults.slow(100)
        assert await took_s() > 20 * normal_s
        faults.heal(token)
        assert await took_s() < 5 * normal_s

    world.run(scene())


def test_each_host_has_its_own_disk_and_all_share_one(world: World) -> None:
    here, there = disk_on(world, "a"), disk_on(world, "b")

    async def scene() -> None:
        await here.publish("/own", b"a")
        await here.publish("/shared/all", b"s")
        assert await there.stat("/own") is None
        assert await there.read("/shared/all") == b"s"
        assert await number_of(here.rename("/own", "/shared/own")) == errno.EXDEV

    world.run(scene())


def test_a_hanging_disk_answers_after_it_is_healed(world: World) -> None:
    disk = disk_on(world, "a")
    faults = world.storages.of(world.host("a")).faults

    async def scene() -> None:
        await disk.publish("/x", b"x")
        faults.hang("/x", "read")
        reading = asyncio.ensure_future(disk.read("/x"))
        await asyncio.sleep(1000)
        assert not reading.done()
        await disk.publish("/y", b"other paths do not hang")
        faults.heal()
        assert await reading == b"x"
        assert world.now_s < 1001

    world.run(scene())


def test_faults_by_path_and_operation_last_until_healed(world: World) -> None:
    disk = disk_on(world, "a")
    faults = world.storages.of(world.host("a")).faults

    async def scene() -> None:
        tokens = [faults.break_operation("write", "/bad*"), faults.make_read_only("/worm*")]
        for _ in range(3):
            assert await number_of(disk.publish("/bad", b"")) == errno.EIO
            assert await number_of(disk.publish("/worm", b"")) == errno.EROFS
            assert await number_of(disk.publish("/good", b"")) is None
        for token in tokens:
            faults.heal(token)
        assert await number_of(disk.publish("/bad", b"")) is None
        assert await number_of(disk.publish("/worm", b"")) is None

    world.run(scene())


def test_a_full_disk_counts_modelled_sizes_and_what_others_took(world: World) -> None:
    world.storages.settings = DiskSettings(capacity_bytes=100 * KIB)
    disk = disk_on(world, "a")
    storage = world.storages.of(world.host("a"))

    async def scene() -> None:
        await disk.publish("/rows", b"ids")
        storage.model_size("/rows", 60 * KIB)
        assert [found.bytes for found in await disk.glob("/r*")] == [60 * KIB]
        assert await disk.free_bytes("/") == 40 * KIB
        with pytest.raises(OSError, match="No space"):
            storage.model_size("/rows", 101 * KIB)
        token = storage.faults.fill(left_bytes=1 * KIB)
        assert await number_of(disk.publish("/more", bytes(2 * KIB))) == errno.ENOSPC
        file = await disk.open_append("/log")
        assert await number_of(file.write(bytes(2 * KIB))) == errno.ENOSPC
        assert len(await disk.read("/log")) == 1 * KIB
        storage.faults.heal(token)
        await disk.remove("/rows")
        assert await disk.free_bytes("/") == 99 * KIB

    world.run(scene())


def test_a_death_in_a_write_leaves_any_part_of_it() -> None:
    """P01: the log is cut anywhere."""
    sizes = set()
    for seed in range(60):
        world = World(seed)

        async def scene(world: World = world) -> int:
            process = world.process(world.host("a"), "service")
            file = await ProcessDisk(world, process).open_append("/log")
            process.spawn(file.write(b"0123456789"))
            await asyncio.sleep(BEGUN_S)
            process.end()
            data = await disk_on(world, "a").read("/log")
            assert b"0123456789".startswith(data)
            return len(data)

        sizes.add(world.run(scene()))
        world.close()
    assert sizes > {0, 10}


def test_a_death_in_a_publish_leaves_the_old_file_or_the_new_and_perhaps_a_temporary_one() -> None:
    """P04."""
    contents, names = set(), set()
    for seed in range(60):
        world = World(seed)

        async def publish(disk: Disk) -> None:
            await disk.publish("/d/a", b"new")

        async def scene(world: World = world) -> None:
            disk = disk_on(world, "a")
            await disk.make_directories("/d")
            await disk.publish("/d/a", b"old")
            (await under_way(world, "a", publish)).end()
            contents.add(await disk.read("/d/a"))
            names.add(len(await disk.list_directory("/d")))

        world.run(scene())
        world.close()
    assert contents == {b"old", b"new"}
    assert names == {1, 2}


def test_a_paused_process_finishes_what_it_began_when_it_goes_on(world: World) -> None:
    """The write of a leader that was deposed meanwhile."""

    async def publish(disk: Disk) -> None:
        await disk.publish("/shared/a", b"stale")

    async def scene() -> None:
        process = await under_way(world, "a", publish)
        process.pause()
        disk = disk_on(world, "b")
        await disk.publish("/shared/a", b"of the new leader")
        await asyncio.sleep(100)
        assert await disk.read("/shared/a") == b"of the new leader"
        process.resume()
        await asyncio.sleep(1)
        assert await disk.read("/shared/a") == b"stale"

    world.run(scene())


@pytest.mark.parametrize("death", ["kill", "power loss"])
def test_a_lock_is_free_when_its_process_is_dead_but_not_while_it_is_paused(
    world: World, death: str
) -> None:
    async def take(disk: Disk) -> None:
        assert await disk.lock("/shared/lock") is not None

    async def scene() -> None:
        process = await under_way(world, "a", take)
        disk = disk_on(world, "b")
        await asyncio.sleep(1)
        assert await disk.lock("/shared/lock") is None
        process.pause()
        await asyncio.sleep(1000)
        assert await disk.lock("/shared/lock") is None
        if death == "kill":
            world.kill(process)
        else:
            world.power_loss(process.host)
        assert await disk.lock("/shared/lock") is not None

    world.run(scene())


def test_a_lock_that_nobody_waits_for_any_more_is_free(world: World) -> None:
    disk = disk_on(world, "a")

    async def scene() -> None:
        waiting = asyncio.ensure_future(disk.lock("/lock"))
        await asyncio.sleep(BEGUN_S)
        waiting.cancel()
        await asyncio.sleep(1)
        assert await disk.lock("/lock") is not None

    world.run(scene())


def test_a_host_without_power_loses_what_it_had_not_synced_even_on_the_shared_storage() -> None:
    survivors = set()
    for seed in range(40):
        world = World(seed)

        async def scene(world: World = world) -> None:
            lost, other = disk_on(world, "lost"), disk_on(world, "other")
            for disk, home in ((lost, "/shared/lost"), (other, "/shared/other")):
                await disk.make_directories(home)
                await disk.publish(f"{home}/kept", b"kept")
                await write_unsynced(disk, f"{home}/named", b"")
                await disk.sync_directory(home)
                await write_unsynced(disk, f"{home}/named", b"unsynced")
                await write_unsynced(disk, f"{home}/unnamed", b"")
            world.power_loss(world.host("lost"))
            survivors.add(await other.read("/shared/lost/named"))
            assert await other.read("/shared/lost/kept") == b"kept"
            assert await other.stat("/shared/lost/unnamed") is None
            assert await other.read("/shared/other/named") == b"unsynced"
            assert await other.read("/shared/other/unnamed") == b""

        world.run(scene())
        world.close()
    assert {len(survivor) for survivor in survivors} > {0, 8}
    assert any(survivor and not survivor.strip(b"\0") for survivor in survivors)


def test_a_host_without_power_keeps_what_was_synced(world: World) -> None:
    disk, host = disk_on(world, "a"), world.host("a")

    async def scene() -> None:
        await disk.publish("/kept", b"kept")
        await write_unsynced(disk, "/unnamed", bytes(KIB))
        world.power_loss(host)
        assert [entry.name for entry in await disk_on(world, "a").list_directory("/")] == ["kept"]
        assert world.storages.of(host).used_bytes == len(b"kept")

    world.run(scene())


def test_the_same_seed_gives_the_same_trace() -> None:
    def digest(seed: int) -> str:
        world = World(seed)

        async def publish(disk: Disk) -> None:
            await disk.make_directories("/a/b/c")
            await disk.publish("/a/b/c/x", b"1234")

        async def scene() -> None:
            for _ in range(5):
                process = await under_way(world, "a", publish)
                await asyncio.sleep(0.001)
                process.end()
                world.power_loss(process.host)

        world.run(scene())
        world.close()
        return world.trace.digest

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


async def test_a_cut_that_was_not_synced_is_undone_by_a_power_loss() -> None:
    storage = SimulatedStorage()
    file = await storage.open_append("/log")
    await file.write(b"0123456789")
    await file.sync()
    await storage.sync_directory("/")
    await file.truncate(4)
    await file.write(b"x")
    storage.power_loss()
    storage.power_on()
    assert await storage.read("/log") == b"0123456789"


async def test_a_directory_that_is_never_synced_is_written_out_in_the_end() -> None:
    storage = SimulatedStorage()
    for number in range(2 * UNSYNCED_NAMES_MAX):
        await storage.open_append(f"/{number}")
    storage.power_loss()
    storage.power_on()
    assert len(await storage.list_directory("/")) == UNSYNCED_NAMES_MAX


async def test_room_is_counted_over_renames_removals_and_losses() -> None:
    storage = SimulatedStorage(capacity_bytes=1000)
    await storage.make_directories("/d")
    await storage.publish("/d/a", bytes(100))
    await storage.publish("/d/b", bytes(200))
    await storage.rename("/d/a", "/d/b")
    assert await storage.free_bytes("/") == 900
    file = await storage.open_append("/d/b")
    await storage.remove("/d/b")
    await file.write(bytes(10))
    assert await storage.free_bytes("/") == 1000
    storage.power_loss()
    storage.power_on()
    assert await storage.free_bytes("/") == 700
    await storage.remove_tree("/d")
    assert await storage.free_bytes("/") == 1000
