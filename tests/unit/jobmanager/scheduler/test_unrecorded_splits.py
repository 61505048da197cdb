"""A source that does not record its splits: kept whole, or listed and read anew (behaviour 5.7)."""

from __future__ import annotations

from holdover.jobgraph import determinism_of
from holdover.v1 import job_pb2
from jobmanager.scheduler.reconciliation import WAIT_TIMER
from jobmanager.scheduler.states import JobState
from tests.doubles.scheduler_world import SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import chain, unrecorded
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    fire,
    graph_of,
    holder_of,
    next_leader,
    recovery_of,
    register,
    resets_of,
    started,
    starts_of,
    stored_by,
)

PARALLELISM = 4


def begun(finished: int, *, splits: int = 8) -> SchedulerWorld:
    """So many subtasks of the source have finished when the next leader comes."""
    world = started(unrecorded(chain(PARALLELISM)))
    finish(world, "s", range(finished))
    world.splits = splits
    next_leader(world)
    return world


def test_the_list_is_not_in_the_log() -> None:
    world = started(unrecorded(chain(PARALLELISM)))
    [initialized] = [e.vertex_initialized for e in world.log if e.HasField("vertex_initialized")][
        :1
    ]
    assert (initialized.vertex_id, len(initialized.splits)) == ("s", 0)
    world.run_to_end()
    assert world.output() == list(range(8))


def test_not_all_finished_all_are_reset() -> None:
    world = begun(finished=3)
    assert resets_of(world) == {("s", "SPLITS_UNKNOWN"): [0, 1, 2]}
    assert graph_of(world).state is JobState.RUNNING, "nothing is awaited"
    register(world)
    assert sum(len(stored_by(world, worker, "s")) for worker in world.workers) == 0
    assert recovery_of(world).counts["s"].adopted == 0
    world.run_to_end()
    assert world.output() == list(range(8))


def test_the_next_list_may_be_another_one() -> None:
    """Files have come in the meantime; the number of subtasks stays."""
    world = begun(finished=3, splits=11)
    register(world)
    world.run_to_end()
    assert world.output() == list(range(11))
    assert len(graph_of(world).vertices["s"].subtasks) == PARALLELISM


def test_all_finished_none_is_reset() -> None:
    world = begun(finished=PARALLELISM, splits=11)
    register(world)
    world.run_to_end()
    assert resets_of(world) == {}
    assert {starts_of(world).count(("s", i)) for i in range(PARALLELISM)} == {1}
    assert world.output() == list(range(8)), "nobody has listed it anew"


def test_all_finished_and_one_must_rerun_later_all_do() -> None:
    world = begun(finished=PARALLELISM, splits=11)
    register(world)
    finish(world, "m", [0])
    reader, _ = holder_of(world, "m", 0)
    victim = next(
        w for w in world.workers.values() if stored_by(world, w.worker_id, "s") and w is not reader
    )
    lost = stored_by(world, victim.worker_id, "s")
    others = [i for i in range(PARALLELISM) if i not in lost]
    before = len(world.log)
    world.kill_worker(victim)
    world.deliver_pending()
    resets = resets_of(world, before)
    assert resets["s", "WORKER_LOST"] == lost
    assert resets["s", "SPLITS_UNKNOWN"] == others
    assert resets["m", "INDETERMINATE_PRODUCER"] == [0], "it has read the files of before"
    world.run_to_end()
    assert world.output() == list(range(11))


def test_a_worker_that_does_not_come_back_costs_the_whole_source() -> None:
    world = begun(finished=PARALLELISM)
    gone = next(w for w in world.workers if stored_by(world, w, "s"))
    lost = stored_by(world, gone, "s")
    register(world, *(w for w in world.workers if w != gone))
    fire(world, WAIT_TIMER)
    resets = resets_of(world)
    assert resets["s", "PARTITION_MISSING"] == lost
    assert sorted([*lost, *resets["s", "SPLITS_UNKNOWN"]]) == list(range(PARALLELISM))
    world.run_to_end()
    assert world.output() == list(range(8))


def test_while_its_leader_lives_one_subtask_runs_again_alone_with_its_own_splits() -> None:
    world = started(unrecorded(chain(PARALLELISM)))
    finish(world, "s")
    victim = next(w for w in world.workers.values() if stored_by(world, w.worker_id, "s"))
    lost = stored_by(world, victim.worker_id, "s")
    world.kill_worker(victim)
    world.deliver_pending()
    assert resets_of(world) == {("s", "WORKER_LOST"): lost}
    world.run_to_end()
    assert world.output() == list(range(8))


def test_its_rows_may_be_others_another_time() -> None:
    levels = determinism_of(unrecorded(chain(PARALLELISM)))
    assert set(levels.values()) == {job_pb2.DETERMINISM_INDETERMINATE}
