"""One job's shell: what waits for the log, and what its own failures lead to."""

from __future__ import annotations

import asyncio
import errno

import pytest

from holdover.ids import AttemptKey
from holdover.v1 import archive_pb2, common_pb2, jobmanager_pb2
from jobmanager import job_master
from jobmanager.job_store import JobStore
from jobmanager.scheduler.scheduler import Scheduler
from simulator.world.storage import SimulatedStorage
from tests.unit.jobmanager.leader_lives import ROOT, InstantTaskManager, Leader, live, three_sinks

FINISHED, FAILED = common_pb2.JOB_STATE_FINISHED, common_pb2.JOB_STATE_FAILED
DEGRADED = jobmanager_pb2.RECOVERY_MODE_DEGRADED


async def submitted(leader: Leader, *job_ids: str) -> None:
    """Take office, and take these jobs."""
    await leader.take_office()
    for job_id in job_ids:
        await leader.dispatcher.submit(three_sinks(job_id))


async def visible(disk: SimulatedStorage) -> list[str]:
    """What a reader of the output directories sees."""
    return [file.path for file in await disk.glob("/out/*/*/*")]


def test_nothing_is_published_while_the_intent_is_not_durable() -> None:
    """P45, P06: the log cannot be written for a while; the job says so, waits, and then ends."""
    taskmanager = InstantTaskManager(SimulatedStorage())
    disk = taskmanager.disk

    async def life(leader: Leader) -> None:
        disk.fail("sync", errno.EIO, f"{ROOT}/jobs/job/events/*", times=4)
        await submitted(leader, "job")

        async def degraded() -> bool:
            status = await leader.dispatcher.status("job")
            all_ran = status.subtasks_finished == status.subtasks_total == 10
            return all_ran and status.recovery.mode == DEGRADED

        await leader.until(degraded, "all tasks have ended, and the log is degraded")
        assert await visible(disk) == []
        assert "error" in (await leader.dispatcher.status("job")).recovery.reason.lower()
        await leader.until_cleaned_up("job")
        assert len(await visible(disk)) == 9

    assert live(taskmanager, 1, life)


def test_what_is_rejected_is_deleted_only_when_what_justifies_that_is_durable() -> None:
    """P06, P44: a successor that knows only the log may want what this leader does not."""
    key = AttemptKey("job", "s", 0, 0, 7)
    taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset({"m"}))
    disk = taskmanager.disk

    async def life(leader: Leader) -> None:
        disk.faults.fail("sync", errno.EIO, f"{ROOT}/jobs/job/events/*", times=None)
        await submitted(leader, "job")

        async def degraded() -> bool:
            status = await leader.dispatcher.status("job")
            return status.subtasks_finished == 2 and status.recovery.mode == DEGRADED

        await leader.until(degraded, "the sources have ended, and the log is degraded")
        taskmanager.held[key] = common_pb2.FinishedExecution(attempt=key.to_proto())
        await leader.resources.offer_all()
        assert key in taskmanager.held
        disk.faults.heal()

        async def deleted() -> bool:
            return key not in taskmanager.held

        await leader.until(deleted, "the log is durable again")
        taskmanager.held[key] = common_pb2.FinishedExecution(attempt=key.to_proto())
        await leader.resources.offer_all()
        assert key not in taskmanager.held

    assert live(taskmanager, 1, life)


def test_a_defect_of_the_scheduler_fails_its_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """P11: the reason, with its traceback, is the job's; the other one goes on."""
    handle = Scheduler.handle

    def broken(scheduler: Scheduler, signal: object) -> object:
        if scheduler.graph.job_id == "bad" and scheduler.graph.vertices["m"].finished_count:
            raise ZeroDivisionError("a defect")
        return handle(scheduler, signal)  # type: ignore[arg-type]

    monkeypatch.setattr(Scheduler, "handle", broken)
    taskmanager = InstantTaskManager(SimulatedStorage())

    async def life(leader: Leader) -> None:
        await submitted(leader, "bad", "good")
        await leader.until_cleaned_up("bad")
        await leader.until_cleaned_up("good")
        bad = await leader.dispatcher.status("bad")
        assert bad.state == FAILED
        assert "a defect" in bad.failure.message
        assert "in broken" in bad.failure.traceback
        assert (await leader.dispatcher.status("good")).state == FINISHED
        assert not [path for path in await visible(leader.disk) if "/bad/" in path]

    assert live(taskmanager, 1, life)


