"""The faults of a run whose jobs' output goes to shuffle services: those are victims, too.

What happens to TaskManagers in other swarms happens to services in about half of the cases.
"""

from __future__ import annotations

import random
from typing import Any

from simulator.swarm_faults import FAULTS_MAX, FaultDraw, between

#: Services that a run drains.
DRAINS_MAX = 3

_Fields = dict[str, Any]


class ExternalFaultDraw(FaultDraw):
    """See the module."""

    def faults(self) -> list[_Fields]:
        """As in other swarms; in some runs services are drained besides."""
        faults = super().faults()[: FAULTS_MAX - DRAINS_MAX]
        self.keep_ids(faults)
        if self.chance.random() < 0.4:
            for _ in range(self.chance.randint(1, DRAINS_MAX)):
                victims = self.chance.choice(("shuffle:one", "shuffle:holders", "shuffle:holders"))
                self.add(faults, "drain", {"victims": victims}, self.moment())
        return faults

    def taskmanagers(self) -> str:
        """Some of the TaskManagers, or some of the shuffle services."""
        if self.chance.random() < 0.5:
            return super().taskmanagers()
        number = f"shuffle:{self.chance.randint(1, self.cluster['shuffle_services'])}"
        return self.chance.choice(
            ("shuffle:one", "shuffle:one", "shuffle:holders", "shuffle:holders", number)
            if self.chance.random() < 0.85
            else ("shuffle:all",)
        )

    def task_runners(self) -> str:
        """TaskManagers only: services run none."""
        return super().taskmanagers()


def draw_services(chance: random.Random) -> _Fields:
    """The part of a cluster that is shuffle services."""
    return {
        "shuffle_services": chance.randint(1, 4),
        "shuffle_service_start": between(chance, 0.1, 3.0),
        "shuffle_service_restart": "never" if chance.random() < 0.2 else between(chance, 0.2, 8.0),
    }
