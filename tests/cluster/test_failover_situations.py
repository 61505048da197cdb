"""The situations that Flink's own tests of JobManager failover tell, on real processes with jobs of
our own, and some that Flink does not promise.

Told elsewhere: a lost partition of a source whose splits are known (`test_lost_partitions`);
JobManager and TaskManager killed between two stages, a JobManager gone for longer than
`taskmanager.registration.timeout`, a TaskManager restarted while the JobManager is down
(`test_reconnection`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from holdover.cli.local_cluster import JOBMANAGER
from holdover.errors import JobEnded
from holdover.v1.common_pb2 import JobState
from holdover.v1.jobmanager_pb2 import RecoveryReport, WorkerReturnKind
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import LedgerJob, Task, chain, join
from tests.cluster.ledger_steps import (
    begun,
    held_by_stage,
    held_subtasks,
    loss_noticed,
    once,
    rerun,
    resets,
    tasks_ended,
    told,
    until_held_back,
)
from tests.cluster.running_cluster import UNHURRIED, RunningCluster, wait_until

pytestmark = pytest.mark.slow

WAIT = "execution.batch.job-recovery.previous-worker.recovery.timeout"
ADOPTION = "execution.batch.job-recovery.adoption-timeout"
RESTART = "execution.batch.job-recovery.taskmanager-restart.timeout"
#: A wait that others are in time for, on a busy machine too, and one that is never to run out.
SHORT, LONG = "10 s", "4 min"
IN_TIME = WorkerReturnKind.WORKER_RETURN_KIND_IN_TIME
LATE = WorkerReturnKind.WORKER_RETURN_KIND_LATE


async def test_a_jobmanager_killed_in_the_last_stage_repeats_only_what_was_running(
    start_cluster: StartCluster,
) -> None:
    """Two stages are finished, the first one's partitions even deleted; the last stage runs."""
    running = await start_cluster(options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 4), "K", "S", "M")
    await running.durable(job)
    await running.cluster.kill_jobmanager()
    await loss_noticed(running, job, "K")
    running.cluster.start_jobmanager()
    job.gates.open("K")
    await running.finished(job)

    once(job, "S", 4)
    once(job, "M", 4)
    assert job.ledger.starts("K") == {("K", subtask): 2 for subtask in range(4)}
    report = await running.report(job)
    agrees(report, job, {"S": (4, 0, 0), "M": (4, 0, 0), "K": (0, 0, 4)})
    assert report.early_end
    assert {worker.kind for worker in report.workers} == {IN_TIME}


async def test_of_a_source_that_is_not_all_finished_only_the_rest_runs_again(
    start_cluster: StartCluster,
) -> None:
    """Which splits the finished subtasks have read is known: nobody reads one twice, and none is
    left out.
    """
    running = await start_cluster(options=UNHURRIED)
    job = chain(running.directory, 6)
    job.gates.close("S")
    await running.submit(job)
    await wait_until(lambda: len(job.ledger.starts("S")) == 6, "all of S runs")
    job.gates.open("S", 0, 1, 2)
    await wait_until(lambda: len(running.held(job.job_id)) == 3, "three partitions are published")
    await running.durable(job, finished=3)
    await running.cluster.kill_jobmanager()
    await loss_noticed(running, job, "S")
    running.cluster.start_jobmanager()
    job.gates.open("S")
    await running.finished(job)

    assert job.ledger.starts("S") == {("S", i): 1 if i < 3 else 2 for i in range(6)}
    assert set(job.ledger.ends("S").values()) == {1}
    agrees(await running.report(job), job, {"S": (3, 0, 3)})


async def test_nobody_is_in_time_when_no_time_is_given(start_cluster: StartCluster) -> None:
    """A worker timeout of 0: all finished work is missing at once, is deleted by those who still
    bring it, and is made again on their slots.
    """
    running = await start_cluster(options={WAIT: "0 ms"})
    job = await until_held_back(running, chain(running.directory, 4))
    await running.durable(job)
    before = {held.identity for held in running.held(job.job_id)}
    assert len(before) == 4
    await running.restart_jobmanager()
    await running.taskmanagers(3)
    await wait_until(
        lambda: not before & {held.identity for held in running.held(job.job_id)},
        "what came late is deleted",
    )
    job.gates.open("M")
    await running.finished(job)

    assert job.ledger.starts("S") == {("S", subtask): 2 for subtask in range(4)}
    report = await running.report(job)
    agrees(report, job, {"S": (0, 4, 0)})
    assert resets(told(report, job, "S")) == {"PARTITION_MISSING": 4}
    assert not report.early_end
    assert {worker.kind for worker in report.workers} == {LATE}
    assert sum(worker.partitions_accepted for worker in report.workers) == 0