def test_an_end_that_cannot_be_recorded_is_recorded_later_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P44: what has been published is not called FAILED because of a defect in the archive."""
    monkeypatch.setattr(job_master, "RETRY_DELAY_S_MAX", 0.01)
    archive = JobStore.archive
    calls: list[int] = []

    async def broken(store: JobStore, job: archive_pb2.ArchivedJob) -> None:
        calls.append(job.status.state)
        if len(calls) <= 2:
            raise ZeroDivisionError("a defect")
        await archive(store, job)

    monkeypatch.setattr(JobStore, "archive", broken)
    taskmanager = InstantTaskManager(SimulatedStorage())

    async def life(leader: Leader) -> None:
        await submitted(leader, "job")
        await leader.until_cleaned_up("job")
        assert (await leader.dispatcher.status("job")).state == FINISHED

    assert live(taskmanager, 1, life)
    assert calls == [FINISHED] * 3


def test_the_end_is_seen_by_nobody_before_it_is_durable() -> None:
    """P44: while the end marker cannot be written, the job has not ended."""
    taskmanager = InstantTaskManager(SimulatedStorage())
    disk = taskmanager.disk

    async def life(leader: Leader) -> None:
        disk.fail("publish", errno.ENOSPC, f"{ROOT}/archive/job.pb", times=1)
        await submitted(leader, "job")

        async def refused() -> bool:
            return ("publish", f"{ROOT}/archive/job.pb") in disk.operations

        await leader.until(refused, "the end marker was tried")
        assert (await leader.dispatcher.status("job")).state not in (FINISHED, FAILED)
        assert leader.dispatcher.knows("job")
        await leader.until_cleaned_up("job")
        assert (await leader.dispatcher.status("job")).state == FINISHED

    assert live(taskmanager, 1, life)


def test_who_may_lead_no_more_neither_publishes_output_nor_records_an_end() -> None:
    """It was frozen, say, for longer than its lease: its successor does both."""
    taskmanager = InstantTaskManager(SimulatedStorage())
    disk = taskmanager.disk

    async def life(leader: Leader) -> None:
        leader.leads = False
        await submitted(leader, "job")

        async def all_ran() -> bool:
            status = await leader.dispatcher.status("job")
            written = status.recovery.durable_sequence == status.recovery.last_sequence
            return status.subtasks_finished == status.subtasks_total == 10 and written

        await leader.until(all_ran, "all tasks have ended, and the log says so")
        await asyncio.sleep(0)
        assert await visible(disk) == []
        assert await leader.store.read_archive("job") is None
        leader.leads = True
        await leader.until_cleaned_up("job")
        assert len(await visible(disk)) == 9

    assert live(taskmanager, 1, life)


def test_who_was_frozen_over_recording_an_end_deletes_nothing_of_the_job() -> None:
    """Its successor may run the job by then, and has not ended it."""

    class Frozen(SimulatedStorage):
        leader: Leader

        async def publish_new(self, path: str, data: bytes) -> None:
            await super().publish_new(path, data)
            if path == f"{ROOT}/archive/job.pb":
                self.leader.leads = False

    disk = Frozen()

    async def life(leader: Leader) -> None:
        disk.leader = leader
        await submitted(leader, "job")

        async def woken() -> bool:
            return not leader.leads

        await leader.until(woken, "the end is recorded")
        for _ in range(100):
            await asyncio.sleep(0)
        assert leader.dispatcher.knows("job")
        assert await disk.stat(f"{ROOT}/jobs/job/graph.pb") is not None
        leader.leads = True
        await leader.until_cleaned_up("job")

    assert live(InstantTaskManager(disk), 1, life)


def test_a_job_without_recovery_starts_anew_and_ends_right_wherever_it_was_cut() -> None:
    """P18: also when its output was half published. Nothing but graph and counter is stored."""
    option = common_pb2.ConfigEntry(key="execution.batch.job-recovery.enabled", value="false")

    async def life(leader: Leader) -> None:
        await leader.take_office()
        if leader.dispatcher.master("job") is None:
            job = three_sinks()
            job.options.append(option)
            await leader.dispatcher.submit(job)
        leader.disk.cut_after_mutation(cut)
        await leader.until_cleaned_up("job")

    async def to_the_end(leader: Leader) -> None:
        await leader.take_office()
        assert await leader.disk.stat(f"{ROOT}/jobs/job/events") is None
        await leader.until_cleaned_up("job")
        assert (await leader.dispatcher.status("job")).state == FINISHED
        assert len(await visible(leader.disk)) == 9

    for cut in range(1, 1000):
        taskmanager = InstantTaskManager(SimulatedStorage())
        survived = live(taskmanager, 1, life)
        ended = asyncio.run(taskmanager.disk.stat(f"{ROOT}/archive/job.pb")) is not None
        ran = len(taskmanager.ran)
        assert live(taskmanager, 2, to_the_end), cut
        assert len(taskmanager.ran) == ran + (0 if ended else 10), cut
        if survived:
            return
    raise AssertionError("the job never came to its end")
