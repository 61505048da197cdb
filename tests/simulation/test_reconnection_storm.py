"""Everybody comes back to the new leader at once, or after a long time."""

from __future__ import annotations

from collections import Counter

import pytest

from holdover.v1.taskmanager_pb2 import RegisterRequest
from jobmanager.scheduler.signals import WorkerRegistered
from jobmanager.worker_service import Inventory
from simulator.quantities import Constant
from simulator.scenario import (
    ClusterSpec,
    ExchangeName,
    JobSpec,
    NetworkSpec,
    Scenario,
    StageSpec,
)
from tests.simulation.story import (
    WAIT,
    Story,
    ready_of,
    registered_of,
    runs_of,
    tell,
    two_stages,
    wait_of,
)

#: What the JobManager computes for one registration; nothing else of it runs meanwhile.
REGISTRATION_S = 0.02
WORKERS = 200

#: As if 2,000 TaskManagers sent messages of 0.2 ms each.
HERD = 200
HERD_MESSAGE_S = 0.002


@pytest.mark.slow
def test_two_hundred_workers_that_register_at_once_are_all_back_within_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P28: 200 x 51 partitions; heartbeats and the lease are served between registrations."""
    tries: Counter[str] = Counter()
    add = Inventory.add

    def note(inventory: Inventory, message: RegisterRequest) -> None:
        add(inventory, message)
        if message.HasField("header"):
            tries[message.header.resource_id] += 1

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        assert {_partitions(story, node.name) for node in story.cluster.taskmanagers} == {51}
        monkeypatch.setattr(Inventory, "add", note)
        await story.kill("jm-1", restart_after_s=1.0).over.wait()
        story.cluster.on_step.append(
            lambda node, master, signal, decision: (
                story.computes(node.name, REGISTRATION_S)
                if isinstance(signal, WorkerRegistered)
                else None
            )
        )
        began_s = await story.job_is("RECONCILING")
        await story.job_is("RUNNING", within_s=30.0)
        for i in range(1, WORKERS + 1):
            await story.registered(f"tm-{i}", 2)
        assert story.logged("taskmanager lost", "jm-1", began_s) == []
        assert story.logged("leadership lost") == []

    record = tell(_large(), plot)
    assert len(tries) == WORKERS
    assert max(tries.values()) <= 5
    _, until_s = wait_of(record, 2)
    assert 0.9 * WORKERS * REGISTRATION_S < until_s - ready_of(record, 2) < 30.0
    assert set(runs_of(record, "map").values()) == {1}


@pytest.mark.slow
def test_a_leader_that_its_workers_overwhelm_stays_leader_and_gets_all_of_them() -> None:
    """P28: what they all send at once is more than it can handle within its lease. It puts most of
    them off; and those that were registered before spread out by themselves."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        herd = range(1, HERD + 1)
        await story.until(
            lambda: all(story.epoch_of(f"tm-{number}") for number in herd), "all are registered"
        )
        dead = story.kill("jm-1", restart_after_s=1.0)
        killed_s = story.now_s
        await dead.over.wait()
        await story.job_is("RECONCILING", within_s=20.0)
        epoch = story.cluster.epoch_of(story.leader())
        assert epoch is not None
        await story.job_is("RUNNING", within_s=30.0)
        for number in herd:
            await story.registered(f"tm-{number}", epoch, within_s=30.0)
        assert story.logged("leadership lost", since_s=killed_s) == []
        assert story.logged("taskmanager lost", since_s=killed_s) == []

    network = NetworkSpec(message_cost=HERD_MESSAGE_S)
    record = tell(two_stages(HERD, taskmanagers=HERD, slots=1, network=network), plot)
    assert set(runs_of(record, "map").values()) == {1}


def test_workers_that_have_tried_for_a_minute_are_there_within_seconds() -> None:
    """P51: no back-off, of theirs or of their channels, outlasts the outage."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        dead = story.kill("jm-1")
        await story.at(story.now_s + 60.0)
        story.heal(dead)
        await story.registered("tm-3", 2)

    record = tell(two_stages(6, leader="file"), plot)
    for name in ("tm-1", "tm-2", "tm-3"):
        assert registered_of(record, name, 2) - ready_of(record, 2) < 5.0
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)


def _partitions(story: Story, name: str) -> int:
    return sum(len(execution.partitions) for execution in story.held(name))


def _large() -> Scenario:
    """Seventeen subtasks for each worker; each leaves a partition for each way to spread it."""
    maps = StageSpec(
        name="map",
        parallelism=17 * WORKERS,
        seconds=Constant(1.0),
        output_bytes=Constant(1e3),
        rows=0,
    )
    exchanges: tuple[ExchangeName, ...] = ("hash", "rebalance", "broadcast")
    reduces = [
        StageSpec(
            name=exchange, parallelism=1, seconds=Constant(5.0), inputs=("map",), exchange=exchange
        )
        for exchange in exchanges
    ]
    return Scenario(
        name="story",
        cluster=ClusterSpec(taskmanagers=WORKERS, slots=17),
        # When all are there, so that each gets its part.
        jobs=(JobSpec(name="job", stages=(maps, *reduces), submit_at=8.0),),
        options={WAIT: "30 s"},
    )
