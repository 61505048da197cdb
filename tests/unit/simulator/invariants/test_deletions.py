"""When finished work may be deleted."""

from __future__ import annotations

from holdover.v1 import common_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from simulator.invariants.deletions import NothingIsDeletedEarly
from simulator.invariants.view import LeaderView, RunningJob, WrittenLog
from tests.unit.jobmanager.event_store.event_logs import segment
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import finished, initialized, replayed
from tests.unit.simulator.invariants.known_cluster import (
    KnownCluster,
    attempt,
    scheduler,
    step,
    worker,
)

KEY = attempt("s", 0)
DIRECTORY = "/shared/ha/jobs/job/events"


def cluster_that_loses_it(
    *, ordered: bool = False, registered: bool = True, after_s: float = 1, over: bool = False
) -> KnownCluster:
    """tm-0 holds s[0], and then no longer."""
    cluster = KnownCluster(living=[worker("tm-0", KEY, registered_epoch=1)])
    cluster.submit(chain(2))
    invariant = cluster.checked(NothingIsDeletedEarly)
    invariant.check()
    if ordered:
        release = act.ReleasePartitions("tm-0", (KEY,))
        invariant.step(step(scheduler(), sig.JobStarted(), release))
    if not registered:
        cluster.now_s += after_s - 1
        cluster.living = [worker("tm-0", KEY)]
        invariant.check()
    if over:
        cluster.archive(common_pb2.JOB_STATE_FINISHED)
    cluster.now_s += 1
    cluster.living = [worker("tm-0")]
    invariant.check()
    return cluster


def test_a_partition_that_a_taskmanager_lets_go_of_by_itself_is_found() -> None:
    """P27: the timer belongs to an outage that is over."""
    assert "no leader has ordered that" in cluster_that_loses_it().findings[0]
    assert cluster_that_loses_it(registered=False, after_s=100).findings


def test_an_order_the_end_of_the_job_and_the_end_of_patience_are_reasons() -> None:
    """The registration timeout is 300 s here."""
    assert cluster_that_loses_it(ordered=True).findings == []
    assert cluster_that_loses_it(over=True).findings == []
    assert cluster_that_loses_it(registered=False, after_s=300).findings == []


def test_the_death_of_a_taskmanager_is_a_reason() -> None:
    """Another life has another name."""
    cluster = KnownCluster(living=[worker("tm-0", KEY)])
    invariant = cluster.checked(NothingIsDeletedEarly)
    invariant.check()
    cluster.living = []
    invariant.check()
    assert cluster.findings == []


def test_a_new_life_may_have_looked_for_a_leader_since_the_check_before_it_was_seen() -> None:
    """It holds what its predecessor left, and starts its timer with itself."""
    for started_before_s, findings in ((240.0, 0), (1.0, 1)):
        cluster = KnownCluster(living=[])
        cluster.submit(chain(2))
        invariant = cluster.checked(NothingIsDeletedEarly)
        invariant.check()
        cluster.now_s += started_before_s
        cluster.living = [worker("tm-0", KEY)]
        invariant.check()
        cluster.now_s += 1
        cluster.living = [worker("tm-0")]
        invariant.check()
        assert len(cluster.findings) == findings


def test_a_job_without_recovery_is_deleted_when_its_leader_is_lost() -> None:
    """Behaviour 4.3. Its leader may have died before anybody has looked at it."""
    cluster = KnownCluster(living=[worker("tm-0", KEY)])
    invariant = cluster.checked(NothingIsDeletedEarly)
    graph = chain(2)
    graph.options.add(key="execution.batch.job-recovery.enabled", value="false")
    invariant.step(step(scheduler(replayed(graph, [])), sig.JobStarted()))
    invariant.check()
    cluster.living = [worker("tm-0")]
    invariant.check()
    assert cluster.findings == []


def test_a_deletion_whose_reason_dies_with_the_leader_is_found() -> None:
    """All of m has finished, which frees s; the log that is left knows of one subtask only."""
    history = [
        *(initialized(vertex, 1, inputs=inputs) for vertex, inputs in (("s", 0), ("m", 1))),
        finished("s", 0),
        finished("m", 0),
    ]
    for durable, deleted, searched_s, findings in (
        (4, True, 0, 0),
        (3, True, 0, 1),
        (3, False, 0, 0),
        (3, True, 300, 0),
    ):
        cluster = KnownCluster(living=[worker("tm-0", KEY, registered_epoch=1)])
        cluster.submit(chain(2))
        cluster.put(
            f"{DIRECTORY}/0000000000000001-000000.log", segment(history[:durable], job_id="job")
        )
        of = scheduler(replayed(chain(2), history))
        job = RunningJob("job", of, WrittenLog(DIRECTORY, None, 0, 1))
        invariant = cluster.checked(NothingIsDeletedEarly)
        release = act.ReleasePartitions("tm-0", (KEY,))
        invariant.step(step(of, sig.JobStarted(), release))
        invariant.check()
        # An order that waits for the log when its leader dies is none; its worker may be dead, too,
        # or have let go of everything when it had looked long enough for a leader that stood still.
        cluster.now_s += searched_s
        cluster.living = [worker("tm-0")] if deleted else []
        invariant.leader_ends(LeaderView("jm-0#0", 1, jobs=(job,)))
        assert len(cluster.findings) == findings, cluster.findings
