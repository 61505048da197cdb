"""A watched job on the screen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from holdover.cli.progress import BarDisplay, LineDisplay, News
from holdover.v1.common_pb2 import JobState
from holdover.v1.jobmanager_pb2 import JobStatus, RecoveryMode, RecoveryStatus, VertexStatus
from tests.doubles.jobmanager_double import status


def running(finished: int) -> JobStatus:
    job = status("j", JobState.JOB_STATE_RUNNING)
    counts = [0, 0, 0, 0, 0, finished]
    job.vertices.append(
        VertexStatus(vertex_id="v0", name="scan [a]", parallelism=4, state_counts=counts)
    )
    return job


def test_each_state_is_news_once() -> None:
    news = News()
    assert [line.split()[-1] for line in news.lines(running(0))] == ["RUNNING"]
    assert news.lines(running(1)) == []


def test_what_a_job_waits_for_is_news_once_each_time() -> None:
    news, waiting = News(), running(0)
    waiting.waiting = "waiting for resources: no TaskManager is registered"
    news.lines(running(0))
    assert news.lines(waiting) == [waiting.waiting]
    assert news.lines(waiting) == []
    news.lines(running(0))
    assert news.lines(waiting) == [waiting.waiting]


def test_a_degraded_event_log_is_news_and_so_is_its_recovery() -> None:
    news, degraded, active = News(), running(0), running(0)
    degraded.recovery.CopyFrom(
        RecoveryStatus(mode=RecoveryMode.RECOVERY_MODE_DEGRADED, reason="disk full")
    )
    active.recovery.mode = RecoveryMode.RECOVERY_MODE_ACTIVE
    news.lines(active)
    assert news.lines(degraded) == ["recovery: DEGRADED, disk full"]
    assert news.lines(active) == ["recovery: ACTIVE again"]


def test_the_end_of_a_job_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    display, ended = LineDisplay(), status("j", JobState.JOB_STATE_FINISHED)
    ended.subtasks_finished = ended.subtasks_total = 4
    display.show(ended)
    progress, end = capsys.readouterr().out.splitlines()
    assert progress == "4 of 4 subtasks finished"
    assert end.split()[-1] == "FINISHED"


def test_a_bar_shows_the_finished_subtasks_of_a_vertex() -> None:
    screen = io.StringIO()
    columns = (TextColumn("{task.description}"), MofNCompleteColumn())
    with Progress(*columns, console=Console(file=screen, width=80)) as progress:
        display = BarDisplay(progress)
        display.show(running(1))
        display.show(running(3))
    assert "scan [a] 3/4" in screen.getvalue()
