"""Jobs that a leader does not run: unreadable ones, and those whose recovery ends leaders."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from typing import Any

import pytest

from holdover.errors import JobNotFound, StorageError
from holdover.runtime import FileStat
from holdover.v1 import common_pb2
from jobmanager.dispatcher import RECOVERY_ATTEMPTS_MAX, JobEndedAlready
from jobmanager.leading import LeadershipLost
from jobmanager.recovery import replay_job
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.sink_commit import sinks_of
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.leader_lives import (
    PARALLELISM,
    ROOT,
    InstantTaskManager,
    Leader,
    live,
    three_sinks,
)

FINISHED, PARKED = common_pb2.JOB_STATE_FINISHED, common_pb2.JOB_STATE_PARKED
CANCELED, RUNNING = common_pb2.JOB_STATE_CANCELED, common_pb2.JOB_STATE_RUNNING


async def state(leader: Leader, job_id: str) -> int:
    """As a client sees it."""
    return (await leader.dispatcher.status(job_id)).state


async def has_state(leader: Leader, job_id: str, wanted: int) -> bool:
    return await state(leader, job_id) == wanted


async def sources_are_durable(leader: Leader, job_id: str) -> bool:
    """Whether the job can get no further, and all that happened is on the disk."""
    status = await leader.dispatcher.status(job_id)
    recovery = status.recovery
    return (
        status.subtasks_finished == PARALLELISM
        and recovery.durable_sequence >= recovery.events_appended > 0
    )


def killed_while_recovering(lives: int, disk: SimulatedStorage | None = None) -> InstantTaskManager:
    """A job that some leaders have taken up, none of which got to a new event; and another job.

    The first leader has submitted both.
    """
    taskmanager = InstantTaskManager(disk or SimulatedStorage(), hangs=frozenset({"m"}))

    async def first(leader: Leader) -> None:
        await leader.take_office()
        for job_id in ("job", "other"):
            await leader.dispatcher.submit(three_sinks(job_id))
            await leader.until(
                partial(sources_are_durable, leader, job_id), f"{job_id} waits for m"
            )

    async def dies(leader: Leader) -> None:
        await leader.take_office()
        assert leader.dispatcher.master("job") is not None
        await leader.store.clear_recovery_attempts("other")

    assert live(taskmanager, 1, first)
    for epoch in range(lives):
        assert live(taskmanager, 2 + epoch, dies)
    taskmanager.hangs = frozenset()
    return taskmanager


def test_a_job_whose_recovery_has_ended_three_leaders_is_parked_and_the_others_go_on() -> None:
    """behaviour 5: it is listed with the reason, and a retry lets it end."""
    taskmanager = killed_while_recovering(RECOVERY_ATTEMPTS_MAX)

    async def life(leader: Leader) -> None:
        await leader.take_office()
        status = await leader.dispatcher.status("job")
        assert status.state == PARKED
        assert "3 JobManagers in a row" in status.failure.message
        assert "retry or cancel" in status.failure.message
        assert leader.dispatcher.knows("job"), "what TaskManagers hold of it is kept"
        await leader.until_cleaned_up("other")
        assert await state(leader, "job") == PARKED
        assert await leader.dispatcher.submit(three_sinks("job")) is True
        await leader.dispatcher.retry("job")
        await leader.resources.offer_all()
        await leader.until_cleaned_up("job")
        assert await state(leader, "job") == FINISHED
        with pytest.raises(JobNotFound):
            await leader.dispatcher.retry("job")

    assert live(taskmanager, 9, life)


def test_a_job_that_is_retried_is_known_all_the_time() -> None:
    """A worker that registered meanwhile would hear that it has ended, and delete what it holds."""
    taskmanager = killed_while_recovering(RECOVERY_ATTEMPTS_MAX)

    async def life(leader: Leader) -> None:
        await leader.take_office()
        known: list[bool] = []
        read_workers = leader.store.read_workers

        async def read_meanwhile() -> list[str]:
            known.append(leader.dispatcher.knows("job"))
            return await read_workers()

        leader.store.read_workers = read_meanwhile  # type: ignore[method-assign]
        await leader.dispatcher.retry("job")
        assert known == [True]
        assert leader.dispatcher.master("job") is not None

    assert live(taskmanager, 9, life)


def test_a_worker_that_registers_while_a_retried_job_is_replayed_is_heard_after_the_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its offer is judged by the graph that the log gives, not by an empty one."""
    taskmanager = killed_while_recovering(RECOVERY_ATTEMPTS_MAX)
    handled: list[sig.Signal] = []
    handle = Scheduler.handle

    def noting(scheduler: Scheduler, signal: sig.Signal) -> Decision:
        if scheduler.graph.job.job_id == "job":
            handled.append(signal)
        return handle(scheduler, signal)

    async def life(leader: Leader) -> None:
        offers: list[asyncio.Task[Any]] = []
        held = [f for key, f in taskmanager.held.items() if key.job_id == "job"]
        registered = sig.WorkerRegistered(
            taskmanager.worker_id, taskmanager.data_address, refreshed=False, finished=held
        )

        async def replay_meanwhile(*arguments: Any) -> Any:
            master = leader.dispatcher.master("job")
            assert master is not None
            offers.append(asyncio.create_task(master.register_worker(registered)))
            await asyncio.sleep(0)
            return await replay_job(*arguments)

        await leader.take_office()
        monkeypatch.setattr("jobmanager.job_recovery.replay_job", replay_meanwhile)
        monkeypatch.setattr(Scheduler, "handle", noting)
        handled.clear()
        await leader.dispatcher.retry("job")
        await leader.resources.offer_all()
        await leader.until_cleaned_up("job")
        assert [offer.done() for offer in offers] == [True]
        assert isinstance(handled[0], sig.RecoveryStarted), handled[:3]
        assert any(isinstance(signal, sig.WorkerRegistered) for signal in handled)

    assert live(taskmanager, 9, life)


