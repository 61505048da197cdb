"""What is left of a job after its end, what waits too long, and who fails by itself."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from holdover.v1 import common_pb2
from simulator.invariants import FINDINGS_MAX, Invariants
from simulator.invariants.bounds import QueuesAreBounded
from simulator.invariants.progress import JobsEnd, NoHiddenMistake
from simulator.invariants.remains import NothingRemains
from simulator.invariants.view import (
    ErrorLogged,
    LeaderView,
    OrderQueue,
    RunningJob,
    WorkerView,
    WrittenLog,
)
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.simulator.invariants.known_cluster import (
    KnownCluster,
    attempt,
    put,
    scheduler,
    worker,
)


def ended() -> KnownCluster:
    cluster = KnownCluster()
    cluster.submit(chain(2))
    cluster.archive(common_pb2.JOB_STATE_FINISHED)
    return cluster


def leftovers() -> dict[str, WorkerView]:
    """TaskManagers that have each kept one thing of the job."""
    held = attempt("s", 0)
    disks = {}
    for name, path in (
        ("/local/shuffle/job", "/local/shuffle/job/x.part"),
        ("/local/scratch/job", "/local/scratch/job/m-0-0-1/spill"),
        ("graph of job job", "/local/graphs/job.pb"),
    ):
        disks[name] = SimulatedStorage()
        put(disks[name], path)
    return {
        "still runs": worker(occupants=(held,)),
        "still holds partitions": worker("tm-0", held, with_files=False),
        "still knows": worker(jobs=("job",)),
        **{name: worker(disk=disk) for name, disk in disks.items()},
    }


def test_nothing_left_is_right() -> None:
    """The archive and the output stay; other jobs may go on."""
    cluster = ended()
    cluster.put("/out/part-0")
    cluster.living = [worker("tm-0", attempt("s", 0, job_id="other"), jobs=("other",))]
    cluster.leading = [LeaderView("jm-0#0", 1, slots_held={"other": 1})]
    assert cluster.checked(NothingRemains).at_end() == []


@pytest.mark.parametrize("what", leftovers())
def test_each_thing_that_is_left_at_a_taskmanager_is_found(what: str) -> None:
    """Tables, files, slots."""
    cluster = ended()
    cluster.living = [leftovers()[what]]
    assert what in "; ".join(cluster.checked(NothingRemains).at_end())


def test_what_is_left_on_shared_storage_and_with_the_leader_is_found() -> None:
    """Graph and events, staged files, slots, the JobMaster."""
    cluster = ended()
    cluster.put("/shared/ha/jobs/job/graph.pb")
    cluster.put("/out/.staging-job/k-0-0-1/part-0")
    job = RunningJob("job", scheduler())
    cluster.leading = [LeaderView("jm-0#0", 1, jobs=(job,), slots_held={"job": 2})]
    left = cluster.checked(NothingRemains).at_end()
    assert len(left) == 4, left


def test_queues_within_their_bounds_are_right_and_longer_ones_are_found() -> None:
    """One of each kind."""
    log = WrittenLog("/log", (), 100, 100)
    job = RunningJob("job", scheduler(), log, 10, 10, 3)
    leader = LeaderView("jm-0#0", 1, jobs=(job,), queues=(OrderQueue("tm-0", 10, 2),))
    cluster = KnownCluster(leading=[leader], living=[worker(reports=5)])
    invariant = cluster.checked(QueuesAreBounded)
    invariant.check()
    assert cluster.findings == []
    grown = replace(
        job,
        inbox_signals=20_000,
        releases=5_000,
        timers=50,
        log=replace(log, buffered_bytes=201),
    )
    queues = (OrderQueue("tm-0", 5_000, 2),)
    cluster.leading = [replace(leader, jobs=(grown,), queues=queues)]
    cluster.living = [worker(reports=20_000, occupants=(attempt("s", 0), attempt("s", 1)))]
    cluster.messages_in_flight = 2_000
    invariant.check()
    assert len(cluster.findings) == 8, cluster.findings


def test_each_lost_worker_that_is_awaited_has_a_timer_of_its_own() -> None:
    for awaited, findings in ((20, 0), (5, 1)):
        job = RunningJob("job", scheduler(), timers=25)
        job.scheduler.core.expected_back.update({f"tm-{i}": None for i in range(awaited)})
        cluster = KnownCluster(leading=[LeaderView("jm-0#0", 1, jobs=(job,))])
        cluster.checked(QueuesAreBounded).check()
        assert len(cluster.findings) == findings, cluster.findings


def test_a_job_that_does_not_end_is_told_with_what_it_waits_for() -> None:
    """Only what was acknowledged has to end."""
    cluster = KnownCluster()
    invariant = cluster.checked(JobsEnd)
    cluster.submit(chain(2), acknowledged=False)
    assert invariant.at_end() == []
    cluster.submit(chain(2))
    assert "nobody leads" in invariant.at_end()[0]
    cluster.leading = [LeaderView("jm-0#0", 1, jobs=(RunningJob("job", scheduler()),))]
    assert "JOB_STATE_CREATED with no subtasks" in invariant.at_end()[0]
    cluster.archive(common_pb2.JOB_STATE_FINISHED)
    assert invariant.at_end() == []


def test_errors_that_a_fault_explains_are_right() -> None:
    """A defect is not."""
    cluster = KnownCluster(calm_since_s=None)
    invariant = cluster.checked(NoHiddenMistake)
    explained = "StorageError: no room"
    invariant.error_logged(ErrorLogged("tm-0", 1.0, "cannot delete a partition", {}))
    invariant.error_logged(ErrorLogged("jm-0", 1.0, "jobmanager ends", {}, explained))
    assert cluster.findings == []
    invariant.error_logged(ErrorLogged("jm-0", 1.0, "the scheduler failed", {"job": "job"}))
    invariant.error_logged(
        ErrorLogged("jm-0", 1.0, "background loop failed", {"loop": "inbox"}, explained)
    )
    assert len(cluster.findings) == 2
    cluster.calm_since_s = 0.0
    invariant.error_logged(ErrorLogged("tm-0", 1.0, "cannot delete a partition", {}))
    assert len(cluster.findings) == 3


def test_short_leases_flap_on_a_network_that_loses_packets() -> None:
    for flapping, findings in ((True, 0), (False, 1)):
        cluster = KnownCluster(leases_flap=flapping)
        lost = ErrorLogged("jm-0", 1.0, "leadership lost", {"epoch": 1})
        cluster.checked(NoHiddenMistake).error_logged(lost)
        assert len(cluster.findings) == findings


@pytest.mark.parametrize("what", ["damaged", "missing"])
def test_a_damaged_log_is_explained_by_a_fault_that_has_cut_it(what: str) -> None:
    """Otherwise the JobManager has damaged it."""
    for damaged, findings in ((True, 0), (False, 1)):
        cluster = KnownCluster()
        cluster.submit(chain(2), log_damaged=damaged)
        event = f"event log is {what}, the job starts anew"
        error = ErrorLogged("jm-0", 1.0, event, {"job": "job"})
        cluster.checked(NoHiddenMistake).error_logged(error)
        assert len(cluster.findings) == findings


def test_what_does_not_hold_at_the_end_counts_once_and_only_when_time_is_over() -> None:
    """The same text is one finding; a run keeps a bounded number."""
    cluster = KnownCluster()
    cluster.submit(chain(2))
    invariants = Invariants(cluster, random.Random(1))
    assert [f.invariant for f in invariants.at_end()] == [JobsEnd.name]
    assert invariants.findings == []
    invariants.check()
    invariants.end()
    invariants.end()
    assert len(invariants.findings) == 1
    for number in range(2 * FINDINGS_MAX):
        invariants.uncaught("jm-0", f"error {number}")
    assert len(invariants.findings) == FINDINGS_MAX
