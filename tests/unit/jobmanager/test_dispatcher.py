"""All jobs of a leader, over the death of leaders, on a disk whose power goes at any moment."""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from holdover.errors import JobAlreadyExists, JobGraphError, JobNotFound
from holdover.v1 import common_pb2, job_pb2
from jobmanager.dispatcher import JobEndedAlready, LeaderEnds, TooLateToCancel
from jobmanager.job_store import JobAlreadyEnded, JobStore
from jobmanager.scheduler import signals as sig
from simulator.world.storage import SimulatedStorage, Unsynced
from tests.unit.jobmanager.leader_lives import (
    OUTPUTS,
    PARALLELISM,
    ROOT,
    InstantTaskManager,
    Leader,
    live,
    three_sinks,
)

Check = Callable[[Leader], Awaitable[None]]

UNSYNCED: tuple[Unsynced, ...] = ("dropped", "torn", "zeroed")
SUBTASKS = PARALLELISM * (2 + len(OUTPUTS))
GOLD = {
    f"{path}/job/part-k{index}-{subtask}": f"k{index}-{subtask}".encode()
    for index, path in enumerate(OUTPUTS)
    for subtask in range(PARALLELISM)
}
COMPLETE = GOLD | {f"{path}/job/_SUCCESS": b"" for path in OUTPUTS}
FINISHED = common_pb2.JOB_STATE_FINISHED


def in_office(*checks: Check) -> Check:
    """A life that takes office and does this."""

    async def life(leader: Leader) -> None:
        await leader.take_office()
        for check in checks:
            await check(leader)

    return life


async def submit(leader: Leader) -> None:
    """Submit the job with three sinks."""
    assert await leader.dispatcher.submit(three_sinks()) is False


async def to_the_end(leader: Leader) -> None:
    """Wait until nothing of the job is left but output and summary."""
    await leader.until_cleaned_up("job")


async def is_finished_for_good(leader: Leader) -> None:
    """The job says that it has finished, keeps its result, and does not run again (P44)."""
    status = await leader.dispatcher.status("job")
    assert status.state == FINISHED
    listed = [each.job_id for each in await leader.dispatcher.list_statuses()]
    assert listed.count("job") == 1
    archived = await leader.dispatcher.archived("job")
    assert sorted(file.path for file in archived.result_files) == sorted(GOLD)
    with pytest.raises(JobAlreadyEnded, match=r"already ended \(FINISHED\)"):
        await leader.dispatcher.submit(three_sinks())


async def is_complete(leader: Leader) -> None:
    """Every output is there once, and nothing else but the success marks."""
    assert await published(leader.disk) == COMPLETE
    staged = await leader.disk.glob("/out/**/part")
    assert staged == []


async def published(disk: SimulatedStorage) -> dict[str, bytes]:
    """What a reader of the output directories sees."""
    files = await disk.glob("/out/*/job/*")
    return {file.path: await disk.read(file.path) for file in files}


def test_a_job_runs_each_subtask_once_and_is_over_for_good() -> None:
    """Nothing fails (P44: a resubmission is refused in words)."""
    taskmanager = InstantTaskManager(SimulatedStorage())
    assert live(taskmanager, 1, in_office(submit, to_the_end, is_complete))
    assert len(taskmanager.ran) == SUBTASKS
    assert taskmanager.held == {}
    assert live(taskmanager, 2, in_office(is_finished_for_good, is_complete))
    assert len(taskmanager.ran) == SUBTASKS


def test_a_job_that_the_leader_before_stored_too_late_runs_when_it_is_submitted_again() -> None:
    """That leader acknowledged nothing, and the present one has not found it."""

    async def late(leader: Leader) -> None:
        other = JobStore(leader.disk, ROOT)
        assert await other.store(three_sinks(), submitted_wall_ms=1, leader_epoch=1)

    taskmanager = InstantTaskManager(SimulatedStorage())
    assert live(taskmanager, 2, in_office(late, submit, to_the_end, is_complete))
    assert len(taskmanager.ran) == SUBTASKS


def test_a_job_that_the_leader_before_stores_in_this_moment_runs() -> None:
    """P43: that one was frozen over the same submission, and will never run it."""

    class Overtaken(SimulatedStorage):
        overtaken = False

        async def publish_new(self, path: str, data: bytes) -> None:
            if not self.overtaken:
                self.overtaken = True
                other = JobStore(self, ROOT)
                assert await other.store(three_sinks(), submitted_wall_ms=1, leader_epoch=1)
            await super().publish_new(path, data)

    taskmanager = InstantTaskManager(Overtaken())
    assert live(taskmanager, 2, in_office(submit, to_the_end, is_complete))
    assert len(taskmanager.ran) == SUBTASKS


