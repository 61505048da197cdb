"""What a watcher is told."""

from __future__ import annotations

from holdover.client.watching import StateFeed
from holdover.v1.common_pb2 import JobState
from holdover.v1.jobmanager_pb2 import JobStateEntry
from tests.doubles.jobmanager_double import status

CREATED, RUNNING = JobState.JOB_STATE_CREATED, JobState.JOB_STATE_RUNNING
RECONCILING, FINISHED = JobState.JOB_STATE_RECONCILING, JobState.JOB_STATE_FINISHED


def test_states_that_happened_unseen_come_out_one_by_one() -> None:
    feed = StateFeed()
    told = feed.statuses(status("j", CREATED, RUNNING, FINISHED))
    assert [job.state for job in told] == [CREATED, RUNNING, FINISHED]
    assert [len(job.history) for job in told] == [1, 2, 3]


def test_a_status_without_news_is_not_told_again() -> None:
    feed = StateFeed()
    feed.statuses(status("j", CREATED))
    assert feed.statuses(status("j", CREATED)) == []


def test_newer_figures_are_told_without_a_new_state() -> None:
    feed = StateFeed()
    feed.statuses(status("j", RUNNING))
    newer = status("j", RUNNING)
    newer.subtasks_finished = 3
    (told,) = feed.statuses(newer)
    assert told.subtasks_finished == 3
    assert len(told.history) == 1


def test_a_state_that_the_next_leader_never_knew_stays_told() -> None:
    """The log's tail may be lost with its leader."""
    feed = StateFeed()
    feed.statuses(status("j", CREATED, RUNNING))
    after = status("j", CREATED)
    after.history.append(JobStateEntry(state=RECONCILING, leader_epoch=2, wall_ms=9))
    after.state = RECONCILING
    (told,) = feed.statuses(after)
    assert [entry.state for entry in told.history] == [CREATED, RUNNING, RECONCILING]


def test_a_state_that_came_twice_is_told_twice() -> None:
    feed = StateFeed()
    feed.statuses(status("j", RUNNING, RECONCILING))
    (told,) = feed.statuses(status("j", RUNNING, RECONCILING, RUNNING))
    assert told.state == RUNNING
    assert len(told.history) == 3