async def test_a_partition_that_is_lost_twice_after_a_recovery_costs_its_producer_twice(
    start_cluster: StartCluster,
) -> None:
    """Deleted under a living TaskManager that brings it back, made again, and deleted again before
    anybody reads it."""
    running = await start_cluster(options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 3))
    await running.durable(job)
    job.gates.close("S")
    await without_jobmanager(running, job, lambda: delete_output(running, job, 1))
    job.gates.open("M", 0)
    await wait_until(lambda: job.ledger.starts("S")["S", 1] == 2, "M-0 misses it, and S-1 reruns")
    job.gates.hold("M", 0)
    job.gates.open("S", 1)
    await wait_until(lambda: pid_of(job, ("M", 0), attempt=1), "it is made again, M-0 waits")
    delete_output(running, job, 1)
    os.kill(pid_of(job, ("M", 0), attempt=1), signal.SIGKILL)  # the next one finds nothing to open
    job.gates.open("S")
    job.gates.open("M")
    await running.finished(job)

    assert job.ledger.ends("S") == {("S", 0): 1, ("S", 1): 3, ("S", 2): 1}
    assert set(job.ledger.ends("M").values()) == {1}
    # What is found out after the recovery is no part of it.
    agrees(await running.report(job), job, {"S": (3, 0, 0)})


async def test_of_a_source_that_does_not_record_its_splits_all_runs_again_if_not_all_had_finished(
    start_cluster: StartCluster,
) -> None:
    """Nobody can tell what is left to read."""
    running = await start_cluster(options=UNHURRIED)
    job = chain(running.directory, 4, record_splits=False)
    job.gates.close("S")
    await running.submit(job)
    await wait_until(lambda: len(job.ledger.starts("S")) == 4, "all of S runs")
    job.gates.open("S", 0, 1)
    await wait_until(lambda: len(running.held(job.job_id)) == 2, "two partitions are published")
    await running.durable(job, finished=2)
    await running.cluster.kill_jobmanager()
    await loss_noticed(running, job, "S")
    running.cluster.start_jobmanager()
    job.gates.open("S")
    await running.finished(job)

    assert job.ledger.ends("S") == {("S", i): 2 if i < 2 else 1 for i in range(4)}
    report = await running.report(job)
    agrees(report, job, {"S": (0, 2, 2)})
    assert resets(told(report, job, "S")) == {"SPLITS_UNKNOWN": 2}


async def test_of_such_a_source_nothing_runs_again_if_all_had_finished_until_one_partition_is_lost(
    start_cluster: StartCluster,
) -> None:
    """Then all of it does; where splits are recorded, it is the lost partition's producer alone."""
    running = await start_cluster(options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 3, record_splits=False))
    await running.durable(job)
    once(job, "S", 3)
    await without_jobmanager(running, job, lambda: delete_output(running, job, 1))
    job.gates.open("M")
    await running.finished(job)

    assert job.ledger.ends("S") == {("S", subtask): 2 for subtask in range(3)}
    agrees(await running.report(job), job, {"S": (3, 0, 0)})


