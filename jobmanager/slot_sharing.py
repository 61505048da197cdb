"""How free slots are shared out among jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobmanager.scheduler.signals import SlotId


@dataclass(slots=True)
class Demand:
    """What a job wants and has."""

    wanted: int = 0
    held: int = 0


@dataclass(slots=True)
class Sharing:
    """Slots to grant, and how many to ask back, by job."""

    grants: dict[str, list[SlotId]] = field(default_factory=dict)
    reclaims: dict[str, int] = field(default_factory=dict)


def share_slots(demands: Mapping[str, Demand], free: Sequence[SlotId]) -> Sharing:
    """Give each free slot to the job that wants more and holds fewest, the oldest job first.

    Where a job is left with nothing although it wants slots, jobs that hold more than a fair share
    are asked to return what is above it as their tasks end; running tasks are never taken away.
    """
    sharing = Sharing()
    held = {job_id: demand.held for job_id, demand in demands.items()}
    for slot in free:
        hungry = [job_id for job_id, demand in demands.items() if held[job_id] < demand.wanted]
        if not hungry:
            break
        job_id = min(hungry, key=lambda candidate: held[candidate])
        held[job_id] += 1
        sharing.grants.setdefault(job_id, []).append(slot)
    starved = [job_id for job_id, demand in demands.items() if demand.wanted and not held[job_id]]
    if starved:
        wanting = sum(1 for demand in demands.values() if demand.wanted)
        fair = max(1, sum(held.values()) // wanting)
        for job_id, count in held.items():
            if count > fair:
                sharing.reclaims[job_id] = count - fair
    return sharing
