"""The files behind leadership, and what damage or a loss of power does to them."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import sys

import pytest

from holdover.coordination.file_leader import FileLeaderElection, FileLeaderRetrieval
from holdover.coordination.leader import LeaderStateDamaged
from holdover.runtime import Runtime, StorageNotWritable
from holdover.runtime.real import real_runtime
from simulator.world.storage import PowerLoss, SimulatedStorage

POLL_INTERVAL_S = 0.02


@pytest.fixture
def disk() -> SimulatedStorage:
    return SimulatedStorage()


@pytest.fixture
def runtime(disk: SimulatedStorage) -> Runtime:
    return dataclasses.replace(real_runtime(), disk=disk)


async def lead_once(runtime: Runtime) -> int:
    election = FileLeaderElection(runtime, "/ha", POLL_INTERVAL_S)
    leadership = await election.campaign("jm:1")
    await election.step_down()
    return leadership.epoch


async def test_epochs_grow_wherever_the_power_is_cut(
    runtime: Runtime, disk: SimulatedStorage
) -> None:
    """P04: an epoch that was acted on is never given out again."""
    acted_on = [await lead_once(runtime)]
    cuts_in_time = 0
    for cut in range(1, 14):
        disk.cut_after_mutation(cut)
        try:
            acted_on.append(await lead_once(runtime))
        except PowerLoss:
            cuts_in_time += 1
        disk.power_on()
    acted_on.append(await lead_once(runtime))
    assert acted_on == sorted(set(acted_on))
    assert cuts_in_time == 10, "two files are published, each in five system calls"


async def test_a_lost_epoch_file_does_not_bring_an_epoch_back(
    runtime: Runtime, disk: SimulatedStorage
) -> None:
    first = await lead_once(runtime)
    await disk.remove("/ha/leader/epoch")
    assert await lead_once(runtime) > first


@pytest.mark.parametrize("name", ["epoch", "record.json"])
async def test_damaged_state_is_named_and_not_guessed_at(
    runtime: Runtime, disk: SimulatedStorage, name: str
) -> None:
    await lead_once(runtime)
    disk.overwrite(f"/ha/leader/{name}", b"\0\0\0")
    with pytest.raises(LeaderStateDamaged, match=f"/ha/leader/{name} is damaged"):
        await lead_once(runtime)
    lock = await disk.lock("/ha/leader/lock")
    assert lock is not None, "the failed candidate kept the lock"


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("make_directories", errno.EACCES),
        ("lock", errno.EROFS),
        ("publish", errno.ENOSPC),
    ],
)
async def test_storage_that_cannot_be_written_is_named(
    runtime: Runtime, disk: SimulatedStorage, operation: str, error: int
) -> None:
    disk.fail(operation, error)
    with pytest.raises(StorageNotWritable, match="storage directory /ha/leader is not") as raised:
        await lead_once(runtime)
    assert raised.value.errno == error
    assert await lead_once(runtime) >= 1


async def test_a_larger_epoch_in_the_file_ends_the_leadership(
    runtime: Runtime, disk: SimulatedStorage
) -> None:
    election = FileLeaderElection(runtime, "/ha", POLL_INTERVAL_S)
    leadership = await election.campaign("jm:1")
    await disk.publish("/ha/leader/epoch", b"%d\n" % (leadership.epoch + 1))
    async with asyncio.timeout(60):
        await election.lost.wait()
    assert not election.is_leader()
    await election.step_down()


async def test_a_leader_stays_leader_while_storage_is_out_of_reach(
    runtime: Runtime, disk: SimulatedStorage
) -> None:
    """P33."""
    election = FileLeaderElection(runtime, "/ha", POLL_INTERVAL_S)
    await election.campaign("jm:1")
    disk.fail("read", errno.EIO, times=3)
    await asyncio.sleep(POLL_INTERVAL_S * 5)
    assert election.is_leader()
    await election.step_down()


async def test_a_follower_goes_on_after_errors(runtime: Runtime, disk: SimulatedStorage) -> None:
    await lead_once(runtime)
    disk.fail("read", errno.EIO, times=3)
    async with asyncio.timeout(60):
        record = await anext(FileLeaderRetrieval(runtime, "/ha", POLL_INTERVAL_S).changes())
    assert record.address == "jm:1"


async def test_the_lock_of_a_killed_process_is_free(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = str(tmp_path_factory.mktemp("ha"))
    code = (
        "import asyncio, sys\n"
        "from holdover.coordination.file_leader import FileLeaderElection\n"
        "from holdover.runtime.real import real_runtime\n"
        "async def main():\n"
        "    election = FileLeaderElection(real_runtime(), sys.argv[1])\n"
        "    print((await election.campaign('old:1')).epoch, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    leader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, directory, stdout=asyncio.subprocess.PIPE
    )
    assert leader.stdout is not None
    epoch = int(await leader.stdout.readline())
    election = FileLeaderElection(real_runtime(), directory, POLL_INTERVAL_S)
    waiting = asyncio.create_task(election.campaign("new:1"))
    await asyncio.sleep(POLL_INTERVAL_S * 5)
    assert not waiting.done()
    leader.kill()
    await leader.wait()
    async with asyncio.timeout(60):
        assert (await waiting).epoch == epoch + 1
    await election.step_down()