async def test_a_jobmanager_and_a_taskmanager_killed_in_the_last_stage_cost_what_is_gone(
    start_cluster: StartCluster,
) -> None:
    """The lost subtasks of M, and for them all of S, whose partitions had been deleted when M was
    finished; what M left on the other disks stays.
    """
    running = await start_cluster(options={WAIT: SHORT})
    job = chain(running.directory, 6)
    job.gates.close("K")
    await until_held_back(running, job)
    job.gates.open("M")  # each of its tasks has a slot of its own by now
    await wait_until(lambda: len(job.ledger.starts("K")) == 6, "all of K runs")
    await wait_until(lambda: not held_by_stage(running, job, "S"), "S is deleted")
    await running.durable(job)
    gone = held_subtasks(running, job, "M", "tm-0")
    assert 0 < len(gone) < 6
    await running.cluster.kill_taskmanager(0)
    await running.cluster.kill_jobmanager()
    await tasks_ended(job, "K")
    running.cluster.start_jobmanager()
    job.gates.open("K")
    await running.finished(job)

    assert job.ledger.starts("S") == {("S", subtask): 2 for subtask in range(6)}
    assert rerun(job, "M") == gone
    assert set(job.ledger.starts("M").values()) == {1, 2}
    report = await running.report(job)
    agrees(report, job, {"S": (0, 6, 0), "M": (6 - len(gone), len(gone), 0), "K": (0, 0, 6)})
    assert resets(told(report, job, "M")) == {"PARTITION_MISSING": len(gone)}
    assert resets(told(report, job, "S")) == {"UPSTREAM_CLOSURE": 6}


async def test_a_jobmanager_killed_five_times_in_its_recovery_keeps_what_each_one_got_done(
    start_cluster: StartCluster,
) -> None:
    """A frozen TaskManager keeps the recovery open. What is ready runs meanwhile: one task
    finishes under each leader, and never again.
    """
    running = await start_cluster(options={WAIT: LONG, ADOPTION: "100 ms"})
    job = join(running.directory, 5)
    job.gates.close("S2")
    await running.submit(job)
    await wait_until(
        lambda: len(job.ledger.ends("S1")) == 5 == len(job.ledger.starts("S2")),
        "S1 is done, S2 waits",
    )
    await running.durable(job, finished=5)
    await running.cluster.kill_jobmanager()
    await loss_noticed(running, job, "S2")
    assert held_subtasks(running, job, "S1", "tm-0")
    running.cluster.send_signal("tm-0", signal.SIGSTOP)
    for leader in range(5):
        running.cluster.start_jobmanager()
        job.gates.open("S2", leader)
        await wait_until(
            lambda leader=leader: job.ledger.ends("S2")["S2", leader] == 1,  # type: ignore[misc]
            f"S2-{leader} ends",
        )
        await running.durable(job, finished=5 + leader + 1)
        await wait_until(
            lambda leader=leader: len(begun(job, "S2", leader + 2)) == 5 - leader,  # type: ignore[misc]
            "the others wait",
        )
        assert list((await running.client.cluster()).reconciling_job_ids) == [job.job_id]
        await running.cluster.kill_jobmanager()
        # The next gate is for a task of the next leader, and not for one that is about to end.
        await loss_noticed(running, job, "S2")
    running.cluster.start_jobmanager()
    await running.taskmanagers(2)
    running.cluster.send_signal("tm-0", signal.SIGCONT)
    await running.finished(job)

    once(job, "S1", 5)
    assert set(job.ledger.ends().values()) == {1}
    reports = await running.client.recovery_reports(job.job_id)
    assert [report.complete for report in reports] == [False] * 5 + [True]
    assert [told(report, job, "S2").kept for report in reports] == [0, 1, 2, 3, 4, 5]
    assert {told(report, job, "S1").kept for report in reports} == {5}
    assert reports[-1].early_end


async def test_a_job_that_got_nothing_done_under_three_leaders_is_parked_with_all_that_it_has(
    start_cluster: StartCluster,
) -> None:
    """P11: the fourth leader does not touch it, and its finished work waits until it is retried."""
    running = await start_cluster(options={WAIT: LONG})
    job = await until_held_back(running, chain(running.directory, 6))
    await running.durable(job)
    running.cluster.send_signal("tm-0", signal.SIGSTOP)
    for _ in range(3):
        await running.restart_jobmanager()
        await running.taskmanagers(2)
    await running.restart_jobmanager()
    running.cluster.send_signal("tm-0", signal.SIGCONT)
    await running.taskmanagers(3)
    with pytest.raises(JobEnded, match="its recovery ended 3 JobManagers in a row"):
        await running.client.wait(job.job_id)
    status = (await running.client.describe(job.job_id)).status
    assert status.state == JobState.JOB_STATE_PARKED
    assert held_subtasks(running, job, "S") == set(range(6))

    job.gates.open("M")
    await running.client.retry(job.job_id)
    await running.finished(job)
    once(job, "S", 6)


