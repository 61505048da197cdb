"""TaskManagers find the next JobManager, wherever and whenever it comes, with all they hold."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket

import pytest

from holdover.cli.local_cluster import JOBMANAGER, LocalCluster
from holdover.v1.common_pb2 import JobState
from holdover.v1.jobmanager_pb2 import WorkerReturnKind
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import LedgerJob, chain, join
from tests.cluster.ledger_steps import (
    held_subtasks,
    loss_noticed,
    once,
    rerun,
    tasks_ended,
    until_held_back,
)
from tests.cluster.running_cluster import UNHURRIED, WAIT_TIMEOUT_S, RunningCluster, wait_until

pytestmark = pytest.mark.slow

WAIT = "execution.batch.job-recovery.previous-worker.recovery.timeout"
#: A wait that others are in time for, on a busy machine too, and one that is never to run out.
SHORT, LONG = "10 s", "4 min"
# Nothing is noticed by silence or by failed calls: only what this test is about may be.
UNNOTICED = {
    **UNHURRIED,
    "heartbeat.interval": "2 s",
    "heartbeat.timeout": "10 min",
    "heartbeat.rpc-failure-threshold": "-1",
}


async def test_taskmanagers_that_noticed_nothing_register_with_a_jobmanager_that_came_back_at_once(
    start_cluster: StartCluster,
) -> None:
    """P20: long before silence would tell; tasks of the old epoch end, finished work is kept."""
    running = await start_cluster(options=UNNOTICED)
    job = await until_held_back(running, chain(running.directory, 4))
    await running.durable(job)
    await running.restart_jobmanager()
    await running.taskmanagers(3)
    print(f"registered {registration_s(running):.2f} s after the JobManager led")
    await tasks_ended(job, "M", before_epoch=2)
    job.gates.open("M")
    await running.finished(job)
    ended = [line for line in job.ledger.lines() if line.what == "end" and line.stage == "M"]
    assert {line.epoch for line in ended} == {2}, "a task of the old epoch went on"
    once(job, "S", 4)


async def test_a_taskmanager_with_partitions_and_no_slot_in_use_goes_on_looking(
    start_cluster: StartCluster,
) -> None:
    """P21: its slots are all given back, its files stay, and it registers with the next leader."""
    running = await start_cluster(taskmanagers=1, options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 2))
    await running.durable(job)
    held = running.held(job.job_id)
    await running.cluster.kill_jobmanager()
    await loss_noticed(running, job, "M")

    running.cluster.start_jobmanager()
    await running.taskmanagers(1)
    assert running.held(job.job_id) == held
    print(f"registered {registration_s(running):.2f} s after the JobManager led")
    job.gates.open("M")
    await running.finished(job)
    once(job, "S", 2)


async def test_a_task_that_finishes_while_no_jobmanager_listens_is_adopted(
    start_cluster: StartCluster,
) -> None:
    """P24: its output is complete, so it is taken up; nothing runs twice, and nothing is left."""
    running = await start_cluster(options=UNNOTICED)
    job = await until_held_back(running, chain(running.directory, 3))
    await running.durable(job)
    running.cluster.send_signal(JOBMANAGER, signal.SIGSTOP)
    job.gates.open("M", 1)
    await wait_until(lambda: held_subtasks(running, job, "M") == {1}, "M-1 has published")
    await running.restart_jobmanager()
    await running.taskmanagers(3)
    job.gates.open("M")
    await running.finished(job)

    once(job, "S", 3)
    assert job.ledger.starts("M")["M", 1] == 1
    assert sum(vertex.adopted for vertex in (await running.report(job)).vertices) == 1
    await wait_until(lambda: not running.files_of(job.job_id), "no file is left")


async def test_taskmanagers_register_soon_after_a_long_outage(start_cluster: StartCluster) -> None:
    """P51: twenty seconds without a JobManager do not make anybody slow to notice the next one; how
    long it takes is printed.
    """
    running = await start_cluster(options=UNHURRIED)
    job = await until_held_back(running, join(running.directory, 3), "J", "S1", "S2")
    await running.durable(job)
    await running.cluster.kill_jobmanager()
    await asyncio.sleep(20.0)  # the outage itself, not a wait for something
    running.cluster.start_jobmanager()
    await running.taskmanagers(3)

    print(f"registered {registration_s(running):.2f} s after the JobManager led")
    job.gates.open("J")
    await running.finished(job)
    once(job, "S1", 3)
    once(job, "S2", 3)


async def test_taskmanagers_and_clients_follow_a_jobmanager_to_another_address(
    start_cluster: StartCluster,
) -> None:
    """P57: the record in the storage names it; what sits at the old address is believed nothing."""
    running = await start_cluster(options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 3))
    await running.durable(job)
    states: list[JobState.ValueType] = []
    watcher = asyncio.create_task(note_states(running, job, states))
    await running.cluster.kill_jobmanager()
    host, port = running.cluster.address.split(":")
    with socket.create_server((host, int(port))) as dummy:  # accepts, and never says a word
        dummy.setblocking(False)
        moved = moved_cluster(running, "127.0.0.2")
        moved.start_jobmanager()
        await moved.wait_until_ready(3, WAIT_TIMEOUT_S)
        job.gates.open("M")
        await running.finished(job)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await watcher

    assert moved.address.startswith("127.0.0.2:")
    assert states == [
        JobState.JOB_STATE_CREATED,
        JobState.JOB_STATE_RUNNING,
        JobState.JOB_STATE_RECONCILING,
        JobState.JOB_STATE_RUNNING,
        JobState.JOB_STATE_FINISHED,
    ]
    once(job, "S", 3)


async def test_partitions_are_deleted_when_no_jobmanager_comes_in_time(
    start_cluster: StartCluster,
) -> None:
    """P27: after `taskmanager.registration.timeout`; the TaskManagers come back empty, and the
    job runs its work again without waiting for anything.
    """
    running = await start_cluster(
        options={"taskmanager.registration.timeout": "8 s", WAIT: "7900 ms"}
    )
    job = await until_held_back(running, chain(running.directory, 3))
    await running.durable(job)
    await running.cluster.kill_jobmanager()
    await wait_until(lambda: not running.files_of(job.job_id), "the partitions are deleted")
    job.gates.open("M")
    running.cluster.start_jobmanager()
    await running.taskmanagers(3)
    await running.finished(job)

    assert job.ledger.starts("S") == {("S", subtask): 2 for subtask in range(3)}
    report = await running.report(job)
    assert report.early_end
    assert {worker.kind for worker in report.workers} == {WorkerReturnKind.WORKER_RETURN_KIND_EMPTY}


async def test_what_a_taskmanager_held_that_died_with_the_jobmanager_is_made_again(
    start_cluster: StartCluster,
) -> None:
    """Only that: the producers whose partitions are elsewhere do not run again."""
    running = await start_cluster(options={WAIT: SHORT})
    job = await until_held_back(running, chain(running.directory, 6))
    await running.durable(job)
    gone = {held.identity.subtask for held in running.held(job.job_id, "tm-0")}
    assert 0 < len(gone) < 6
    await running.cluster.kill_taskmanager(0)
    await running.cluster.kill_jobmanager()
    await tasks_ended(job, "M")
    running.cluster.start_jobmanager()
    job.gates.open("M")
    await running.finished(job)

    assert rerun(job, "S") == gone
    assert max(job.ledger.starts("S").values()) == 2
    assert not (await running.report(job)).early_end


async def test_a_taskmanager_that_was_started_anew_on_an_empty_disk_is_missed_at_once(
    start_cluster: StartCluster,
) -> None:
    """P22: a new process under the old name holds nothing of before; nobody waits for more."""
    running = await start_cluster(options=UNHURRIED)
    job = await until_held_back(running, chain(running.directory, 6))
    await running.durable(job)
    gone = {held.identity.subtask for held in running.held(job.job_id, "tm-0")}
    await running.cluster.kill_taskmanager(0)
    shutil.rmtree(running.cluster.directory / "tmp" / "tm-0")
    await running.restart_jobmanager()
    running.cluster.start_taskmanager(0)
    await running.taskmanagers(3)
    job.gates.open("M")
    await running.finished(job)

    assert rerun(job, "S") == gone
    assert (await running.report(job)).early_end


async def test_a_jobmanager_that_dies_twice_while_it_recovers_costs_no_finished_work(
    start_cluster: StartCluster,
) -> None:
    """A frozen TaskManager keeps the recovery open, in which the JobManager dies and dies again."""
    running = await start_cluster(options={WAIT: LONG})
    job = await until_held_back(running, chain(running.directory, 6))
    await running.durable(job)
    running.cluster.send_signal("tm-0", signal.SIGSTOP)
    for _ in range(2):
        await running.restart_jobmanager()
        await running.taskmanagers(2)
        assert list((await running.client.cluster()).reconciling_job_ids) == [job.job_id]
    await running.restart_jobmanager()
    await running.taskmanagers(2)
    running.cluster.send_signal("tm-0", signal.SIGCONT)
    job.gates.open("M")
    await running.finished(job)

    once(job, "S", 6)
    assert (await running.report(job)).early_end


# ---------------------------------------------------------------------- steps


async def note_states(
    running: RunningCluster, job: LedgerJob, states: list[JobState.ValueType]
) -> None:
    """Watch the job to its end."""
    async for status in running.client.watch(job.job_id):
        states[:] = [entry.state for entry in status.history]


def registration_s(running: RunningCluster) -> float:
    """From the moment the last JobManager leads, with its port open, to the last registration."""
    leads_s = running.logged(JOBMANAGER, "jobmanager leads")[-1]
    return max(running.logged(JOBMANAGER, "taskmanager registered")) - leads_s


def moved_cluster(running: RunningCluster, host: str) -> LocalCluster:
    """The same cluster; its JobManager is to start at the same port of another address."""
    record = running.cluster.directory / "cluster.json"
    address = running.cluster.address
    moved = f"{host}:{address.rpartition(':')[2]}"
    record.write_text(record.read_text().replace(address, moved))
    return LocalCluster(
        running.cluster.directory,
        taskmanagers=running.cluster.taskmanagers,
        options={**running.cluster.options, "jobmanager.bind-host": host},
    )