def life_with_a_cut(cut: int) -> tuple[InstantTaskManager, bool, bool]:
    """Cut the power after so many mutations from the acknowledgement.

    (The TaskManager, whether the life came to its end, whether the end marker was durable.)
    """
    taskmanager = InstantTaskManager(SimulatedStorage(UNSYNCED[cut % len(UNSYNCED)]))
    disk = taskmanager.disk

    async def cut_later(_: Leader) -> None:
        disk.cut_after_mutation(cut)

    survived = live(taskmanager, 1, in_office(submit, cut_later, to_the_end))
    archived = asyncio.run(disk.stat(f"{ROOT}/archive/job.pb")) is not None
    return taskmanager, survived, archived


def check_cut(cut: int) -> bool:
    """One cut and the recovery from it; whether the cut came after the job's end."""
    taskmanager, survived, archived = life_with_a_cut(cut)
    files = asyncio.run(published(taskmanager.disk))
    marks = [path for path in files if path.endswith("_SUCCESS")]
    assert not marks or files.items() >= GOLD.items(), f"cut {cut}: a mark without the output"
    ran = len(taskmanager.ran)
    held = {(key.vertex_id, key.subtask) for key in taskmanager.held}
    committing = any(path in GOLD for path in files)

    assert live(taskmanager, 2, in_office(to_the_end, is_complete, is_finished_for_good)), cut

    if archived or committing:
        assert len(taskmanager.ran) == ran, f"cut {cut}: tasks ran again after the commit"
    again = held & set(taskmanager.runs_of("job")[ran:])
    assert not again, f"cut {cut}: what the TaskManager held ran again"
    return survived


def test_a_power_cut_after_any_system_call_of_a_job_leaves_it_to_end_as_if_there_was_none() -> None:
    """P01, P42, P44, P45: from the acknowledgement to the clean-up of a job with three sinks."""
    for cut in range(1, 1000):
        if check_cut(cut):
            return
    raise AssertionError("the job never came to its end")


@pytest.mark.parametrize("seed", range(50))
def test_an_acknowledged_job_exists_when_the_power_goes_with_the_acknowledgement(seed: int) -> None:
    """P42: some jobs at once; the power goes 0 ms after one of the acknowledgements."""
    chance = random.Random(seed)
    taskmanager = InstantTaskManager(SimulatedStorage(chance.choice(UNSYNCED)))
    names = [f"job-{index}" for index in range(chance.randint(1, 5))]
    cut_at = chance.randint(1, len(names))
    acknowledged: list[str] = []

    async def submit_one(leader: Leader, name: str) -> None:
        await leader.dispatcher.submit(three_sinks(name))
        if len(acknowledged) < cut_at:
            acknowledged.append(name)
        if len(acknowledged) == cut_at:
            leader.disk.power_loss()

    async def submit_all(leader: Leader) -> None:
        await asyncio.gather(*(submit_one(leader, name) for name in names))

    assert not live(taskmanager, 1, in_office(submit_all))
    assert len(acknowledged) == cut_at

    async def all_end(leader: Leader) -> None:
        for name in acknowledged:
            await leader.until_cleaned_up(name)
            assert (await leader.dispatcher.status(name)).state == FINISHED

    assert live(taskmanager, 2, in_office(all_end))


def test_concurrent_and_repeated_submissions_are_one_job_over_a_failover() -> None:
    """P43"""
    taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset({"m"}))

    async def many_times(leader: Leader) -> None:
        submissions = (leader.dispatcher.submit(three_sinks()) for _ in range(5))
        assert sorted(await asyncio.gather(*submissions)) == [False, True, True, True, True]

    async def again(leader: Leader) -> None:
        assert await leader.dispatcher.submit(three_sinks()) is True
        other = three_sinks()
        other.name = "another"
        with pytest.raises(JobAlreadyExists):
            await leader.dispatcher.submit(other)
        assert [master.job_id for master in leader.dispatcher.masters()] == ["job"]

    assert live(taskmanager, 1, in_office(many_times, again))
    assert live(taskmanager, 2, in_office(again))
    taskmanager.hangs = frozenset()
    assert live(taskmanager, 3, in_office(again, to_the_end, is_complete))
    assert max(Counter(taskmanager.runs_of("job")).values()) == 1


