"""Whole clusters whose leader an etcd elects; all invariants are checked throughout."""

from __future__ import annotations

import random

import pytest

from simulator.record import RunRecord
from tests.simulation.story import Story, runs_of, tell, two_stages

LEASE_TTL_S = 3.0
ELECTION_S = 1.0


def epochs_of(record: RunRecord) -> list[int]:
    return [epoch.epoch for epoch in record.epochs]


def test_a_job_runs_without_a_fault() -> None:
    async def plot(story: Story) -> None:
        await story.stage_finished("map")

    record = tell(two_stages(6, leader="etcd", jobmanagers=2, lease_ttl_s=LEASE_TTL_S), plot)
    assert len(record.epochs) == 1
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)


@pytest.mark.parametrize("how", ["kill", "pause", "stop"])
def test_a_standby_takes_over_and_what_had_finished_is_kept(how: str) -> None:
    """P29, P31: a killed or paused leader's lease has to run out, one that is stopped gives it
    back."""
    took_s: list[float] = []

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        old = story.leader()
        began_s = story.now_s
        fault = {"kill": story.kill, "pause": story.pause}.get(how)
        made = fault(old.name) if fault is not None else None
        if made is None:
            story.stop(old.name)
        for node in story.cluster.jobmanagers:
            if node is not old:
                await story.until(lambda: story.cluster.epoch_of(node) is not None, "it leads")  # noqa: B023
        took_s.append(story.now_s - began_s)
        if how == "pause":
            assert made is not None
            story.heal(made)
            await story.until(lambda: story.cluster.epoch_of(old) is None, "it steps down", 5.0)

    record = tell(two_stages(6, leader="etcd", jobmanagers=2, lease_ttl_s=LEASE_TTL_S), plot)
    assert took_s[0] < (ELECTION_S if how == "stop" else LEASE_TTL_S + ELECTION_S)
    assert len(record.epochs) == 2
    assert epochs_of(record) == sorted(set(epochs_of(record)))
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)


@pytest.mark.parametrize("seed", range(6))
def test_a_job_ends_right_whatever_befalls_leaders_and_etcd(seed: int) -> None:
    """P30."""
    chance = random.Random(seed)

    async def plot(story: Story) -> None:
        for _ in range(5):
            await story.at(story.now_s + chance.uniform(0.5, 4.0))
            victim = chance.choice(["jm-1", "jm-2", "leader-service"])
            if chance.random() < 0.5:
                await story.kill(victim, restart_after_s=chance.uniform(0.0, 6.0)).over.wait()
            else:
                asleep = story.pause(victim)
                await story.at(story.now_s + chance.uniform(0.0, 6.0))
                story.heal(asleep)

    scenario = two_stages(
        12, map_s=3.0, reduce_s=3.0, leader="etcd", jobmanagers=2, lease_ttl_s=LEASE_TTL_S
    )
    record = tell(scenario, plot)
    assert epochs_of(record) == sorted(set(epochs_of(record)))
