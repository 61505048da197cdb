"""The faults of a run in which faults meet: each strikes while the cluster recovers from another.

A first fault (mostly the loss of a leader) happens some time in the work. Others are aimed at the
steps of the recovery from it: while the next leader loads and replays, while workers register,
while a job waits for them, when it runs on, when its output is published. Any of these can be what
the next one is aimed at. In some runs a client cancels a job at such a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.swarm_faults import FAULTS_MAX, FaultDraw, between

#: First faults of a run, and of each how many that are aimed at the recovery from it.
FIRSTS_MAX = 4
AIMED_MAX = 3
_CANCELLATIONS = 0.25

_Fields = dict[str, Any]


class DoubleFaultDraw(FaultDraw):
    """See the module."""

    def faults(self) -> list[_Fields]:
        """1 to FAULTS_MAX faults, in no order of time."""
        chance = self.chance
        losses = [kind for kind in _LOSSES if chance.random() < 0.6] or ["crash"]
        strokes = {s: 2.0 ** chance.uniform(-4, 4) for s in _STROKES if chance.random() < 0.6}
        strokes = strokes or {"leader dies": 1.0}
        if self.cluster["leader"] != "service":
            strokes.pop("nobody is elected", None)
        faults: list[_Fields] = []
        for number in range(chance.randint(1, FIRSTS_MAX)):
            struck = self._first(faults, losses)
            for _ in range(chance.randint(1, AIMED_MAX)):
                if strokes:
                    stroke = chance.choices(list(strokes), list(strokes.values()))[0]
                    aimed = self._aimed(faults, stroke, struck)
                    struck = aimed if chance.random() < 0.5 else struck
            if number == 0 and chance.random() < _CANCELLATIONS:
                self._cancel(faults, struck)
        return faults[:FAULTS_MAX]

    def _first(self, faults: list[_Fields], losses: list[str]) -> str:
        chance = self.chance
        moment = self._in_the_work()
        if chance.random() < 0.8:
            kind = chance.choice(losses)
            return self.add(faults, kind, self.loss(kind), moment)
        kind = chance.choice(("crash", "power-loss", "cut", "pause", "lose-partitions"))
        return self.add(faults, kind, self.companion(kind), moment)

    def _in_the_work(self) -> _Fields:
        """More likely early than late: what follows needs work to meet with."""
        chance = self.chance
        form = chance.random()
        if form < 0.15:
            return {"when": {"step": "committing", "after": between(chance, 0.000_1, 0.1)}}
        if form < 0.4:
            return {"when": {"job": "RUNNING", "after": between(chance, 0.01, 8.0)}}
        return self.moment()

    def _aimed(self, faults: list[_Fields], stroke: str, at: str) -> str:
        """A fault that meets the recovery from another."""
        kind, fields = _STROKES[stroke](self)
        return self.add(faults, kind, fields, self._in_the_recovery_from(at, _STEPS[stroke]))

    def _in_the_recovery_from(self, fault: str, steps: tuple[str, ...]) -> _Fields:
        chance = self.chance
        after = chance.choice(
            (0.0, between(chance, 0.000_2, 0.02), between(chance, 0.002, 0.1), self._soon_s())
        )
        return {"when": {"step": chance.choice(steps), "since": fault, "after": after}}

    def _soon_s(self) -> float:
        return between(self.chance, 0.02, 5.0)

    def _cancel(self, faults: list[_Fields], struck: str) -> None:
        """A client cancels a job, most likely while the cluster recovers."""
        moment = self._in_the_work()
        if self.chance.random() < 0.8:
            moment = self._in_the_recovery_from(struck, _ANY_STEP)
        fields = {"job": self.chance.choice(list(self.stages))}
        self.add(faults, "cancel-job", fields, moment)

    # ------------------------------------------------------------------ strokes

    def leader_dies(self) -> tuple[str, _Fields]:
        """The one that recovers; at first nobody is known to lead, so all of them then."""
        chance = self.chance
        kind = chance.choice(("crash", "crash", "power-loss", "stop", "cut-log"))
        victims = "jobmanagers" if chance.random() < 0.3 else "leader"
        return kind, {"victims": victims, **self.restart(8.0)}

    def leader_freezes(self) -> tuple[str, _Fields]:
        """It goes on when another leads, or when it could have lost its lease."""
        return "pause", {"victims": "leader", "for": between(self.chance, 0.3, 20.0)}

    def workers_die(self) -> tuple[str, _Fields]:
        """TaskManagers, while they are awaited."""
        kind = self.chance.choice(("crash", "power-loss", "stop"))
        return kind, {"victims": self.taskmanagers(), **self.restart(8.0)}

    def workers_restart(self) -> tuple[str, _Fields]:
        """They are back at once, in time for the same recovery."""
        kind = self.chance.choice(("crash", "crash", "power-loss"))
        restart_s = between(self.chance, 0.01, 1.0)
        return kind, {"victims": self.taskmanagers(), "restart_after": restart_s}

    def workers_freeze(self) -> tuple[str, _Fields]:
        """What they are about to say comes late."""
        return "pause", {
            "victims": self.taskmanagers(),
            "for": between(self.chance, 0.05, 15.0),
        }

    def storage_fails(self) -> tuple[str, _Fields]:
        """While a log is read, or a recovery is counted."""
        chance = self.chance
        fields: _Fields = {"victims": "shared-storage", "for": between(chance, 0.02, 10.0)}
        kind = chance.choice(("disk-error", "disk-error", "disk-full", "disk-hang", "slow-disk"))
        if kind == "disk-error":
            fields["on"] = chance.choice(("read", "write", "sync"))
        elif kind == "disk-full":
            fields["left"] = chance.choice((0, 100, 10_000))
        elif kind == "slow-disk":
            fields["factor"] = between(chance, 2.0, 200.0)
        return kind, fields

    def some_are_cut_off(self) -> tuple[str, _Fields]:
        """Some of the TaskManagers do not reach the new leader, or it does not reach them."""
        chance = self.chance
        pair = ["jobmanagers", self.taskmanagers()]
        if self.cluster["leader"] == "service" and chance.random() < 0.3:
            pair = ["jobmanagers", "leader-service"]
        if chance.random() < 0.5:
            pair.reverse()
        for_s = between(chance, 0.05, 20.0)
        return "cut", {"between": pair, "one_way": chance.random() < 0.5, "for": for_s}

    def network_is_bad(self) -> tuple[str, _Fields]:
        """Registrations overtake nothing, but come late."""
        kind = self.chance.choice(("slow-link", "lose-packets"))
        return kind, self.slow_link() if kind == "slow-link" else self.lost_packets()

    def files_vanish(self) -> tuple[str, _Fields]:
        """What was offered is not there."""
        return "lose-partitions", self.lost_partitions()

    def worker_s_disk_fails(self) -> tuple[str, _Fields]:
        """Where partitions are."""
        chance = self.chance
        on = chance.choice(("read", "write", "sync"))
        for_s = between(chance, 0.05, 10.0)
        return "disk-error", {"victims": self.taskmanagers(), "on": on, "for": for_s}

    def tasks_die(self) -> tuple[str, _Fields]:
        """What has just been deployed again."""
        return "kill-task", self.killed_task()

    def nobody_is_elected(self) -> tuple[str, _Fields]:
        """A lease cannot be renewed."""
        return "leader-service-down", {"for": between(self.chance, 0.05, 15.0)}

    def clock_jumps(self) -> tuple[str, _Fields]:
        """Wall clocks decide nothing."""
        return "clock-jump", self.jumped_clock()

    def leader_moves(self) -> tuple[str, _Fields]:
        """To another address, while workers look for it."""
        return "address-change", {"victims": "leader"}


_LOSSES = ("crash", "crash", "stop", "power-loss", "pause", "cut", "cut-log")
_STROKES: Mapping[str, Callable[[DoubleFaultDraw], tuple[str, _Fields]]] = {
    "leader dies": DoubleFaultDraw.leader_dies,
    "leader freezes": DoubleFaultDraw.leader_freezes,
    "workers die": DoubleFaultDraw.workers_die,
    "workers restart": DoubleFaultDraw.workers_restart,
    "workers freeze": DoubleFaultDraw.workers_freeze,
    "storage fails": DoubleFaultDraw.storage_fails,
    "some are cut off": DoubleFaultDraw.some_are_cut_off,
    "the network is bad": DoubleFaultDraw.network_is_bad,
    "files vanish": DoubleFaultDraw.files_vanish,
    "a worker's disk fails": DoubleFaultDraw.worker_s_disk_fails,
    "tasks die": DoubleFaultDraw.tasks_die,
    "nobody is elected": DoubleFaultDraw.nobody_is_elected,
    "clocks jump": DoubleFaultDraw.clock_jumps,
    "leader moves": DoubleFaultDraw.leader_moves,
}
_ANY_STEP = ("noticed", "elected", "reconciling", "registered", "ready", "running")
_RETURN = ("noticed", "elected", "reconciling", "registered", "ready")
#: At which steps of a recovery each of them strikes.
_STEPS: Mapping[str, tuple[str, ...]] = {
    "leader dies": (*_ANY_STEP, "reconciling", "elected", "committing", "cancelling"),
    "leader freezes": ("elected", "reconciling", "registered", "ready", "running", "committing"),
    "workers die": _ANY_STEP,
    "workers restart": _RETURN,
    "workers freeze": _RETURN,
    "storage fails": ("elected", "elected", "reconciling", "ready", "running", "committing"),
    "some are cut off": _RETURN,
    "the network is bad": _RETURN,
    "files vanish": ("registered", "ready", "running"),
    "a worker's disk fails": _ANY_STEP,
    "tasks die": ("ready", "running"),
    "nobody is elected": ("elected", "reconciling", "ready", "running"),
    "clocks jump": _ANY_STEP,
    "leader moves": ("elected", "registered", "ready"),
}
