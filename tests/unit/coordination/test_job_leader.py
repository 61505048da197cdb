"""What becomes of a job when its JobManager is lost, found again, or never comes back."""

from __future__ import annotations

import pytest

from holdover.coordination.job_leader import (
    FailTasks,
    JobLeaderAction,
    JobLeaderConnection,
    JobLeaderState,
    ReleaseAll,
    RetainFinished,
)

JOB = "job-a"
RETAIN = (FailTasks(JOB), RetainFinished(JOB, deadline_s=110.0))


def lose(job: JobLeaderConnection, now_s: float = 100.0) -> tuple[JobLeaderAction, ...]:
    return job.lost(now_s, recovery_enabled=True, holds_finished=True, timeout_s=10.0)


@pytest.mark.parametrize(
    ("recovery_enabled", "holds_finished", "state", "reason"),
    [
        (True, True, JobLeaderState.RETAINING, None),
        (True, False, JobLeaderState.RELEASED, "JobManager lost; nothing finished to keep"),
        (False, True, JobLeaderState.RELEASED, "JobManager lost; recovery is disabled"),
        (False, False, JobLeaderState.RELEASED, "JobManager lost; recovery is disabled"),
    ],
)
def test_a_loss_retains_only_what_is_finished_and_recoverable(
    recovery_enabled: bool, holds_finished: bool, state: JobLeaderState, reason: str | None
) -> None:
    job = JobLeaderConnection(JOB, epoch=1)
    actions = job.lost(
        100.0, recovery_enabled=recovery_enabled, holds_finished=holds_finished, timeout_s=10.0
    )
    assert job.state is state
    assert actions == (RETAIN if reason is None else (FailTasks(JOB), ReleaseAll(JOB, reason)))


def test_a_retained_job_is_released_at_its_deadline_and_not_before() -> None:
    """P27"""
    job = JobLeaderConnection(JOB, epoch=1)
    lose(job)
    assert job.expired(109.999) == ()
    assert job.state is JobLeaderState.RETAINING
    (release,) = job.expired(110.0)
    assert isinstance(release, ReleaseAll)
    assert job.expired(120.0) == ()


def test_a_second_loss_in_the_same_outage_does_not_move_the_deadline() -> None:
    job = JobLeaderConnection(JOB, epoch=1)
    lose(job)
    assert lose(job, now_s=105.0) == ()
    assert job.deadline_s == 110.0


def test_a_registration_voids_the_timer_and_the_next_outage_has_its_own() -> None:
    job = JobLeaderConnection(JOB, epoch=1)
    lose(job)
    job.registered(epoch=2)
    assert (job.state, job.epoch, job.deadline_s) == (JobLeaderState.CONNECTED, 2, None)
    assert job.expired(1_000.0) == ()
    assert lose(job, now_s=200.0) == (FailTasks(JOB), RetainFinished(JOB, deadline_s=210.0))


def test_a_connected_job_never_expires() -> None:
    """P21"""
    assert JobLeaderConnection(JOB, epoch=1).expired(1e9) == ()


def test_the_leaders_release_ends_the_job_once() -> None:
    job = JobLeaderConnection(JOB, epoch=1)
    assert job.released("job ended") == (ReleaseAll(JOB, "job ended"),)
    assert job.released("job ended") == ()
    assert lose(job) == ()
    with pytest.raises(ValueError, match="is released"):
        job.registered(epoch=2)
