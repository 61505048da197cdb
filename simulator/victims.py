"""Who suffers a fault: from a role in a scenario to the names of processes. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.fault_kinds import Victims


@dataclass(frozen=True, slots=True)
class Candidates:
    """The processes of a cluster at one moment, by name, each list in order of its numbers."""

    leader: str | None
    jobmanagers: Sequence[str]
    taskmanagers: Sequence[str]
    #: TaskManagers that hold finished partitions.
    holders: Sequence[str]
    #: Number of racks.
    racks: int = 1
    #: Where the leader service and the shared storage are, "" where there is none.
    leader_service: str = ""
    shared_storage: str = ""
    shuffle_services: Sequence[str] = ()
    #: Shuffle services that hold finished partitions.
    shuffle_holders: Sequence[str] = ()


def choose(victims: Victims, of: Candidates, source: random.Random) -> list[str]:
    """The names of those who suffer, in order of their numbers; none when nobody fits (nobody
    leads, nobody holds anything)."""
    taskmanagers = list(of.taskmanagers)
    number = victims.number or 0
    match victims.role:
        case "leader":
            return [of.leader] if of.leader is not None else []
        case "standby":
            return [name for name in of.jobmanagers if name != of.leader]
        case "jobmanagers":
            return list(of.jobmanagers)
        case "jobmanager":
            return [of.jobmanagers[number - 1]]
        case "taskmanager":
            return [taskmanagers[number - 1]]
        case "rack":
            return taskmanagers[number - 1 :: of.racks]
        case "all":
            return taskmanagers
        case "one":
            return _some(taskmanagers, 1, source)
        case "minority":
            return _some(taskmanagers, max(1, (len(taskmanagers) - 1) // 2), source)
        case "majority":
            return _some(taskmanagers, len(taskmanagers) // 2 + 1, source)
        case "holders":
            return _some(list(of.holders), 1, source)
        case "shuffle":
            return [of.shuffle_services[number - 1]]
        case "shuffle:all":
            return list(of.shuffle_services)
        case "shuffle:one":
            return _some(list(of.shuffle_services), 1, source)
        case "shuffle:holders":
            return _some(list(of.shuffle_holders), 1, source)
        case "leader-service":
            return [of.leader_service] if of.leader_service else []
        case "shared-storage":
            return [of.shared_storage] if of.shared_storage else []
    raise ValueError(f"no such role: {victims.role!r}")


def _some(names: list[str], count: int, source: random.Random) -> list[str]:
    chosen = source.sample(range(len(names)), min(count, len(names)))
    return [names[index] for index in sorted(chosen)]
