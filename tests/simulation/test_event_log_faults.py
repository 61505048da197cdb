"""Faults of the storage below the event log, in a whole cluster: shown soon, survived, and healed,
and right in the end whenever the leader dies in the middle of them."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from holdover.v1.jobmanager_pb2 import RECOVERY_MODE_ACTIVE, RECOVERY_MODE_DEGRADED, RecoveryStatus
from jobmanager.job_store import JobStore
from simulator.cluster import JOBS_DIRECTORY
from simulator.scenario import Scenario
from tests.simulation.story import Story, tell, two_stages

#: Within which the status says it, at the default flush interval.
SHOWN_S = 5.0
MAPS, REDUCES = 60, 90
FAULTS = ("full", "write", "sync", "hang", "hang-write", "read-only", "vanished")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_log_shows_within_five_seconds_and_heals(fault: str) -> None:
    """P02, P05, P06."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map", 0.1)
        strike(story, fault)
        struck_s = story.now_s
        await story.until(
            lambda: story.logged("event log cannot be written, recovery: DEGRADED"), "it is logged"
        )
        assert story.now_s - struck_s <= SHOWN_S
        assert recovery(story).flush_failures > 0
        if fault != "vanished":
            assert recovery(story).mode == RECOVERY_MODE_DEGRADED
            assert recovery(story).reason
            done = story.finished_part("map")
            await story.at(story.now_s + 10.0)
            assert recovery(story).mode == RECOVERY_MODE_DEGRADED
            assert story.finished_part("map") > done, "the job goes on"
        story.world.storages.shared.faults.heal()
        await story.until(lambda: recovery(story).mode == RECOVERY_MODE_ACTIVE, "it heals", 10.0)

    tell(long_job(), plot)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_leader_that_dies_at_any_moment_of_a_fault_costs_no_result(fault: str, seed: int) -> None:
    """P02, P05, P06, P14: killed, or without power, from just before the fault to after its end."""

    async def plot(story: Story) -> None:
        chance = story.world.random("moment")
        await story.stage_finished("map", chance.uniform(0.05, 0.5))
        strike(story, fault)
        struck_s = story.now_s
        healed_after_s = chance.uniform(0.5, 12.0)
        dies_after_s = chance.uniform(0.0, 14.0)
        dark = None
        for after_s in sorted((healed_after_s, dies_after_s)):
            await story.at(struck_s + after_s)
            if after_s == healed_after_s:
                story.world.storages.shared.faults.heal()
            elif chance.random() < 0.5:
                dark = story.power_loss("jm-1")
            else:
                story.kill("jm-1", restart_after_s=chance.uniform(0.1, 5.0))
        if dark is not None:
            story.heal(dark)

    tell(long_job(), plot, seed=seed)


def test_ten_failovers_in_a_row_replay_the_state_and_not_the_history() -> None:
    """P14: an event for each finished subtask and little more, whatever was written before."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        finished = []
        for epoch in range(2, 12):
            await story.until(progress(story, story.finished_part("reduce")), "a reducer finishes")
            finished.append(MAPS + round(REDUCES * story.finished_part("reduce")))
            await story.kill("jm-1", restart_after_s=0.5).over.wait()
            await story.until(replayed(story, epoch), "it is replayed")
            await story.job_is("RUNNING")
        master = story.cluster.job_master(story.job)
        assert master is not None
        counts = [report.events_replayed for report in master.recovery_reports()]
        assert len(counts) == 10
        rest = [count - known for count, known in zip(counts, finished, strict=True)]
        # For each leader the changes to RECONCILING and to RUNNING; what ran is counted up.
        assert max(rest) <= 10 + 2 * 10, (counts, finished)

    tell(two_stages(MAPS, map_s=1.0, reduces=REDUCES, reduce_s=4.0), plot)


def strike(story: Story, fault: str) -> None:
    """Let the storage of the event log fail. The rest of it works, as far as the fault allows."""
    shared, directory = story.world.storages.shared, events_directory(story)
    log = f"{directory}*"
    match fault:
        case "full":
            shared.faults.fill()
        case "hang":
            shared.faults.hang(log)
        case "hang-write":
            shared.faults.hang(log, "write")
        case "read-only":
            shared.faults.make_read_only(log)
        case "vanished":
            story.remove_log()
        case _:
            shared.faults.break_operation(fault, log, errno.EIO)


def progress(story: Story, part: float) -> Callable[[], bool]:
    """Whether more of the reducers is finished."""
    return lambda: story.finished_part("reduce") > part


def replayed(story: Story, epoch: int) -> Callable[[], bool]:
    """Whether the leader of that epoch has recovered the job."""

    def check() -> bool:
        master = story.cluster.job_master(story.job)
        reports = master.recovery_reports() if master is not None else []
        return bool(reports) and reports[-1].leader_epoch == epoch and reports[-1].complete

    return check


def recovery(story: Story) -> RecoveryStatus:
    """What `holdover show` says of the log."""
    master = story.cluster.job_master(story.job)
    assert master is not None
    return master.status(with_vertices=False).recovery


def events_directory(story: Story) -> str:
    return JobStore(story.world.storages.shared, JOBS_DIRECTORY).events_directory(story.job)


def long_job() -> Scenario:
    """Something finishes every third of a second, for half a minute."""
    return two_stages(90, map_s=2.0, reduce_s=5.0)