def test_two_leaders_that_end_do_not_park_a_job_and_its_next_event_clears_the_count() -> None:
    """The counter is cleared by the first new event, durably."""
    taskmanager = killed_while_recovering(RECOVERY_ATTEMPTS_MAX - 1)

    async def life(leader: Leader) -> None:
        await leader.take_office()
        assert await state(leader, "job") != PARKED
        await leader.until_cleaned_up("job")

    assert live(taskmanager, 9, life)


def test_a_parked_job_can_be_cancelled_for_good() -> None:
    """Nothing is left of it but its summary, not even of its output, and the next leader does not
    run it."""
    taskmanager = killed_while_recovering(RECOVERY_ATTEMPTS_MAX)
    ((output, vertex_id), *_) = sinks_of(three_sinks("job"))

    async def cancels(leader: Leader) -> None:
        await leader.take_office()
        await leader.disk.make_directories(f"{output}/.staging-job/attempt")
        for path in (".staging-job/attempt/part-0", f"part-{vertex_id}-0", "notes.txt"):
            await leader.disk.publish(f"{output}/{path}", b"rows")
        assert await leader.dispatcher.cancel("job") == CANCELED
        assert await leader.disk.stat(f"{ROOT}/jobs/job") is None
        assert [entry.name for entry in await leader.disk.list_directory(output)] == ["notes.txt"]
        with pytest.raises(JobEndedAlready):
            await leader.dispatcher.cancel("job")

    async def afterwards(leader: Leader) -> None:
        await leader.take_office()
        assert await state(leader, "job") == CANCELED
        assert leader.dispatcher.master("job") is None

    assert live(taskmanager, 9, cancels)
    assert live(taskmanager, 10, afterwards)


