"""The report of a recovery tells what was kept, what runs again and why, and outlives leaders."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdover.v1 import events_pb2, jobmanager_pb2
from jobmanager.checked_file import StoredFileDamaged
from jobmanager.event_store.findings import FindingKind, LogFinding, LogFindings
from jobmanager.job_store import JobStore
from jobmanager.recovery import RECOVERY_REPORTS_MAX, RecoveryObserver
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.reconciliation import WAIT_TIMER
from simulator.world.storage import SimulatedStorage
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld
from tests.unit.jobmanager.leader_lives import ROOT, InstantTaskManager, Leader, live, three_sinks
from tests.unit.jobmanager.scheduler.job_graphs import chain
from tests.unit.jobmanager.scheduler.scenes import (
    finish,
    fire,
    lose_output,
    next_leader,
    register,
    started,
    stored_by,
)

REPORTS = f"{ROOT}/jobs/job/recovery-reports.pb"
Report = jobmanager_pb2.RecoveryReport


class HandClock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self.now_s

    def wall_ms(self) -> int:
        """See `Clock`: an hour after the monotonic one."""
        return round((self.now_s + 3600) * 1000)


def report_of(world: SchedulerWorld) -> Report:
    assert world.scheduler is not None
    observer = RecoveryObserver(HandClock(), world.epoch, 0, 0)
    return observer.current(world.scheduler)


def vertices_of(report: Report) -> dict[str, tuple[int, int, int]]:
    """(kept, adopted, unfinished) of each vertex."""
    return {v.vertex_id: (v.kept, v.adopted, v.unfinished) for v in report.vertices}


def resets_of(report: Report) -> dict[tuple[str, str], int]:
    return {
        (v.vertex_id, events_pb2.ResetReason.Name(r.reason).removeprefix("RESET_REASON_")): (
            r.subtasks
        )
        for v in report.vertices
        for r in v.resets
    }


def workers_of(report: Report) -> dict[str, str]:
    return {
        w.worker_id: jobmanager_pb2.WorkerReturnKind.Name(w.kind).removeprefix(
            "WORKER_RETURN_KIND_"
        )
        for w in report.workers
    }


def reruns(world: SchedulerWorld, before: int) -> int:
    """By the ledger: attempts of subtasks that had finished before."""
    done = {(key.vertex_id, key.subtask) for key in world.finishes[:before]}
    return sum((key.vertex_id, key.subtask) in done for key in world.finishes[before:])


# Numbers (P50)


def test_everybody_is_back_and_everything_is_kept() -> None:
    world = started(chain(6))
    finish(world, "s")
    before = len(world.finishes)
    next_leader(world)
    register(world)
    report = report_of(world)
    assert report.early_end
    assert vertices_of(report) == {"s": (6, 0, 0), "m": (0, 0, 6), "k": (0, 0, 6)}
    assert set(workers_of(report).values()) == {"IN_TIME"}
    assert [w.partitions_accepted for w in report.workers] == [2, 2, 2]
    world.run_to_end()
    assert reruns(world, before) == 0


def test_what_is_missing_is_counted_with_its_cause_as_the_ledger_has_it() -> None:
    world = started(chain(6), options=replace(OPTIONS, release_during_execution=False))
    finish(world, "s")
    finish(world, "m")
    lose_output(world, "s")
    gone = len(stored_by(world, "tm-2", "m"))
    before = len(world.finishes)
    next_leader(world)
    world.kill_worker(world.workers["tm-2"])
    register(world, "tm-0", "tm-1")
    fire(world, WAIT_TIMER)
    report = report_of(world)
    assert not report.early_end
    assert resets_of(report) == {("m", "PARTITION_MISSING"): gone, ("s", "UPSTREAM_CLOSURE"): 6}
    assert vertices_of(report) == {"s": (0, 0, 0), "m": (6 - gone, 0, 0), "k": (0, 0, 6)}
    assert workers_of(report) == {"tm-0": "IN_TIME", "tm-1": "IN_TIME", "tm-2": "MISSING"}
    world.run_to_end()
    assert reruns(world, before) == gone + 6


def test_what_is_lost_with_a_worker_during_the_wait_is_counted_too() -> None:
    world = started(chain(6))
    finish(world, "s")
    next_leader(world)
    register(world, "tm-0")
    world.kill_worker(world.workers["tm-0"])
    world.deliver_pending()
    register(world, "tm-1", "tm-2")
    assert resets_of(report_of(world)) == {("s", "WORKER_LOST"): 2}
    assert vertices_of(report_of(world))["s"] == (4, 0, 0)


def test_work_without_an_event_is_kept_as_adopted() -> None:
    world = SchedulerWorld(chain(4))
    world.flush_probability = 0.0
    world.lead()
    register(world)
    world.durable = len(world.log)
    finish(world, "s", [0, 1, 2])
    before = len(world.finishes)
    next_leader(world, lost_events=100)
    register(world)
    assert vertices_of(report_of(world))["s"] == (3, 3, 1)
    world.run_to_end()
    assert reruns(world, before) == 0


def test_late_and_empty_workers_are_told_apart_and_strangers_are_left_out() -> None:
    world = started(chain(6), workers=4)
    finish(world, "s")
    next_leader(world)
    world.kill_worker(world.workers["tm-1"])
    register(world, "tm-0", "tm-1")
    fire(world, WAIT_TIMER)
    late = next(w for w in ("tm-2", "tm-3") if stored_by(world, w, "s"))
    register(world, late)
    world.deliver(sig.WorkerRegistered("new", "new:1", refreshed=False))
    workers = workers_of(report_of(world))
    assert workers["tm-0"] == "IN_TIME"
    assert workers["tm-1"] == "EMPTY"
    assert workers[late] == "LATE"
    assert "new" not in workers
    offered = {w.worker_id: w.partitions_accepted for w in report_of(world).workers}
    assert offered[late] == 0


def test_numbers_do_not_change_when_the_job_goes_on() -> None:
    world = started(chain(6))
    finish(world, "s")
    next_leader(world)
    register(world)
    before = report_of(world)
    world.kill_worker(world.workers["tm-0"])
    world.run_to_end()
    assert report_of(world).vertices == before.vertices


# Times


def findings(*found: LogFinding) -> LogFindings:
    return LogFindings(7, 1, 42, 7, 1, began_with_snapshot=False, findings=found)


def test_each_phase_has_its_own_time() -> None:
    clock = HandClock()
    observer = RecoveryObserver(clock, 3, process_age_s=2.0, leading_age_s=0.5)
    clock.now_s += 0.25
    torn = LogFinding(FindingKind.TORN_TAIL, "/log", 9, "cut")
    observer.replayed(findings(torn))
    clock.now_s += 4
    assert observer.worker_registered("tm-0")
    assert not observer.worker_registered("tm-0")
    observer.wait_ended()
    clock.now_s += 0.125
    observer.complete()
    report = observer.report
    assert {p.name: p.duration_ms for p in report.phases} == {
        "start": 1500,
        "lead": 500,
        "replay": 250,
        "wait": 4000,
        "reconcile": 125,
    }
    assert len(report.phases) == 5
    assert (report.leader_epoch, report.events_replayed, report.last_event_wall_ms) == (3, 7, 42)
    assert report.leading_wall_ms - report.process_started_wall_ms == 1500
    assert list(report.log_findings) == ["torn tail in /log at byte 9: cut"]
    assert report.complete


def test_a_job_that_starts_anew_has_been_replayed_once() -> None:
    observer = RecoveryObserver(HandClock(), 3, 0, 0)
    observer.replayed(findings())
    observer.restarted("no event of the job had become durable")
    assert [p.name for p in observer.report.phases] == ["start", "lead", "replay"]
    assert observer.report.restarted_reason.startswith("no event")


def test_only_the_first_deployment_counts() -> None:
    clock = HandClock()
    observer = RecoveryObserver(clock, 3, process_age_s=2.0, leading_age_s=0.5)
    assert observer.report.first_deployment_ms == -1
    clock.now_s += 1
    assert observer.deployed()
    clock.now_s += 1
    assert not observer.deployed()
    assert observer.report.first_deployment_ms == 3000


# Storage


async def opened(disk: SimulatedStorage) -> JobStore:
    store = JobStore(disk, ROOT)
    await store.open()
    await store.store(three_sinks(), submitted_wall_ms=1, leader_epoch=1)
    return store


async def test_reports_survive_a_loss_of_power() -> None:
    disk = SimulatedStorage()
    store = await opened(disk)
    assert await store.read_recovery_reports("job") == []
    reports = [Report(leader_epoch=2, early_end=True), Report(leader_epoch=3)]
    await store.write_recovery_reports("job", reports)
    disk.power_loss()
    disk.power_on()
    assert await (await opened(disk)).read_recovery_reports("job") == reports


async def test_only_the_newest_reports_are_kept() -> None:
    store = await opened(SimulatedStorage())
    reports = [Report(leader_epoch=epoch) for epoch in range(1, RECOVERY_REPORTS_MAX + 6)]
    await store.write_recovery_reports("job", reports)
    kept = await store.read_recovery_reports("job")
    assert [r.leader_epoch for r in kept] == list(range(6, RECOVERY_REPORTS_MAX + 6))


async def test_reports_that_are_too_large_give_up_the_oldest() -> None:
    store = await opened(SimulatedStorage())
    reports = [Report(leader_epoch=i, restarted_reason="x" * (6 << 20)) for i in (1, 2, 3)]
    await store.write_recovery_reports("job", reports)
    assert [r.leader_epoch for r in await store.read_recovery_reports("job")] == [2, 3]


async def test_a_damaged_file_is_named() -> None:
    disk = SimulatedStorage()
    store = await opened(disk)
    await store.write_recovery_reports("job", [Report(leader_epoch=2)])
    disk.overwrite(REPORTS, b"no reports")
    with pytest.raises(StoredFileDamaged, match=r"recovery-reports\.pb"):
        await store.read_recovery_reports("job")


# Over leaders


async def reports_stored(leader: Leader, epochs: Sequence[int]) -> None:
    """Wait until the reports of these leaders are durable and complete."""

    async def stored() -> bool:
        reports = await leader.store.read_recovery_reports("job")
        return [r.leader_epoch for r in reports] == list(epochs) and reports[-1].complete

    await leader.until(stored, f"the reports of {list(epochs)} are stored")


def half_done() -> InstantTaskManager:
    """The first leader takes the job, and its sources finish; nothing else ever does."""
    taskmanager = InstantTaskManager(SimulatedStorage(), hangs=frozenset("m"))

    async def first(leader: Leader) -> None:
        await leader.take_office()
        await leader.dispatcher.submit(three_sinks())

        async def sources_done() -> bool:
            status = await leader.dispatcher.status("job")
            return status.subtasks_finished == 2 and status.recovery.durable_sequence >= 5

        await leader.until(sources_done, "the sources have finished, durably")

    assert live(taskmanager, 1, first)
    return taskmanager


def test_reports_outlive_the_leaders_that_wrote_them() -> None:
    taskmanager = half_done()

    async def recovers(leader: Leader) -> None:
        await leader.take_office()
        epoch = leader.dispatcher.masters()[0].scheduler.core.epoch
        await reports_stored(leader, range(2, epoch + 1))
        assert (await leader.dispatcher.status("job")).recoveries == epoch - 1

    async def ends(leader: Leader) -> None:
        await leader.take_office()
        await leader.until_cleaned_up("job")
        reports = (await leader.dispatcher.archived("job")).recovery_reports
        assert [r.leader_epoch for r in reports] == [2, 3, 4]
        assert [{v.vertex_id: v.kept for v in r.vertices}["s"] for r in reports] == [2, 2, 2]

    assert live(taskmanager, 2, recovers)
    assert live(taskmanager, 3, recovers)
    taskmanager.hangs = frozenset()
    assert live(taskmanager, 4, ends)


def test_a_recovery_does_not_wait_for_its_report() -> None:
    """Storage refuses the file for a while: the job goes on, and the report follows."""
    taskmanager = half_done()

    async def recovers(leader: Leader) -> None:
        leader.disk.fail("publish", errno.ENOSPC, REPORTS, times=1)
        await leader.take_office()

        async def deployed() -> bool:
            return any(key.vertex_id == "m" for key in taskmanager.held)

        await leader.until(deployed, "the next stage runs")
        await reports_stored(leader, [2])

    taskmanager.hangs = frozenset(("k0", "k1", "k2"))
    assert live(taskmanager, 2, recovers)


def test_a_damaged_file_of_reports_costs_only_the_reports() -> None:
    taskmanager = half_done()

    async def recovers(leader: Leader) -> None:
        await leader.take_office()
        await reports_stored(leader, [2])

    assert live(taskmanager, 2, recovers)
    taskmanager.disk.overwrite(REPORTS, b"HOLDFILE")

    async def again(leader: Leader) -> None:
        await leader.take_office()
        await reports_stored(leader, [3])

    assert live(taskmanager, 3, again)
