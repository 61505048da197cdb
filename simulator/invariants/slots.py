"""No job waits beside a free slot: what is free goes to who wants it, in the same moment."""

from __future__ import annotations

from simulator.invariants.view import Invariant


class NoJobStarves(Invariant):
    """See the module."""

    name = "no job waits beside free slots"

    def check(self) -> None:
        """Look at what each leader has to give, and who wants it."""
        for leader in self.view.leaders():
            if leader.starving:
                jobs = ", ".join(leader.starving)
                self.broken(f"{leader.name} has free slots, and gives none to {jobs}")
