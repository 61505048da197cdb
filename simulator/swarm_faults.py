"""The faults of a swarm run, as fields of a scenario. See `simulator.swarm`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FAULTS_MAX = 8

_Fields = dict[str, Any]


def rounded(number: float) -> float:
    """A number with three digits behind the point, whose text is short and means the same."""
    return round(number, 3)


def between(chance: random.Random, low: float, high: float) -> float:
    """As likely near the lower as near the upper end when both are seen as powers."""
    return rounded(low * (high / low) ** chance.random())


class FaultDraw:
    """Draws the faults of one run: whose cluster has these fields, whose jobs have these stages,
    and whose work should be done by `horizon_s`."""

    def __init__(
        self,
        chance: random.Random,
        cluster: Mapping[str, Any],
        stages: Mapping[str, Sequence[str]],
        horizon_s: float,
    ) -> None:
        self._chance = chance
        self._cluster = cluster
        self._stages = stages
        self._horizon_s = horizon_s
        self._ids: list[str] = []

    def faults(self) -> list[_Fields]:
        """0 to FAULTS_MAX faults, in no order of time."""
        chance = self._chance
        weights = {kind: 2.0 ** chance.uniform(-5, 5) for kind in _KINDS if chance.random() < 0.6}
        if self._cluster["leader"] != "service":
            weights.pop("leader-service-down", None)
        if not weights:
            return []
        faults = []
        for number in range(chance.randint(0, FAULTS_MAX)):
            kind = chance.choices(list(weights), list(weights.values()))[0]
            fault = {"kind": kind, "id": f"f{number}", **_KINDS[kind](self), **self._moment()}
            if chance.random() < 0.1:
                fault |= {"repeat": chance.randint(2, 4), "every": between(chance, 0.2, 10.0)}
            faults.append(fault)
            self._ids.append(fault["id"])
        return faults

    def _moment(self) -> _Fields:
        chance = self._chance
        form = chance.choice(("at", "at", "at", "stage", "job", "fault"))
        if form == "fault" and self._ids:
            after = between(chance, 0.001, 8.0)
            return {"when": {"fault": chance.choice(self._ids), "after": after}}
        if form == "stage":
            job = chance.choice(list(self._stages))
            stage = chance.choice(self._stages[job])
            finished = chance.choice((0.01, 0.3, 0.5, 0.8, 1.0))
            return {"when": {"stage": stage, "finished": finished, "of": job}}
        if form == "job":
            state = chance.choice(("RUNNING", "RECONCILING", "RECONCILING", "FINISHED"))
            return {"when": {"job": state, "after": between(chance, 0.001, 3.0)}}
        return {"at": rounded(chance.uniform(0.2, self._horizon_s))}

    def _duration_s(self) -> float:
        return between(self._chance, 0.05, 20.0)

    def _jobmanager(self) -> str:
        if self._cluster["jobmanagers"] == 1:
            return "leader"
        return self._chance.choice(("leader", "leader", "standby", "jobmanagers"))

    def _taskmanagers(self) -> str:
        rack = f"rack:{self._chance.randint(1, self._cluster['racks'])}"
        return self._chance.choice(
            ("one", "one", "one", "holders", "holders", "minority", "majority", "all", rack)
        )

    def _anyone(self) -> str:
        return self._jobmanager() if self._chance.random() < 0.4 else self._taskmanagers()

    def _disk(self) -> str:
        return "shared-storage" if self._chance.random() < 0.2 else self._anyone()

    def _restart(self) -> _Fields:
        if self._chance.random() < 0.5:
            return {}
        return {"restart_after": between(self._chance, 0.05, 20.0)}

    def ended(self) -> _Fields:
        """A process or host that ends, and is started again some time."""
        return {"victims": self._anyone(), **self._restart()}

    def paused(self) -> _Fields:
        """A pause."""
        return {"victims": self._anyone(), "for": self._duration_s()}

    def cut(self) -> _Fields:
        """A cut between two groups."""
        one, other = self._jobmanager(), self._taskmanagers()
        if self._chance.random() < 0.2:
            one, other = "one", "all"
        elif self._cluster["leader"] == "service" and self._chance.random() < 0.2:
            one, other = self._anyone(), "leader-service"
        pair = [one, other] if self._chance.random() < 0.5 else [other, one]
        return {
            "between": pair,
            "one_way": self._chance.random() < 0.5,
            "for": self._duration_s(),
        }

    def slow_link(self) -> _Fields:
        """Slow packets."""
        return {
            "victims": self._anyone(),
            "factor": between(self._chance, 1.0, 1000.0),
            "latency": between(self._chance, 0.001, 2.0),
            "for": self._duration_s(),
        }

    def lost_packets(self) -> _Fields:
        """Lost packets."""
        return {
            "victims": self._anyone(),
            "probability": self._chance.choice((0.01, 0.1, 0.5)),
            "for": self._duration_s(),
        }

    def slow_disk(self) -> _Fields:
        """A slow disk."""
        factor = between(self._chance, 2.0, 2000.0)
        return {"victims": self._disk(), "factor": factor, "for": self._duration_s()}

    def full_disk(self) -> _Fields:
        """A full disk."""
        left = self._chance.choice((0, 100, 10_000))
        return {"victims": self._disk(), "left": left, "for": self._duration_s()}

    def broken_disk(self) -> _Fields:
        """Failing operations."""
        on = self._chance.choice(("read", "write", "sync"))
        return {"victims": self._disk(), "on": on, "for": self._duration_s()}

    def hanging_disk(self) -> _Fields:
        """A disk that does not answer."""
        return {"victims": self._disk(), "for": self._duration_s()}

    def jumped_clock(self) -> _Fields:
        """A wall clock that somebody sets."""
        by = between(self._chance, 0.1, 3_600.0) * self._chance.choice((1, -1))
        return {"victims": self._anyone(), "by": by}

    def drifting_clock(self) -> _Fields:
        """A clock that goes wrong."""
        rate = self._chance.choice((0.9, 0.99, 1.01, 1.1))
        return {"victims": self._anyone(), "rate": rate, "for": self._duration_s()}

    def service_down(self) -> _Fields:
        """No leader service."""
        return {"for": self._duration_s()}

    def moved(self) -> _Fields:
        """Another address."""
        return {"victims": self._jobmanager()}

    def killed_task(self) -> _Fields:
        """Task processes that die."""
        return {"victims": self._taskmanagers(), "tasks": self._chance.choice(("one", "all"))}

    def lost_partitions(self) -> _Fields:
        """Files that vanish."""
        return {"victims": self._taskmanagers(), "part": self._chance.choice((0.1, 0.5, 1.0))}

    def cut_log(self) -> _Fields:
        """An event log without its end."""
        return {"victims": "leader", **self._restart()}


_KINDS: dict[str, Callable[[FaultDraw], _Fields]] = {
    "crash": FaultDraw.ended,
    "stop": FaultDraw.ended,
    "pause": FaultDraw.paused,
    "power-loss": FaultDraw.ended,
    "cut": FaultDraw.cut,
    "slow-link": FaultDraw.slow_link,
    "lose-packets": FaultDraw.lost_packets,
    "slow-disk": FaultDraw.slow_disk,
    "disk-full": FaultDraw.full_disk,
    "disk-error": FaultDraw.broken_disk,
    "disk-hang": FaultDraw.hanging_disk,
    "clock-jump": FaultDraw.jumped_clock,
    "clock-drift": FaultDraw.drifting_clock,
    "leader-service-down": FaultDraw.service_down,
    "address-change": FaultDraw.moved,
    "kill-task": FaultDraw.killed_task,
    "lose-partitions": FaultDraw.lost_partitions,
    "cut-log": FaultDraw.cut_log,
}
