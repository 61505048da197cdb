"""The figures of the demo, from what was seen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdover.cli.demo_run import Facts
from holdover.cli.demo_screen import DemoScreen
from holdover.cli.tpch.check import Comparison
from holdover.cli.tpch.ledger import LedgerLine
from holdover.v1.jobmanager_pb2 import JobStatus, RecoveryReport, VertexRecovery


def start(vertex_id: str, subtask: int, epoch: int) -> LedgerLine:
    """A task says that it begins."""
    return LedgerLine("start", vertex_id, subtask, 0, epoch, 1, 100.0)


def facts(*lines: LedgerLine) -> Facts:
    """Two subtasks had finished, one was running; the successor started a second later."""
    return Facts(
        subtasks_total=3,
        finished_before_kill=frozenset({("v0", 0), ("v0", 1)}),
        running_at_kill=frozenset({("v1", 0)}),
        killed_wall_s=100.0,
        started_wall_s=101.0,
        lines=list(lines),
        report=RecoveryReport(
            process_started_wall_ms=101_050,
            leading_wall_ms=101_500,
            first_deployment_ms=700,
            early_end=True,
            vertices=[VertexRecovery(vertex_id="v0", kept=2)],
        ),
        comparison=Comparison(4, ""),
        total_s=5.0,
    )


def test_a_subtask_that_was_running_and_runs_again_does_no_harm() -> None:
    """It is counted by itself."""
    seen = facts(start("v0", 0, 1), start("v0", 1, 1), start("v1", 0, 2), start("v2", 0, 2))
    assert seen.good
    assert seen.as_json() == {
        "subtasks_total": 3,
        "finished_before_kill": 2,
        "kept": 2,
        "rerun_finished": 0,
        "rerun_running": 1,
        "jm_down_s": 1.5,
        "recovery_s": 0.75,
        "early_end": True,
        "result_matches": True,
        "result_rows": 4,
        "partitions_held": 0,
        "partition_bytes_held": 0,
        "total_s": 5.0,
    }


def test_a_finished_subtask_that_ran_again_spoils_the_demo() -> None:
    """By the tasks' word, whatever the JobManager reports."""
    seen = facts(start("v0", 0, 1), start("v0", 1, 1), start("v0", 1, 2))
    assert not seen.good
    assert seen.as_json()["rerun_finished"] == 1


def test_a_wrong_result_spoils_the_demo() -> None:
    """Even when nothing ran again."""
    seen = facts(start("v0", 0, 1))
    seen.comparison = Comparison(4, "one row differs")
    assert not seen.good


def test_nothing_left_to_deploy_has_no_recovery_time() -> None:
    """When all tasks had finished, none is deployed by the successor."""
    seen = facts()
    seen.report.first_deployment_ms = -1
    assert seen.recovery_s is None
    assert seen.as_json()["recovery_s"] is None


@pytest.mark.parametrize("terminal", [False, True])
def test_the_screen_is_plain_text_without_a_terminal(terminal: bool) -> None:
    """Escape codes are for terminals; without one, a line at each quarter tells the progress."""
    written = io.StringIO()
    screen = DemoScreen(console=Console(file=written, force_terminal=terminal, highlight=False))
    screen.step("Job", "runs")
    with screen.following(8) as bar:
        for finished in range(9):
            bar.show(JobStatus(subtasks_finished=finished))
    screen.table(["vertex", "kept"], [("scan", 3)])
    text = written.getvalue()
    assert ("\x1b" in text) is terminal
    assert "runs" in text
    assert terminal or text.count("of 8 subtasks have finished") == 4
