"""Slots that are free, and jobs that want some."""

from __future__ import annotations

from simulator.invariants.slots import NoJobStarves
from simulator.invariants.view import LeaderView
from tests.unit.simulator.invariants.known_cluster import KnownCluster


def test_a_job_that_waits_beside_a_free_slot_is_found() -> None:
    """It is named; a leader that has given all it has is right."""
    cluster = KnownCluster(leading=[LeaderView("jm-0#0", 1), LeaderView("jm-1#0", 2)])
    invariant = cluster.checked(NoJobStarves)
    invariant.check()
    assert cluster.findings == []
    cluster.leading = [LeaderView("jm-0#0", 1, starving=("job",))]
    invariant.check()
    assert cluster.findings == ["jm-0#0 has free slots, and gives none to job"]