@pytest.mark.parametrize("other", ["cancel", "retry"])
def test_who_cancels_a_parked_job_that_somebody_else_is_about_to_hears_how_that_ended(
    other: str,
) -> None:
    """One after the other: nothing is deleted of a job that is being taken up."""

    class InTurns(SimulatedStorage):
        async def stat(self, path: str) -> FileStat | None:
            await asyncio.sleep(0)
            return await super().stat(path)

    taskmanager = killed_while_recovering(RECOVERY_ATTEMPTS_MAX, InTurns())

    async def life(leader: Leader) -> None:
        await leader.take_office()
        both = (leader.dispatcher.cancel("job"), getattr(leader.dispatcher, other)("job"))
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert first == CANCELED
        assert isinstance(second, JobEndedAlready | JobNotFound)
        assert await state(leader, "job") == CANCELED
        assert leader.dispatcher.master("job") is None

    assert live(taskmanager, 9, life)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_leader_that_is_over_cancels_no_parked_job(damaged: bool) -> None:
    """Its successor may have taken the job up, or recorded how it ended."""
    taskmanager = killed_while_recovering(RECOVERY_ATTEMPTS_MAX)

    async def life(leader: Leader) -> None:
        if damaged:
            taskmanager.disk.overwrite(f"{ROOT}/jobs/job/graph.pb", b"rubbish")
        await leader.take_office()
        await leader.until_cleaned_up("other")
        leader.leads, leader.over = False, True
        with pytest.raises(LeadershipLost):
            await leader.dispatcher.cancel("job")
        assert await leader.store.read_archive("job") is None
        assert await leader.disk.stat(f"{ROOT}/jobs/job") is not None

    assert live(taskmanager, 9, life)


def test_a_job_that_cannot_be_read_is_parked_with_the_file_and_stops_no_other() -> None:
    """P10: neither damage nor an error of storage at one job's directory, for any leader."""
    taskmanager = killed_while_recovering(0)
    disk = taskmanager.disk

    async def life(leader: Leader) -> None:
        graph = f"{ROOT}/jobs/job/graph.pb"
        disk.overwrite(graph, b"rubbish")
        await leader.take_office()
        status = await leader.dispatcher.status("job")
        assert status.state == PARKED
        assert graph in status.failure.message
        with pytest.raises(StorageError, match=r"graph\.pb"):
            await leader.dispatcher.retry("job")
        await leader.until_cleaned_up("other")

    for epoch in (2, 3, 4):
        assert live(taskmanager, epoch, life)


def test_a_job_that_cannot_be_read_is_cancelled_when_it_can_and_its_output_goes_with_it() -> None:
    """Until then nobody knows where its output was to be. What is damaged is not waited for."""
    taskmanager = killed_while_recovering(0)
    disk = taskmanager.disk
    staged = f"{sinks_of(three_sinks('job'))[0][0]}/.staging-job/part-0"

    async def life(leader: Leader) -> None:
        await leader.disk.make_directories(staged)
        graphs = {job_id: f"{ROOT}/jobs/{job_id}/graph.pb" for job_id in ("job", "other")}
        disk.faults.fail("read", errno.EIO, graphs["job"], times=2)
        disk.overwrite(graphs["other"], b"rubbish")
        await leader.take_office()
        with pytest.raises(OSError, match=r"graph\.pb"):
            await leader.dispatcher.cancel("job")
        assert await state(leader, "job") == PARKED
        for job_id in graphs:
            assert await leader.dispatcher.cancel(job_id) == CANCELED
        assert await leader.disk.stat(staged) is None

    assert live(taskmanager, 2, life)


def test_a_recovery_that_cannot_be_counted_stops_no_job() -> None:
    """P10, P11: the counter guards against a crash in recovery; without it the job goes on."""
    taskmanager = killed_while_recovering(0)

    async def life(leader: Leader) -> None:
        leader.disk.fail("publish", errno.EIO, f"{ROOT}/jobs/job/recovery-attempts")
        await leader.take_office()
        await leader.until_cleaned_up("other")
        await leader.until_cleaned_up("job")
        assert await state(leader, "job") == FINISHED

    assert live(taskmanager, 2, life)