async def test_the_finished_work_of_a_taskmanager_that_is_started_again_in_time_is_waited_for(
    start_cluster: StartCluster,
) -> None:
    """Under a living JobManager, which has missed it: nothing that had finished runs again."""
    running = await start_cluster(options={RESTART: LONG})
    job = await until_held_back(running, chain(running.directory, 6))
    held = held_subtasks(running, job, "S", "tm-0")
    assert 0 < len(held) < 6
    await running.cluster.kill_taskmanager(0)
    await wait_until(lambda: running.logged(JOBMANAGER, "taskmanager lost"), "it is missed")
    running.cluster.start_taskmanager(0)
    await running.taskmanagers(3)
    job.gates.open("M")
    await running.finished(job)

    once(job, "S", 6)
    assert set(job.ledger.ends().values()) == {1}
    assert await running.client.recovery_reports(job.job_id) == []


async def test_a_late_taskmanager_deletes_what_it_brings_and_is_welcome_with_its_slots(
    start_cluster: StartCluster,
) -> None:
    """P17: the job did not wait longer than it says; what was missing is made again once."""
    running = await start_cluster(options={WAIT: SHORT})
    job = await until_held_back(running, chain(running.directory, 6))
    await running.durable(job)
    await running.cluster.kill_jobmanager()
    await loss_noticed(running, job, "M")
    late = held_subtasks(running, job, "S", "tm-0")
    assert 0 < len(late) < 6
    running.cluster.send_signal("tm-0", signal.SIGSTOP)
    running.cluster.start_jobmanager()
    await wait_until(lambda: rerun(job, "S") == late, "what is missing runs again")
    running.cluster.send_signal("tm-0", signal.SIGCONT)
    await running.taskmanagers(3)
    await wait_until(
        lambda: not held_subtasks(running, job, "S", "tm-0"), "what came late is deleted"
    )
    assert (await running.client.cluster()).slots == 6
    job.gates.open("M")
    await running.finished(job)

    assert rerun(job, "S") == late
    assert max(job.ledger.starts("S").values()) == 2
    report = await running.report(job)
    agrees(report, job, {"S": (6 - len(late), len(late), 0)})
    kinds = {worker.worker_id: worker.kind for worker in report.workers}
    assert kinds == {"tm-0": LATE, "tm-1": IN_TIME, "tm-2": IN_TIME}
    (tm_0,) = (worker for worker in report.workers if worker.worker_id == "tm-0")
    assert (tm_0.partitions_offered, tm_0.partitions_accepted) == (len(late), 0)


# ---------------------------------------------------------------------- steps


def agrees(report: RecoveryReport, job: LedgerJob, stages: dict[str, tuple[int, int, int]]) -> None:
    """The report is complete, and says of each stage how many were kept, reset, unfinished."""
    said = {}
    for stage in stages:
        vertex = told(report, job, stage)
        said[stage] = (vertex.kept, sum(resets(vertex).values()), vertex.unfinished)
    assert said == stages
    assert report.complete


def pid_of(job: LedgerJob, task: Task, attempt: int) -> int:
    """The process of an attempt that has begun under the second leader; 0 when none has."""
    lines = [line for line in job.ledger.lines() if line.task == task and line.epoch == 2]
    return next((line.pid for line in lines if line.attempt == attempt), 0)


async def without_jobmanager(
    running: RunningCluster, job: LedgerJob, strike: Callable[[], None]
) -> None:
    """Kill the JobManager, do something once no task of M lives any more, and start it again."""
    await running.cluster.kill_jobmanager()
    await loss_noticed(running, job, "M")
    strike()
    running.cluster.start_jobmanager()


def delete_output(running: RunningCluster, job: LedgerJob, subtask: int) -> None:
    """Delete what a subtask of S has published, behind its TaskManager's back. Its index, too: a
    subtask that was slow may have read no split, and nobody misses the file of no rows."""
    (held,) = (
        held for held in held_by_stage(running, job, "S") if held.identity.subtask == subtask
    )
    for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
        held.base.with_name(held.base.name + suffix).unlink()
