"""The faults of a swarm run, as fields of a scenario. See `simulator.swarm`.

Most runs lose their leader, several times, while their jobs run; and around each loss TaskManagers
go, come back, are cut off or lose files. Beside that there are faults of all kinds at any time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

FAULTS_MAX = 16
#: Leaders that a run loses, and faults around each loss.
LOSSES_MAX = 6
COMPANIONS_MAX = 3

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
        self.chance = chance
        self.cluster = cluster
        self.stages = stages
        self._horizon_s = horizon_s
        self._ids: list[str] = []

    def faults(self) -> list[_Fields]:
        """0 to FAULTS_MAX faults, in no order of time."""
        chance = self.chance
        weights = {kind: 2.0 ** chance.uniform(-5, 5) for kind in _KINDS if chance.random() < 0.6}
        if self.cluster["leader"] != "service":
            weights.pop("leader-service-down", None)
        faults: list[_Fields] = []
        if chance.random() < 0.85:
            self._lose_leaders(faults, chance.randint(1, LOSSES_MAX))
        if weights:
            for _ in range(chance.randint(0, 7)):
                kind = chance.choices(list(weights), list(weights.values()))[0]
                self.add(faults, kind, _KINDS[kind](self), self.moment())
        return faults[:FAULTS_MAX]

    def add(self, faults: list[_Fields], kind: str, fields: _Fields, moment: _Fields) -> str:
        """Add a fault, which now and then comes several times; returns its id."""
        fault = {"kind": kind, "id": f"f{len(faults)}", **fields, **moment}
        if self.chance.random() < 0.1:
            every = between(self.chance, 0.2, 10.0)
            fault |= {"repeat": self.chance.randint(2, 4), "every": every}
        faults.append(fault)
        self._ids.append(fault["id"])
        return str(fault["id"])

    def keep_ids(self, faults: list[_Fields]) -> None:
        """Only these can still be waited for."""
        self._ids = [fault["id"] for fault in faults]

    def _lose_leaders(self, faults: list[_Fields], losses: int) -> None:
        """Leaders are lost, each some time in the work, or while it recovers from the last loss;
        a few runs kill everybody at once."""
        chance = self.chance
        kinds = [kind for kind in _LOSSES if chance.random() < 0.7] or ["crash"]
        companions = [kind for kind in _COMPANIONS if chance.random() < 0.5] or ["crash"]
        everybody = chance.random() < 0.15
        lost: str | None = None
        for _ in range(losses):
            kind = chance.choice(kinds)
            moment = self._moment_of_loss(lost)
            lost = self.add(faults, kind, self.loss(kind), moment)
            if everybody and chance.random() < 0.7:
                fields = {"victims": "all", "restart_after": between(chance, 0.05, 8.0)}
                at_once = chance.choice((0.0, 0.001, 0.3))
                self.add(faults, "crash", fields, {"when": {"fault": lost, "after": at_once}})
            for _ in range(chance.randint(0, COMPANIONS_MAX) if chance.random() < 0.7 else 0):
                kind = chance.choice(companions)
                after = {"fault": lost, "after": between(chance, 0.001, 8.0)}
                self.add(faults, kind, self.companion(kind), {"when": after})

    def _moment_of_loss(self, last: str | None) -> _Fields:
        chance = self.chance
        if last is not None and chance.random() < 0.5:
            return {"when": {"fault": last, "after": between(chance, 0.05, 12.0)}}
        if last is not None and chance.random() < 0.5:
            return {"when": {"job": "RECONCILING", "after": between(chance, 0.001, 5.0)}}
        return self.moment()

    def loss(self, kind: str) -> _Fields:
        """How a leader is lost."""
        chance = self.chance
        if kind == "pause":
            return {"victims": "leader", "for": between(chance, 0.5, 20.0)}
        if kind == "cut":
            other = "all"
            if self.cluster["leader"] == "service" and chance.random() < 0.5:
                other = "leader-service"
            pair = ["leader", other] if chance.random() < 0.5 else [other, "leader"]
            for_s = between(chance, 0.5, 20.0)
            return {"between": pair, "one_way": chance.random() < 0.3, "for": for_s}
        victims = "jobmanagers" if chance.random() < 0.2 else "leader"
        return {"victims": "leader" if kind == "cut-log" else victims, **self.restart(8.0)}

    def companion(self, kind: str) -> _Fields:
        """What happens to TaskManagers around a leader's loss."""
        if kind in ("crash", "stop", "power-loss"):
            return {"victims": self.taskmanagers(), **self.restart(8.0)}
        if kind == "cut":
            pair = [self.taskmanagers(), "jobmanagers"]
            for_s = between(self.chance, 0.05, 10.0)
            return {"between": pair, "one_way": self.chance.random() < 0.3, "for": for_s}
        if kind == "pause":
            return {"victims": self.taskmanagers(), "for": between(self.chance, 0.05, 10.0)}
        return _KINDS[kind](self)

    def moment(self) -> _Fields:
        """Some time in the work."""
        chance = self.chance
        form = chance.choice(("at", "at", "stage", "stage", "job", "fault"))
        if form == "fault" and self._ids:
            after = between(chance, 0.001, 8.0)
            return {"when": {"fault": chance.choice(self._ids), "after": after}}
        if form == "stage":
            job = chance.choice(list(self.stages))
            stage = chance.choice(self.stages[job])
            finished = chance.choice((0.01, 0.3, 0.5, 0.8, 1.0))
            after = chance.choice((0.0, 0.0, between(chance, 0.001, 3.0)))
            when = {"stage": stage, "finished": finished, "of": job, "after": after}
            return {"when": when}
        if form == "job":
            state = chance.choice(("RUNNING", "RECONCILING", "RECONCILING", "FINISHED"))
            return {"when": {"job": state, "after": between(chance, 0.001, 3.0)}}
        return {"at": rounded(chance.uniform(0.2, self._horizon_s))}

    def _duration_s(self) -> float:
        return between(self.chance, 0.05, 20.0)

    def _jobmanager(self) -> str:
        if self.cluster["jobmanagers"] == 1:
            return "leader"
        return self.chance.choice(("leader", "leader", "standby", "jobmanagers"))

    def taskmanagers(self) -> str:
        """Some of the TaskManagers."""
        rack = f"rack:{self.chance.randint(1, self.cluster['racks'])}"
        return self.chance.choice(
            ("one", "one", "one", "holders", "holders", "minority", "majority", "all", rack)
        )

    def task_runners(self) -> str:
        """Some of those who run tasks."""
        return self.taskmanagers()

    def _anyone(self) -> str:
        return self._jobmanager() if self.chance.random() < 0.4 else self.taskmanagers()

    def _disk(self) -> str:
        return "shared-storage" if self.chance.random() < 0.2 else self._anyone()

    def restart(self, seconds_max: float = 20.0) -> _Fields:
        """When who ends is started again: often as the cluster says."""
        if self.chance.random() < 0.5:
            return {}
        return {"restart_after": between(self.chance, 0.05, seconds_max)}

    def ended(self) -> _Fields:
        """A process or host that ends, and is started again some time."""
        return {"victims": self._anyone(), **self.restart()}

    def paused(self) -> _Fields:
        """A pause."""
        return {"victims": self._anyone(), "for": self._duration_s()}

    def cut(self) -> _Fields:
        """A cut between two groups."""
        one, other = self._jobmanager(), self.taskmanagers()
        if self.chance.random() < 0.2:
            one, other = "one", "all"
        elif self.cluster["leader"] == "service" and self.chance.random() < 0.2:
            one, other = self._anyone(), "leader-service"
        pair = [one, other] if self.chance.random() < 0.5 else [other, one]
        return {
            "between": pair,
            "one_way": self.chance.random() < 0.5,
            "for": self._duration_s(),
        }

    def slow_link(self) -> _Fields:
        """Slow packets."""
        return {
            "victims": self._anyone(),
            "factor": between(self.chance, 1.0, 1000.0),
            "latency": between(self.chance, 0.001, 2.0),
            "for": self._duration_s(),
        }

    def lost_packets(self) -> _Fields:
        """Lost packets."""
        return {
            "victims": self._anyone(),
            "probability": self.chance.choice((0.01, 0.1, 0.5)),
            "for": self._duration_s(),
        }

    def slow_disk(self) -> _Fields:
        """A slow disk."""
        # What has begun takes its time, also when the disk is well again before it ends.
        factor = between(self.chance, 2.0, 200.0)
        return {"victims": self._disk(), "factor": factor, "for": self._duration_s()}

    def full_disk(self) -> _Fields:
        """A full disk."""
        left = self.chance.choice((0, 100, 10_000))
        return {"victims": self._disk(), "left": left, "for": self._duration_s()}

    def broken_disk(self) -> _Fields:
        """Failing operations."""
        on = self.chance.choice(("read", "write", "sync"))
        return {"victims": self._disk(), "on": on, "for": self._duration_s()}

    def hanging_disk(self) -> _Fields:
        """A disk that does not answer."""
        return {"victims": self._disk(), "for": self._duration_s()}

    def jumped_clock(self) -> _Fields:
        """A wall clock that somebody sets."""
        by = between(self.chance, 0.1, 3_600.0) * self.chance.choice((1, -1))
        return {"victims": self._anyone(), "by": by}

    def drifting_clock(self) -> _Fields:
        """A clock that goes wrong."""
        rate = self.chance.choice((0.9, 0.99, 1.01, 1.1))
        return {"victims": self._anyone(), "rate": rate, "for": self._duration_s()}

    def service_down(self) -> _Fields:
        """No leader service."""
        return {"for": self._duration_s()}

    def moved(self) -> _Fields:
        """Another address."""
        return {"victims": self._jobmanager()}

    def killed_task(self) -> _Fields:
        """Task processes that die."""
        return {"victims": self.task_runners(), "tasks": self.chance.choice(("one", "all"))}

    def lost_partitions(self) -> _Fields:
        """Files that vanish."""
        return {"victims": self.taskmanagers(), "part": self.chance.choice((0.1, 0.5, 1.0))}

    def cut_log(self) -> _Fields:
        """An event log without its end."""
        return {"victims": "leader", **self.restart()}


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
#: Kinds of fault by which a leader is lost, and those that happen around its loss.
_LOSSES = ("crash", "crash", "stop", "power-loss", "pause", "cut", "cut-log")
_COMPANIONS = (
    *("crash", "stop", "power-loss", "cut", "pause"),
    *("kill-task", "lose-partitions", "slow-link", "lose-packets"),
    *("disk-error", "disk-full", "slow-disk"),
)