@pytest.mark.parametrize("wish", ["retry", "cancel"])
def test_a_job_that_had_ended_before_it_was_parked_keeps_its_end(wish: str) -> None:
    """Its summary could not be read when the leader came; nothing else of it is left."""
    taskmanager = killed_while_recovering(0)
    disk = taskmanager.disk

    async def ends_untidily(leader: Leader) -> None:
        disk.faults.fail("remove_tree", errno.EIO, f"{ROOT}/jobs/job", times=None)
        await leader.take_office()
        await leader.until_cleaned_up("other")
        await leader.until(partial(has_state, leader, "job", FINISHED), "the job's end is stored")

    async def asked(leader: Leader) -> None:
        disk.faults.heal()
        disk.faults.fail("read", errno.EIO, f"{ROOT}/archive/job.pb")
        await leader.take_office()
        assert await state(leader, "job") == PARKED
        if wish == "retry":
            await leader.dispatcher.retry("job")
        else:
            with pytest.raises(JobEndedAlready, match="FINISHED"):
                await leader.dispatcher.cancel("job")
        assert await state(leader, "job") == FINISHED
        await leader.until_cleaned_up("job")

    assert live(taskmanager, 2, ends_untidily)
    assert live(taskmanager, 3, asked)


def defective(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a defect")


@pytest.mark.parametrize(
    "step",
    [
        "jobmanager.job_recovery.replay_job",
        "jobmanager.job_master.recover_job",
        "jobmanager.job_master.ExecutionGraph",
        "jobmanager.job_store.JobStore.has_recorded_events",
        "jobmanager.job_master.JobEventWriter",
        "jobmanager.job_master.JobMaster._run",
    ],
)
def test_a_defect_in_any_step_of_a_recovery_parks_its_job_and_stops_no_other(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: the leader takes office and takes new jobs; a retry without the defect lets it end."""
    taskmanager = killed_while_recovering(0)

    async def life(leader: Leader) -> None:
        if step.endswith("has_recorded_events"):
            await leader.disk.remove_tree(f"{ROOT}/jobs/job/events")
            await leader.disk.remove_tree(f"{ROOT}/jobs/other/events")
        with monkeypatch.context() as broken:
            broken.setattr(step, defective)
            await leader.take_office()
        for job_id in ("job", "other"):
            status = await leader.dispatcher.status(job_id)
            assert status.state == PARKED
            assert "a defect" in status.failure.message
        await leader.dispatcher.submit(three_sinks("fresh"))
        await leader.until_cleaned_up("fresh")
        assert await state(leader, "fresh") == FINISHED
        await leader.dispatcher.retry("job")
        await leader.resources.offer_all()
        await leader.until_cleaned_up("job")

    assert live(taskmanager, 2, life)


def test_a_leader_that_lives_long_has_not_been_ended_by_the_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task may take longer than leaders live; the job is not parked for that."""
    monkeypatch.setattr("jobmanager.job_master.RECOVERY_SURVIVED_S", 0.01)
    taskmanager = killed_while_recovering(0)
    taskmanager.hangs = frozenset({"m"})

    async def lives_on(leader: Leader) -> None:
        await leader.take_office()
        assert await state(leader, "job") != PARKED

        async def forgotten() -> bool:
            return await leader.disk.stat(f"{ROOT}/jobs/job/recovery-attempts") is None

        await leader.until(forgotten, "the recovery is counted no longer")

    for epoch in range(RECOVERY_ATTEMPTS_MAX + 1):
        assert live(taskmanager, 2 + epoch, lives_on)


def test_the_reports_of_a_parked_job_can_be_read() -> None:
    """P50."""
    taskmanager = killed_while_recovering(RECOVERY_ATTEMPTS_MAX)

    async def life(leader: Leader) -> None:
        await leader.take_office()
        assert await state(leader, "job") == PARKED
        reports = await leader.dispatcher.recovery_reports("job")
        assert [report.leader_epoch for report in reports] == [2, 3, 4]

    assert live(taskmanager, 9, life)
