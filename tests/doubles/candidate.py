"""A process of a simulated world that wants to lead, and remembers when it did."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdover.coordination.leader import LeaderElection
from simulator.world.process import Process
from simulator.world.world import World


@dataclass
class Candidate:
    """A process that campaigns, and when it has led."""

    world: World
    process: Process
    election: LeaderElection
    epochs: list[int] = field(default_factory=list)
    lost_s: list[float] = field(default_factory=list)

    async def campaign(self) -> None:
        """Lead as often as possible."""
        while True:
            leadership = await self.election.campaign(f"{self.process.name}:1")
            self.epochs.append(leadership.epoch)
            await self.election.lost.wait()
            self.lost_s.append(self.world.now_s)
            await self.election.step_down()
