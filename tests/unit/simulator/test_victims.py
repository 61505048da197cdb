"""Who suffers a fault, by role."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from simulator.fault_kinds import ROLES, Victims
from simulator.victims import Candidates, choose

CLUSTER = Candidates(
    leader="jm-2",
    jobmanagers=("jm-1", "jm-2", "jm-3"),
    taskmanagers=("tm-1", "tm-2", "tm-3", "tm-4", "tm-5"),
    holders=("tm-2", "tm-4"),
    racks=2,
    leader_service="leader-service",
    shared_storage="shared-storage",
    shuffle_services=("ss-1", "ss-2", "ss-3"),
    shuffle_holders=("ss-2",),
)


def chosen(role: str, of: Candidates = CLUSTER, seed: int = 1) -> list[str]:
    return choose(Victims.of(role), of, random.Random(seed))


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("leader", ["jm-2"]),
        ("standby", ["jm-1", "jm-3"]),
        ("jobmanagers", ["jm-1", "jm-2", "jm-3"]),
        ("jobmanager:3", ["jm-3"]),
        ("taskmanager:4", ["tm-4"]),
        ("rack:1", ["tm-1", "tm-3", "tm-5"]),
        ("rack:2", ["tm-2", "tm-4"]),
        ("all", list(CLUSTER.taskmanagers)),
        ("shuffle:2", ["ss-2"]),
        ("shuffle:all", ["ss-1", "ss-2", "ss-3"]),
        ("shuffle:holders", ["ss-2"]),
        ("leader-service", ["leader-service"]),
        ("shared-storage", ["shared-storage"]),
    ],
)
def test_a_role_without_choice_names_its_processes_in_order(role: str, names: list[str]) -> None:
    assert chosen(role) == names


@pytest.mark.parametrize(("role", "count"), [("one", 1), ("minority", 2), ("majority", 3)])
def test_chance_chooses_as_many_as_the_role_says_and_each_taskmanager_at_times(
    role: str, count: int
) -> None:
    draws = [chosen(role, seed=seed) for seed in range(100)]
    assert {len(names) for names in draws} == {count}
    assert {name for names in draws for name in names} == set(CLUSTER.taskmanagers)
    assert all(names == sorted(names) for names in draws)


def test_the_same_seed_chooses_the_same() -> None:
    assert chosen("majority", seed=7) == chosen("majority", seed=7)


@pytest.mark.parametrize(
    ("taskmanagers", "minority", "majority"), [(1, 1, 1), (2, 1, 2), (3, 1, 2), (4, 1, 3)]
)
def test_a_minority_is_less_than_half_but_someone_and_a_majority_more_than_half(
    taskmanagers: int, minority: int, majority: int
) -> None:
    of = replace(CLUSTER, taskmanagers=CLUSTER.taskmanagers[:taskmanagers])
    assert len(chosen("minority", of)) == minority
    assert len(chosen("majority", of)) == majority


def test_only_who_holds_something_is_a_holder() -> None:
    assert {chosen("holders", seed=seed)[0] for seed in range(50)} == {"tm-2", "tm-4"}


@pytest.mark.parametrize(
    ("role", "nobody"),
    [
        ("leader", replace(CLUSTER, leader=None)),
        ("holders", replace(CLUSTER, holders=())),
        ("standby", replace(CLUSTER, jobmanagers=("jm-2",))),
        ("leader-service", replace(CLUSTER, leader_service="")),
        ("shared-storage", replace(CLUSTER, shared_storage="")),
    ],
)
def test_a_role_that_nobody_has_chooses_nobody(role: str, nobody: Candidates) -> None:
    assert chosen(role, nobody) == []


def test_while_nobody_leads_all_stand_by() -> None:
    assert chosen("standby", replace(CLUSTER, leader=None)) == list(CLUSTER.jobmanagers)


def test_every_role_is_known() -> None:
    numbered = ("jobmanager", "taskmanager", "rack", "shuffle")
    for role in ROLES:
        assert chosen(f"{role}:1" if role in numbered else role)
