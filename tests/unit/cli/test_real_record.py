"""What local processes write is read back as it was meant."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from holdover.cli.real_record import Chronicle, LogFollower, LogLine, parse_log_line
from holdover.runtime import log
from simulator.record import RunRecord
from simulator.recorder import RunRecorder


def written(capsys: pytest.CaptureFixture[str], event: str, **fields: object) -> str:
    """The line that a service would write."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        log.configure("jobmanager")
        log.Log("test").info(event, **fields)
    finally:
        root.handlers[:], root.level = before
    return capsys.readouterr().err.rstrip("\n")


def test_line_of_a_service_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"epoch": "3", "reason": 'no "answer" = lost\nfor 2 s \\', "empty": "", "a": "x/y:1"}
    line = parse_log_line(written(capsys, "JobManager lost: again", **fields))
    assert line is not None
    assert (line.event, line.fields) == ("JobManager lost: again", fields)


def test_times_have_milliseconds() -> None:
    line = parse_log_line("2026-01-31T12:00:00.250Z info    jobmanager jobmanager leads epoch=1")
    assert line == LogLine(1769860800.25, "jobmanager leads", {"epoch": "1"})


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):", '  File "x", line 3'])
def test_other_lines_are_no_events(text: str) -> None:
    assert parse_log_line(text) is None


def test_follower_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LogFollower(path)
    assert follower.new_lines() == []
    path.write_text("2026-01-31T12:00:00.000Z info    x first\n2026-01-31T12:00:01.0")
    assert [line.event for line in follower.new_lines()] == ["first"]
    with path.open("a") as file:
        file.write("00Z info    x second\n")
    assert [line.event for line in follower.new_lines()] == ["second"]
    assert follower.new_lines() == []


def recorded(chronicle: Chronicle) -> RunRecord:
    recorder = RunRecorder("test", "real", 0)
    chronicle.tell(recorder, zero_wall_s=100.0, end_wall_s=200.0)
    return recorder.finish(100.0)


def test_ledger_becomes_attempts(tmp_path: Path) -> None:
    who = {"worker": "tm-1", "job": "j", "vertex": "v0", "subtask": 2, "attempt": 0, "epoch": 1}
    lines = [
        {**who, "event": "started", "wall_ms": 103_000, "bytes": 7},
        {**who, "event": "finished", "wall_ms": 104_500, "bytes": 7},
    ]
    path = tmp_path / "ledger"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    chronicle = Chronicle()
    chronicle.note_ledger(path)
    (attempt,) = recorded(chronicle).attempts
    assert (attempt.worker, attempt.subtask, attempt.bytes) == ("tm-1", 2, 7)
    assert (attempt.started_s, attempt.ended_s, attempt.end) == (3.0, 4.5, "finished")


def test_events_are_told_in_order_of_time_and_within_the_run() -> None:
    chronicle = Chronicle()
    registered = LogLine(150.0, "registered", {"leader_epoch": "1"})
    chronicle.note(160.0, lambda recorder, at_s: recorder.worker_ended(at_s, "tm-0"))
    chronicle.note_log_line("tm-0", registered)
    chronicle.note(90.0, lambda recorder, at_s: recorder.worker_started(at_s, "tm-0"))
    chronicle.note(201.0, lambda recorder, at_s: recorder.worker_started(at_s, "tm-0"))
    (worker,) = recorded(chronicle).workers
    assert worker.lives == [(0.0, 60.0)]
    assert worker.connections == [(1, 50.0, 60.0)]
