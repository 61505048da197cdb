"""A later attempt is offered than the log knows: its tail was lost (behaviour 5)."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_, is_not

import pytest

from holdover.ids import AttemptKey
from tests.doubles.scheduler_world import SchedulerWorld, Worker
from tests.unit.jobmanager.scheduler.job_graphs import chain, dealt_out
from tests.unit.jobmanager.scheduler.scenes import (
    copied_as_second,
    finish,
    holder_of,
    next_leader,
    recovery_of,
    register,
    starts_of,
)


def run_again_unheard(
    world: SchedulerWorld, where: Callable[[Worker, Worker], bool], *, read: bool = False
) -> tuple[Worker, AttemptKey, Worker, AttemptKey]:
    """A finished subtask, and a second attempt of it whose events are lost with their leader: who
    holds the first, the first, who holds the second, the second. All that reads it has finished
    when it is `read`, so that the first is deleted."""
    world.lead()
    register(world)
    finish(world, "s")
    holder, key = holder_of(world, "s", 0)
    other = next(w for w in world.workers.values() if where(w, holder))
    second = copied_as_second(holder, key, other)
    if read:
        finish(world, "m")
    world.durable = len(world.log)
    return holder, key, other, second


@pytest.mark.parametrize("known_to_be_gone", [True, False])
def test_a_later_attempt_takes_the_place_of_one_that_the_log_knows_and_that_is_gone(
    known_to_be_gone: bool,
) -> None:
    """The tail that told of the loss, and of the second run, is lost with its leader."""
    world = SchedulerWorld(chain(2), workers=3)
    holder, key, other, second = run_again_unheard(world, is_not)
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


def test_a_later_attempt_counts_while_nobody_has_brought_the_first() -> None:
    """That there is one says that the first was given up; who held it may never come back."""
    world = SchedulerWorld(chain(2), workers=3)
    holder, key, other, second = run_again_unheard(world, is_not)
    before = len(world.starts)
    next_leader(world)
    register(world, other.worker_id)
    assert recovery_of(world).counts["s"].adopted == 1
    register(world)
    assert second in other.stored
    assert key not in holder.stored
    world.run_to_end()
    assert starts_of(world, before).count(("s", 0)) == 0
    assert world.output() == list(range(8))


def test_a_later_attempt_counts_though_all_that_reads_it_has_finished() -> None:
    """What has read it is gone as well, which is not told before all is judged: it runs again."""
    world = SchedulerWorld(chain(2, forward=True), workers=1)
    _, _, other, second = run_again_unheard(world, is_, read=True)
    before = len(world.starts)
    reader, read = holder_of(world, "m", 0)
    next_leader(world)
    reader.delete(read)
    register(world)
    assert second in other.stored
    world.run_to_end()
    assert starts_of(world, before).count(("s", 0)) == 0
    assert starts_of(world, before).count(("m", 0)) == 1
    assert world.output() == list(range(8))


@pytest.mark.parametrize("read", [True, False])
def test_a_later_attempt_takes_no_place_where_readers_of_the_first_would_have_to_follow(
    read: bool,
) -> None:
    """Its rows are dealt out by their position, and may stand in another order; where nobody has
    finished with them yet, that makes no difference."""
    world = SchedulerWorld(dealt_out(2), workers=3, slots=1)
    world.lead()
    register(world)
    finish(world, "s")
    finish(world, "m")
    holder, key = holder_of(world, "m", 0)
    other = next(w for w in world.workers.values() if w is not holder)
    second = copied_as_second(holder, key, other)
    other.rows[second, 0] = [part[::-1] for part in reversed(other.rows[second, 0])]
    if read:
        finish(world, "k", [0])
    world.durable = len(world.log)
    next_leader(world)
    holder.delete(key)
    register(world)
    assert (second in other.stored) is not read
    world.run_to_end()
    assert world.output() == list(range(8))
    assert recovery_of(world).counts["m"].adopted == (not read)


def test_a_worker_that_lost_its_first_attempt_brings_the_second_itself() -> None:
    """What it lacks is judged before what it brings: the second does not stand beside the first."""
    world = SchedulerWorld(chain(2), workers=3)
    holder, key, _, second = run_again_unheard(world, is_)
    before = len(world.starts)
    next_leader(world)
    holder.delete(key)
    register(world)
    assert second in holder.stored
    world.run_to_end()
    assert starts_of(world, before).count(("s", 0)) == 0
    assert recovery_of(world).counts["s"].adopted == 1
    assert world.output() == list(range(8))
