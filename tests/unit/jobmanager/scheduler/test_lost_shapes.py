"""The shape of a vertex is lost with the end of the log: it is decided anew, in time for offers."""

from __future__ import annotations

from dataclasses import replace

from holdover.v1 import job_pb2
from jobmanager.scheduler.parallelism import AdaptiveParallelism
from jobmanager.scheduler.reconciliation import ADOPTION_TIMER, Reconciliation
from jobmanager.scheduler.states import JobState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.scheduler.job_graphs import HASH, chain, connect, sink, source, stage
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    finished,
    graph_of,
    holder_of,
    initialized,
    next_leader,
    recovery_of,
    register,
    replayed,
    started,
    starts_of,
)

KEPT = replace(OPTIONS, release_during_execution=False)


def without_the_end_of_its_log(world: SchedulerWorld, durable: int) -> None:
    """A power loss: what was flushed at once is gone as well."""
    world.durable = durable
    next_leader(world, lost_events=1000)


def two_sources() -> job_pb2.JobGraph:
    """s1 -> m (adaptive) -> k, and s2 -> k."""
    vertices = [source("s1", 2), source("s2", 1), stage("m", 0), sink("k", 2)]
    job = job_pb2.JobGraph(job_id="job", vertices=vertices)
    connect(job, "s1", "m", HASH, 6)
    connect(job, "m", "k", HASH, 2)
    connect(job, "s2", "k", HASH, 2)
    return job


def test_while_workers_are_awaited_a_lost_shape_is_decided_and_its_work_adopted() -> None:
    """The job is RECONCILING: who holds the output of the other source is not back."""
    world = started(two_sources(), options=KEPT)
    finish(world, "s2")
    finish(world, "s1")
    shaped = next(i for i, e in enumerate(world.log) if e.vertex_initialized.vertex_id == "m")
    finish(world, "m")
    absent, _ = holder_of(world, "s2", 0)
    before = len(world.starts)
    subtasks = range(graph_of(world).vertices["m"].parallelism)
    adopted = [i for i in subtasks if holder_of(world, "m", i)[0] is not absent]
    assert adopted, "somebody else holds output of m"
    without_the_end_of_its_log(world, shaped)
    assert graph_of(world).vertices["m"].initialized, "its inputs are known from the log"
    register(world, *(w for w in world.workers if w != absent.worker_id))
    assert graph_of(world).state is JobState.RECONCILING
    assert recovery_of(world).counts["m"].adopted == len(adopted)
    register(world, absent.worker_id)
    world.run_to_end()
    assert {vertex_id for vertex_id, _ in starts_of(world, before)} == {"k"}
    assert world.output() == sorted([*range(8)] * 2)


def test_an_offer_without_a_shape_waits_for_what_others_bring_back() -> None:
    """Its holder registers first; the producer's, of whose end no event is left, last."""
    world = started(chain(2, adaptive=True), workers=6, slots=1, options=KEPT)
    begun = len(world.log)
    finish(world, "s")
    finish(world, "m")
    producers = {holder_of(world, "s", i)[0].worker_id for i in range(2)}
    before = len(world.starts)
    without_the_end_of_its_log(world, begun)
    register(world, *(w for w in world.workers if w not in producers))
    assert not graph_of(world).vertices["m"].initialized
    register(world, *producers)
    world.run_to_end()
    assert {vertex_id for vertex_id, _ in starts_of(world, before)} == {"k"}
    assert world.output() == list(range(8))


def test_an_offer_whose_vertex_never_takes_its_shape_again_is_given_up_with_the_window() -> None:
    world = started(chain(2, adaptive=True), workers=6, slots=1, options=KEPT)
    begun = len(world.log)
    finish(world, "s")
    finish(world, "m")
    absent, _ = holder_of(world, "s", 0)
    holder, key = holder_of(world, "m", 0)
    without_the_end_of_its_log(world, begun)
    register(world, *(w for w in world.workers if w != absent.worker_id))
    assert holder is not absent
    assert key in recovery_of(world).deferred
    world.fire(ADOPTION_TIMER)
    world.deliver_pending()
    assert len(recovery_of(world).deferred) == 0
    assert key not in holder.stored
    world.run_to_end()
    assert world.output() == list(range(8))


def test_what_ran_by_another_shape_is_not_adopted() -> None:
    """A subtask of three is no subtask of one: the new leader decides by other options."""
    world = started(chain(2, adaptive=True), options=KEPT)
    begun = len(world.log)
    finish(world, "s")
    finish(world, "m")
    before = graph_of(world).vertices["m"].parallelism
    world.options = replace(KEPT, adaptive=AdaptiveParallelism(1, 6, 1000))
    without_the_end_of_its_log(world, begun)
    register(world)
    world.run_to_end()
    assert graph_of(world).vertices["m"].parallelism != before
    assert recovery_of(world).counts["m"].adopted == 0
    assert world.output() == list(range(8))


def test_what_is_ready_does_not_wait_for_its_shape() -> None:
    """The last subtask of a source finished with its leader: its readers run during the wait."""
    world = started(two_sources())
    finish(world, "s2")
    finish(world, "s1")
    shaped = next(i for i, e in enumerate(world.log) if e.vertex_initialized.vertex_id == "m")
    absent, _ = holder_of(world, "s2", 0)
    assert absent not in [holder_of(world, "s1", i)[0] for i in range(2)]
    before = len(world.starts)
    without_the_end_of_its_log(world, shaped)
    register(world, *(w for w in world.workers if w != absent.worker_id))
    world.fire(ADOPTION_TIMER)
    world.deliver_pending()
    assert graph_of(world).state is JobState.RECONCILING
    assert "m" in {vertex_id for vertex_id, _ in starts_of(world, before)}
    register(world, absent.worker_id)
    world.run_to_end()
    assert world.output() == sorted([*range(8)] * 2)


def test_what_only_adopted_work_would_have_read_is_awaited_no_longer() -> None:
    """All of the middle is adopted: who holds the source's output need not come back."""
    shapes = [initialized("s", 2), *(initialized(v, 2, inputs=1) for v in "mk")]
    graph = replayed(chain(2), [*shapes, *(finished("s", i) for i in range(2))])
    recovery = Reconciliation(graph, ())
    assert [*recovery.awaited] == [("s", 0), ("s", 1)]
    for subtask in range(2):
        graph.apply(finished("m", subtask))
    recovery.all_finished(graph.vertices["m"])
    assert not recovery.awaited
