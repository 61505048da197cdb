"""A later attempt is offered than the log knows: its tail was lost (behaviour 5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdover.v1 import common_pb2
from tests.doubles.scheduler_world import SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    holder_of,
    next_leader,
    recovery_of,
    register,
    starts_of,
)


@pytest.mark.parametrize("known_to_be_gone", [True, False])
def test_a_later_attempt_takes_the_place_of_one_that_the_log_knows_and_that_is_gone(
    known_to_be_gone: bool,
) -> None:
    """The tail that told of the loss, and of the second run, is lost with its leader."""
    world = SchedulerWorld(chain(2), workers=3)
    world.lead()
    register(world)
    finish(world, "s")
    holder, key = holder_of(world, "s", 0)
    other = next(w for w in world.workers.values() if w is not holder)
    second = replace(key, attempt=1)
    execution = common_pb2.FinishedExecution()
    execution.CopyFrom(holder.stored[key])
    execution.attempt.CopyFrom(second.to_proto())
    other.stored[second] = execution
    other.rows[second, 0] = holder.rows[key, 0]
    world.durable = len(world.log)
    before = len(world.starts)
    next_leader(world)
    if known_to_be_gone:
        holder.delete(key)
    register(world, holder.worker_id, other.worker_id)
    register(world)
    assert (second in other.stored) == known_to_be_gone
    world.run_to_end()
    assert starts_of(world, before).count(("s", 0)) == 0
    assert recovery_of(world).counts["s"].adopted == known_to_be_gone
    assert world.output() == list(range(8))