def test_a_submission_whose_client_has_gone_is_carried_through() -> None:
    """P43: the call is cancelled while the job is being stored; the retry finds a job that runs."""

    class SlowDisk(SimulatedStorage):
        storing = asyncio.Event()
        stored = asyncio.Event()

        async def publish_new(self, path: str, data: bytes) -> None:
            await super().publish_new(path, data)
            if path.endswith("graph.pb"):
                self.storing.set()
                await self.stored.wait()

    disk = SlowDisk()
    taskmanager = InstantTaskManager(disk)

    async def give_up_and_retry(leader: Leader) -> None:
        disk.storing, disk.stored = asyncio.Event(), asyncio.Event()
        first = asyncio.ensure_future(leader.dispatcher.submit(three_sinks()))
        await disk.storing.wait()
        first.cancel()
        disk.stored.set()
        assert await leader.dispatcher.submit(three_sinks()) is True
        assert first.cancelled()

    assert live(taskmanager, 1, in_office(give_up_and_retry, to_the_end, is_complete))


def test_a_leader_that_ends_does_not_begin_the_job_that_it_stores() -> None:
    """P31, P42: the submission is refused for now, and the job is there for the next leader."""
    taskmanager = InstantTaskManager(SimulatedStorage())

    async def end_meanwhile(leader: Leader) -> None:
        await leader.dispatcher.suspend()
        with pytest.raises(LeaderEnds, match="submit again"):
            await leader.dispatcher.submit(three_sinks())
        assert leader.dispatcher.masters() == []

    assert live(taskmanager, 1, in_office(end_meanwhile))
    assert taskmanager.ran == []

    async def retry(leader: Leader) -> None:
        assert await leader.dispatcher.submit(three_sinks()) is True

    assert live(taskmanager, 2, in_office(retry, to_the_end, is_complete))


def test_a_clean_up_that_fails_is_repeated_while_the_other_jobs_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P44: the delete fails three times; the end is told at once, and tasks do not run again."""
    monkeypatch.setattr("jobmanager.job_files.RETRY_DELAY_S", 0.01)
    taskmanager = InstantTaskManager(SimulatedStorage())

    async def with_failing_delete(leader: Leader) -> None:
        leader.disk.fail("remove_tree", errno.EIO, f"{ROOT}/jobs/job", times=3)
        await submit(leader)
        await leader.dispatcher.submit(three_sinks("other"))
        await leader.until_cleaned_up("other")
        await to_the_end(leader)
        deletes = leader.disk.operations.count(("remove_tree", f"{ROOT}/jobs/job"))
        assert deletes == 4

    assert live(taskmanager, 1, in_office(with_failing_delete, is_finished_for_good))
    assert len(taskmanager.runs_of("job")) == SUBTASKS


def test_the_clean_up_of_a_leader_before_is_completed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P44: the JobManager dies between end marker and clean-up, and the delete fails for the
    next one as well.
    """
    monkeypatch.setattr("jobmanager.dispatcher.CLEAN_UP_RETRY_S", 0.01)
    taskmanager = InstantTaskManager(SimulatedStorage())
    taskmanager.disk.fail("remove_tree", errno.EIO, f"{ROOT}/jobs/job", times=4)

    async def until_told(leader: Leader) -> None:
        async def told() -> bool:
            return (await leader.dispatcher.status("job")).state == FINISHED

        await leader.until(told, "the end is told")
        assert await leader.disk.stat(f"{ROOT}/jobs/job/graph.pb") is not None

    assert live(taskmanager, 1, in_office(submit, until_told))
    assert live(taskmanager, 2, in_office(is_finished_for_good, to_the_end, is_complete))
    assert len(taskmanager.ran) == SUBTASKS


