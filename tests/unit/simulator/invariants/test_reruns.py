"""Which reruns are needless, and which are not."""

from __future__ import annotations

import random

import pytest

from holdover.v1 import events_pb2
from holdover.v1.job_pb2 import DETERMINISM_INDETERMINATE, JobGraph
from holdover.v1.taskmanager_pb2 import TaskDeployment
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.reconciliation import WAIT_TIMER
from simulator.invariants.reruns import DRAINED, NoNeedlessRerun
from simulator.invariants.view import Invariant, WorkerView
from tests.unit.jobmanager.scheduler.job_graphs import chain, dealt_out, join
from tests.unit.jobmanager.scheduler.scenes import finished, graph_with, reset
from tests.unit.simulator.invariants.known_cluster import (
    KnownCluster,
    attempt,
    execution,
    scheduler,
    step,
    worker,
)
from tests.unit.simulator.invariants.watched_scheduler import WatchedWorld

MISSING = events_pb2.RESET_REASON_PARTITION_MISSING
LOST = events_pb2.RESET_REASON_WORKER_LOST


@pytest.mark.parametrize("seed", range(12))
def test_the_scheduler_reruns_nothing_needlessly(seed: int) -> None:
    """Leaders die with a lost tail, workers die or are late, and all that is decided is right."""
    world = WatchedWorld((chain(3), join(2))[seed % 2], seed=seed)
    chance = random.Random(seed)
    world.lead()
    for _ in range(6):
        for of in world.workers.values():
            if not of.registered and chance.random() < 0.7:
                of.alive = True
                world.register(of)
        world.deliver_pending()
        for of, key in world.tasks():
            if chance.random() < 0.7:
                world.finish(of, key)
                world.deliver_pending()
        if world.ended is not None:
            break
        if chance.random() < 0.4:
            world.kill_worker(chance.choice(list(world.workers.values())))
        elif chance.random() < 0.5:
            world.lose_leader(lost_events=chance.randrange(4))
            world.lead()
    if world.ended is None:
        world.run_to_end()
    assert world.cluster.findings == []


def history(holder: WorkerView | None, reason: events_pb2.ResetReason.ValueType) -> KnownCluster:
    """s[0] has finished at tm-0, and its leader resets it when tm-0 is like that."""
    cluster = KnownCluster(living=[holder] if holder else [])
    invariant = cluster.checked(NoNeedlessRerun)
    _reset_source(invariant, reason, registered=holder is not None)
    return cluster


def _reset_source(
    invariant: Invariant, reason: events_pb2.ResetReason.ValueType, *, registered: bool
) -> None:
    graph = graph_with(chain(2), 2, {"s": range(2)})
    of = scheduler(graph, workers=["tm-0"] if registered else [])
    invariant.step(step(of, sig.JobStarted()))
    event = reset("s", 0)
    event.vertex_reset.reason = reason
    graph.apply(event)
    invariant.step(step(of, sig.WorkerLost("tm-0", ""), events=[event]))


def test_a_partition_that_lives_and_is_reset_is_found() -> None:
    """Whether it is called missing, or its worker lost though nothing disturbs anybody."""
    held = worker("tm-0", attempt("s", 0))
    for reason in (MISSING, LOST, events_pb2.RESET_REASON_UPSTREAM_CLOSURE):
        assert "is alive, registered in time, and holds it" in history(held, reason).findings[0]


def test_a_reset_of_what_another_worker_holds_is_found() -> None:
    """P39: who has made it is gone, and not where it is; not so a copy, of which a leader may know
    nothing."""
    key = attempt("s", 0)
    for copied, findings in ((False, 1), (True, 0)):
        cluster = KnownCluster(living=[worker("ss-0", key)])
        invariant = cluster.checked(NoNeedlessRerun)
        of = scheduler(graph_with(chain(2), 2, {"s": range(2)}), workers=["ss-0"])
        copies = [act.CopyPartitions("ss-1", "ss-0", "ss-0:1", (key,))] if copied else []
        invariant.step(step(of, sig.JobStarted(), *copies))
        event = reset("s", 0)
        event.vertex_reset.reason = LOST
        of.graph.apply(event)
        invariant.step(step(of, sig.WorkerLost("tm-0", ""), events=[event]))
        assert len(cluster.findings) == findings, cluster.findings


