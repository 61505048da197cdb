"""One leader epoch acts."""

from __future__ import annotations

from dataclasses import replace

from holdover.v1 import common_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.states import JobState
from simulator.invariants.leadership import OneLeaderActs
from simulator.invariants.view import LeaderView
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.simulator.invariants.known_cluster import (
    KnownCluster,
    attempt,
    scheduler,
    step,
    worker,
)


def test_leaders_one_after_another_are_right() -> None:
    """A frozen leader beside the one that leads is right, too."""
    cluster = KnownCluster(leading=[LeaderView("jm-0#0", 1)])
    invariant = cluster.checked(OneLeaderActs)
    invariant.check()
    cluster.now_s, cluster.leading = 110, [LeaderView("jm-0#0", 1, paused=True)]
    invariant.check()
    cluster.leading = [LeaderView("jm-0#0", 1, paused=True), LeaderView("jm-1#0", 2)]
    for cluster.now_s in (120, 130):
        invariant.check()
    cluster.leading = [LeaderView("jm-0#0", 1), LeaderView("jm-1#0", 2)]
    invariant.check()
    assert cluster.findings == []


def test_two_leaders_that_both_run_for_long_are_found() -> None:
    """For a moment they may."""
    cluster = KnownCluster(leading=[LeaderView("jm-0#0", 1), LeaderView("jm-1#0", 2)])
    invariant = cluster.checked(OneLeaderActs)
    invariant.check()
    assert cluster.findings == []
    cluster.now_s += 2
    invariant.check()
    assert "jm-0#0 and jm-1#0 both lead" in cluster.findings[0]


def test_an_epoch_of_two_processes_is_found() -> None:
    """Also when one of them has only been seen by a step of a job."""
    cluster = KnownCluster(leading=[LeaderView("jm-0#0", 3)])
    invariant = cluster.checked(OneLeaderActs)
    invariant.check()
    invariant.step(step(scheduler(epoch=3), sig.JobStarted(), leader="jm-1#0"))
    assert "both jm-0#0 and jm-1#0 lead with epoch 3" in cluster.findings[0]


def test_an_attempt_of_an_epoch_that_is_over_is_found_when_it_was_taken_afterwards() -> None:
    """What occupied a slot before may go on occupying it."""
    old, late = attempt("m", 0, epoch=1), attempt("m", 1, epoch=1)
    cluster = KnownCluster(living=[worker(epoch_seen=2, occupants=(old,), slots=2)])
    invariant = cluster.checked(OneLeaderActs)
    invariant.check()
    invariant.check()
    assert cluster.findings == []
    cluster.living = [worker(epoch_seen=2, occupants=(old, late), slots=2)]
    invariant.check()
    assert cluster.findings == [f"tm-0#0 took {late} after it had seen epoch 2"]


def test_a_taskmanager_that_forgets_an_epoch_is_found() -> None:
    """It would take orders of an old leader."""
    cluster = KnownCluster(living=[worker(epoch_seen=2)])
    invariant = cluster.checked(OneLeaderActs)
    invariant.check()
    cluster.living = [worker(epoch_seen=1)]
    invariant.check()
    assert "has seen epoch 2 and now knows 1" in cluster.findings[0]


def test_an_end_that_an_old_leader_decides_is_found() -> None:
    """The newer one had taken the job up."""
    for ended_by, findings in ((2, 0), (1, 1)):
        cluster = KnownCluster()
        cluster.submit(chain(2))
        invariant = cluster.checked(OneLeaderActs)
        for epoch in (1, 2):
            invariant.step(step(scheduler(epoch=epoch), sig.JobStarted(), leader=f"jm-{epoch}#0"))
        cluster.archive(common_pb2.JOB_STATE_FINISHED, epoch=ended_by)
        invariant.check()
        invariant.check()
        assert len(cluster.findings) == findings, cluster.findings


def test_an_end_that_was_being_recorded_when_its_leader_froze_is_recorded_anew() -> None:
    """By the newer one, which must do so."""
    cluster = KnownCluster(leading=[LeaderView("jm-2#0", 2)])
    cluster.submit(chain(2))
    invariant = cluster.checked(OneLeaderActs)
    end = Decision(actions=[act.EndJob(JobState.FINISHED, None)])
    older, newer = (
        step(scheduler(epoch=epoch), sig.JobStarted(), leader=f"jm-{epoch}#0") for epoch in (1, 2)
    )
    invariant.step(replace(older, at_s=90.0, decision=end))
    invariant.step(replace(newer, at_s=91.0))
    cluster.archive(common_pb2.JOB_STATE_FINISHED, epoch=1)
    invariant.check()
    assert invariant.at_end() == ["how job job ended is recorded by epoch 1 still"]
    cluster.archive(common_pb2.JOB_STATE_FINISHED, epoch=2)
    invariant.check()
    assert invariant.at_end() == []
    assert cluster.findings == []