def test_what_an_older_leader_writes_after_the_clean_up_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stood still, and does not know yet that it leads no more."""
    monkeypatch.setattr("jobmanager.dispatcher.LEFTOVERS_INTERVAL_S", 0.01)
    taskmanager = InstantTaskManager(SimulatedStorage())

    async def write_late(leader: Leader) -> None:
        await leader.disk.make_directories(f"{ROOT}/jobs/job/events")
        await leader.disk.publish(f"{ROOT}/jobs/job/recovery-reports.pb", b"late")

    assert live(taskmanager, 1, in_office(submit, to_the_end, write_late, to_the_end, is_complete))


def test_a_registration_that_meets_the_end_of_a_job_is_answered() -> None:
    """P22: a TaskManager must not wait for a job that is over."""
    taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset({"s"}))

    async def register_at_the_end(leader: Leader) -> None:
        await submit(leader)
        master = leader.dispatcher.master("job")
        assert master is not None
        worker = sig.WorkerRegistered("tm-1", "127.0.0.1:2", refreshed=False)
        async with asyncio.timeout(60):
            ending = asyncio.ensure_future(master.suspend())
            before = asyncio.ensure_future(master.register_worker(worker))
            await ending
            assert await before == []
            assert await master.register_worker(worker) == []

    assert live(taskmanager, 1, in_office(register_at_the_end))


def test_a_leader_with_another_configuration_knows_the_job_again() -> None:
    """P43: what options the leader adds is not what makes two submissions differ."""
    taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset({"s"}))

    async def known(leader: Leader) -> None:
        config = leader.dispatcher._config
        leader.dispatcher._config = config.with_overrides(
            [common_pb2.ConfigEntry(key="restart-strategy.fixed-delay.attempts", value="7")]
        )
        assert await leader.dispatcher.submit(three_sinks()) is True

    assert live(taskmanager, 1, in_office(submit))
    assert live(taskmanager, 2, in_office(known))


def test_bad_graphs_are_refused_before_anything_is_stored() -> None:
    """Each names the field; nothing of it is on the disk."""
    taskmanager = InstantTaskManager(SimulatedStorage())
    occupied = three_sinks()
    missing = job_pb2.JobGraph(job_id="job", name="job")
    missing.vertices.add(vertex_id="s", name="s", parallelism=1).operators.add(
        name="read",
        determinism=job_pb2.DETERMINISM_DETERMINATE,
        source=job_pb2.Source(text=job_pb2.TextSource(glob="/nothing/*.txt")),
    )

    async def refused(leader: Leader) -> None:
        await leader.disk.make_directories("/out/b/job")
        await leader.disk.publish("/out/b/job/mine", b"")
        with pytest.raises(JobGraphError, match=r"'/out/b/job' exists and is not empty"):
            await leader.dispatcher.submit(occupied)
        await leader.disk.publish("/out/a", b"")
        with pytest.raises(JobGraphError, match=r"cannot be made: '/out/a' is a file"):
            await leader.dispatcher.submit(occupied)
        with pytest.raises(JobGraphError, match=r"no file matches the source '/nothing/\*\.txt'"):
            await leader.dispatcher.submit(missing)
        assert await leader.disk.list_directory(f"{ROOT}/jobs") == []
        with pytest.raises(JobNotFound):
            await leader.dispatcher.status("job")

    assert live(taskmanager, 1, in_office(refused))


CANCELED = common_pb2.JOB_STATE_CANCELED


def test_a_cancelled_job_stays_cancelled_wherever_the_power_goes_afterwards() -> None:
    """P47: the answer comes when the wish is durable; a second cancel is told that it has ended."""
    for cut in range(1, 200):
        taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset({"m"}))

        async def cancel(leader: Leader) -> None:
            await leader.dispatcher.cancel("job")

        async def cut_later(leader: Leader, cut: int = cut) -> None:
            leader.disk.cut_after_mutation(cut)

        async def is_cancelled(leader: Leader) -> None:
            assert (await leader.dispatcher.status("job")).state == CANCELED
            with pytest.raises(JobEndedAlready, match="CANCELED"):
                await leader.dispatcher.cancel("job")

        survived = live(taskmanager, 1, in_office(submit, cancel, cut_later, to_the_end))
        taskmanager.hangs = frozenset()
        ran = len(taskmanager.ran)
        assert live(taskmanager, 2, in_office(to_the_end, is_cancelled)), cut
        assert len(taskmanager.ran) == ran, f"cut {cut}: a cancelled job ran on"
        assert asyncio.run(published(taskmanager.disk)) == {}
        if survived:
            return
    raise AssertionError("the job never came to its end")


def test_a_cancel_that_comes_when_the_output_is_being_published_is_refused() -> None:
    """Also one that was asked for just before: it is never answered as if it had been heeded."""
    disk = SimulatedStorage()
    taskmanager = InstantTaskManager(disk)

    async def cancel_all_the_time(leader: Leader) -> None:
        refused: list[type[Exception]] = []
        master = leader.dispatcher.master("job")
        assert master is not None
        while not master.committing:
            await asyncio.sleep(0)
        while leader.dispatcher.master("job") is not None:
            try:
                await leader.dispatcher.cancel("job")
            except (TooLateToCancel, JobEndedAlready) as error:
                refused.append(type(error))
            else:
                raise AssertionError("a job whose output is published was cancelled")
        assert TooLateToCancel in refused

    life = in_office(submit, cancel_all_the_time, to_the_end, is_complete, is_finished_for_good)
    assert live(taskmanager, 1, life)