def test_a_reset_of_what_a_drained_service_has_taken_along_is_found() -> None:
    """It has left because it was told that nothing was needed."""
    cluster = KnownCluster()
    invariant = cluster.checked(NoNeedlessRerun)
    of = scheduler(graph_with(chain(2), 2, {"s": range(2)}))
    invariant.step(step(of, sig.JobStarted()))
    event = reset("s", 0)
    event.vertex_reset.reason = LOST
    of.graph.apply(event)
    invariant.step(step(of, sig.WorkerLost("tm-0", DRAINED), events=[event]))
    assert "nothing of it was said to be needed" in cluster.findings[0]


def test_a_reset_of_what_is_gone_is_right() -> None:
    """The worker is dead, has let go of it, or its files are gone."""
    held = attempt("s", 0)
    assert history(None, MISSING).findings == []
    assert history(worker("tm-0"), MISSING).findings == []
    assert history(worker("tm-0", held, with_files=False), MISSING).findings == []


def test_what_is_reset_and_finished_at_once_may_be_reset_again() -> None:
    """A worker brings a later attempt than the log knows; then its files are lost."""
    cluster = KnownCluster(living=[worker("tm-0")])
    invariant = cluster.checked(NoNeedlessRerun)
    of = scheduler(graph_with(chain(2), 2, {"s": range(2)}), workers=["tm-0"])
    invariant.step(step(of, sig.JobStarted()))
    again = reset("s", 0)
    again.vertex_reset.reason = MISSING
    for events in ([again, finished("s", 0, attempt=1)], [again]):
        for event in events:
            of.graph.apply(event)
        invariant.step(step(of, sig.WorkerRegistered("tm-0", "tm-0:1", False), events=events))
    assert cluster.findings == []


def test_a_leader_may_take_a_worker_for_lost_while_a_fault_deceives_it() -> None:
    """And for a while after."""
    for calm_since_s, findings in ((None, 0), (95.0, 0), (80.0, 1)):
        held = worker("tm-0", attempt("s", 0))
        cluster = KnownCluster(living=[held], calm_since_s=calm_since_s)
        _reset_source(cluster.checked(NoNeedlessRerun), LOST, registered=True)
        assert len(cluster.findings) == findings, (calm_since_s, cluster.findings)


def test_a_reset_for_a_producer_that_stays_is_found() -> None:
    """A consumer of an indeterminate producer is reset together with it only."""
    indeterminate = events_pb2.RESET_REASON_INDETERMINATE_PRODUCER
    found = history(worker("tm-0", attempt("s", 0)), indeterminate).findings
    assert "for a producer that it does not reset" in found[0]


@pytest.mark.parametrize(("job", "findings"), [(dealt_out(2), 0), (chain(2), 1)])
def test_who_has_read_rows_in_no_order_by_their_position_follows(
    job: JobGraph, findings: int
) -> None:
    """And nobody who has read them by their value."""
    cluster = KnownCluster(living=[worker("tm-0")])
    invariant = cluster.checked(NoNeedlessRerun)
    of = scheduler(graph_with(job, 2, {"s": range(2), "m": range(2), "k": [0]}), workers=["tm-0"])
    invariant.step(step(of, sig.JobStarted()))
    lost, follows = reset("m", 0), reset("k", 0)
    lost.vertex_reset.reason = LOST
    follows.vertex_reset.reason = events_pb2.RESET_REASON_INDETERMINATE_PRODUCER
    for event in (lost, follows):
        of.graph.apply(event)
    invariant.step(step(of, sig.WorkerLost("tm-0", ""), events=[lost, follows]))
    assert len(cluster.findings) == findings, cluster.findings


def test_a_wait_that_ends_before_its_time_is_found() -> None:
    """The worker lives, and was about to come."""
    for waited_s, findings in ((10, 1), (31, 0)):
        cluster = KnownCluster(living=[worker("tm-0", attempt("s", 0))])
        invariant = cluster.checked(NoNeedlessRerun)
        graph = graph_with(chain(2), 2, {"s": range(2)})
        of = scheduler(graph, epoch=2)
        of.handle(sig.RecoveryStarted(("tm-0",)))
        invariant.step(step(of, sig.RecoveryStarted(("tm-0",))))
        event = reset("s", 0)
        event.vertex_reset.reason = MISSING
        graph.apply(event)
        timer = sig.TimerFired(WAIT_TIMER)
        invariant.step(step(of, timer, events=[event], at_s=100.0 + waited_s))
        assert len(cluster.findings) == findings, cluster.findings


