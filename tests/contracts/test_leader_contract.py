"""What every way to elect a leader keeps (behaviour: leader epoch)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdover.coordination.file_leader import FileLeaderElection, FileLeaderRetrieval
from holdover.coordination.leader import LeaderElection, LeaderRecord, LeaderRetrieval
from holdover.runtime import Runtime
from simulator.world.leader_service import SimulatedLeaderService
from simulator.world.storage import SimulatedStorage
from simulator.world.world import World

POLL_INTERVAL_S = 0.02
WATCHDOG_S = 60.0


@dataclass
class LeaderArm:
    """Makes candidates and followers of one cluster."""

    new_election: Callable[[], LeaderElection]
    retrieval: LeaderRetrieval
    elections: list[LeaderElection] = field(default_factory=list)

    def election(self) -> LeaderElection:
        self.elections.append(self.new_election())
        return self.elections[-1]


@pytest.fixture(params=["file", "file-on-a-storage-by-itself", "service"])
async def leader_arm(
    request: pytest.FixtureRequest, runtime_arm: Runtime, world: World | None, tmp_path: Path
) -> AsyncIterator[LeaderArm]:
    arm = new_arm(request.param, runtime_arm, world, str(tmp_path))
    yield arm
    for election in arm.elections:
        await election.step_down()


def new_arm(kind: str, runtime: Runtime, world: World | None, directory: str) -> LeaderArm:
    if kind == "service":
        if world is None:
            pytest.skip("the leader service is a simulated one")
        service = SimulatedLeaderService(world, world.host("leader-service"))
        service.start()
        client = service.client(runtime)
        return LeaderArm(client.election, client.retrieval())
    if kind == "file-on-a-storage-by-itself":
        runtime = dataclasses.replace(runtime, disk=SimulatedStorage())
    if world is not None:
        directory = "/shared/cluster"
    return LeaderArm(
        lambda: FileLeaderElection(runtime, directory, POLL_INTERVAL_S),
        FileLeaderRetrieval(runtime, directory, POLL_INTERVAL_S),
    )


async def test_the_only_candidate_leads_and_is_found(leader_arm: LeaderArm) -> None:
    election = leader_arm.election()
    assert not election.is_leader()
    assert await leader_arm.retrieval.current() is None
    leadership = await election.campaign("jm-1:6123")
    assert election.is_leader()
    assert not election.lost.is_set()
    assert await leader_arm.retrieval.current() == LeaderRecord(leadership.epoch, "jm-1:6123")


async def test_each_leadership_has_a_larger_epoch(leader_arm: LeaderArm) -> None:
    epochs = []
    for number in range(5):
        election = leader_arm.election()
        epochs.append((await election.campaign(f"jm-{number}:1")).epoch)
        await election.step_down()
    assert epochs == sorted(set(epochs))
    assert epochs[0] >= 1


async def test_a_second_candidate_leads_only_after_the_first(leader_arm: LeaderArm) -> None:
    first, second = leader_arm.election(), leader_arm.election()
    first_leadership = await first.campaign("jm-1:1")
    waiting = asyncio.create_task(second.campaign("jm-2:1"))
    await asyncio.sleep(POLL_INTERVAL_S * 5)
    assert not waiting.done()
    assert not second.is_leader()
    await first.step_down()
    assert first.lost.is_set()
    assert not first.is_leader()
    async with asyncio.timeout(WATCHDOG_S):
        assert (await waiting).epoch > first_leadership.epoch
    assert (await leader_arm.retrieval.current() or LeaderRecord(0, "")).address == "jm-2:1"


async def test_a_candidate_may_withdraw(leader_arm: LeaderArm) -> None:
    first, second, third = (leader_arm.election() for _ in range(3))
    await first.campaign("jm-1:1")
    waiting = asyncio.create_task(second.campaign("jm-2:1"))
    await asyncio.sleep(POLL_INTERVAL_S * 3)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await first.step_down()
    async with asyncio.timeout(WATCHDOG_S):
        await third.campaign("jm-3:1")
    assert third.is_leader()


async def test_one_candidate_may_lead_again(leader_arm: LeaderArm) -> None:
    election = leader_arm.election()
    first = await election.campaign("jm-1:1")
    await election.step_down()
    await election.step_down()
    second = await election.campaign("jm-1:1")
    assert second.epoch > first.epoch
    assert election.is_leader()
    assert not election.lost.is_set()


async def test_a_follower_is_told_the_present_leader_and_each_new_one(
    leader_arm: LeaderArm,
) -> None:
    election = leader_arm.election()
    first = await election.campaign("jm-1:1")
    changes = leader_arm.retrieval.changes()
    async with asyncio.timeout(WATCHDOG_S):
        assert await anext(changes) == LeaderRecord(first.epoch, "jm-1:1")
        await election.step_down()
        second = await election.campaign("jm-2:1")
        assert await anext(changes) == LeaderRecord(second.epoch, "jm-2:1")


async def test_a_follower_may_wait_before_there_is_a_leader(leader_arm: LeaderArm) -> None:
    changes = leader_arm.retrieval.changes()
    first = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(POLL_INTERVAL_S * 3)
    await leader_arm.election().campaign("jm-1:1")
    async with asyncio.timeout(WATCHDOG_S):
        assert (await first).address == "jm-1:1"