def offered(
    *, reason: str, reset_before: bool = False, after_s: float = 1, read_others: bool = False
) -> KnownCluster:
    """m[0] has finished unlogged at tm-0, which offers it to the next leader and is refused. It may
    have read another attempt than counts, of a vertex whose rows differ from run to run."""
    key = attempt("m", 0)
    cluster = KnownCluster(living=[worker("tm-0", key)])
    invariant = cluster.checked(NoNeedlessRerun)
    if reset_before:
        before = graph_with(chain(2), 2, {"s": range(2), "m": range(2)})
        first = scheduler(before)
        invariant.step(step(first, sig.JobStarted()))
        event = reset("m", 0)
        before.apply(event)
        cluster.living = []
        invariant.step(step(first, sig.WorkerLost("tm-0", ""), events=[event]))
        cluster.findings.clear()
        cluster.living = [worker("tm-0", key)]
    job = chain(2)
    if read_others:
        job.vertices[0].operators[-1].determinism = DETERMINISM_INDETERMINATE
    of = scheduler(graph_with(job, 2, {"s": range(2)}), epoch=2)
    of.handle(sig.RecoveryStarted(("tm-0", "tm-9")))
    invariant.step(step(of, sig.RecoveryStarted(("tm-0", "tm-9")), leader="jm-1#0"))
    signal = sig.WorkerRegistered("tm-0", "tm-0:1", refreshed=False, finished=[execution(key)])
    rejected = act.RejectOffers("tm-0", (key,), reason)
    invariant.step(step(of, signal, rejected, at_s=100 + after_s, leader="jm-1#0"))
    return cluster


def test_finished_work_that_is_offered_in_time_and_refused_is_found() -> None:
    """Unless an earlier leader has reset it, or it has read what does not count."""
    assert "and it runs again" in offered(reason="superseded").findings[0]
    assert offered(reason="superseded", reset_before=True).findings == []
    assert offered(reason="superseded", read_others=True).findings == []


def test_a_worker_that_is_called_late_must_be_late() -> None:
    """The window for unlogged work is 2 s here."""
    assert "as late, 1.000 s after" in offered(reason="late").findings[0]
    assert offered(reason="late", after_s=3).findings == []


def test_what_an_unfinished_subtask_needs_must_not_be_deleted() -> None:
    """m[1] has not finished."""
    for done, findings in ((range(1), 1), (range(2), 0)):
        cluster = KnownCluster()
        invariant = cluster.checked(NoNeedlessRerun)
        of = scheduler(graph_with(chain(2), 2, {"s": range(2), "m": done}))
        release = act.ReleasePartitions("tm-0", (attempt("s", 0),))
        invariant.step(step(of, sig.JobStarted(), release))
        assert len(cluster.findings) == findings, cluster.findings


def test_a_copy_of_what_counts_may_be_deleted() -> None:
    """s[0] counts as it is at tm-0; a shuffle service that was drained has it, too."""
    cluster = KnownCluster()
    invariant = cluster.checked(NoNeedlessRerun)
    of = scheduler(graph_with(chain(2), 2, {"s": range(2)}))
    invariant.step(step(of, sig.JobStarted(), act.ReleasePartitions("ss-0", (attempt("s", 0),))))
    assert cluster.findings == []


def test_nothing_is_deployed_while_finished_work_may_still_be_offered() -> None:
    """Adoption comes first."""
    cluster = KnownCluster()
    of = scheduler(graph_with(chain(2), 2, {"s": range(2)}), epoch=2)
    of.handle(sig.RecoveryStarted(("tm-0",)))
    deployment = TaskDeployment(attempt=attempt("m", 0, epoch=2).to_proto())
    deploy = act.Deploy(sig.SlotId("tm-0", 0), deployment)
    cluster.checked(NoNeedlessRerun).step(step(of, sig.SlotsGranted(()), deploy))
    assert "may still offer finished work" in cluster.findings[0]
