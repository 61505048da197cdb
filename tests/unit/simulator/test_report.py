"""What a report says and how it is packed, without a browser."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from typing import Any

import numpy as np
import pytest

from simulator.record import AttemptRecord, FaultRecord, Finding, RunRecord
from simulator.report import page as report_page
from simulator.report import render_report
from simulator.report.columns import FATES, NEVER, attempt_fates, natural_key, packed_run
from simulator.report.story import outcome, reproducing_line, run_story
from tests.doubles.synthetic_runs import Shape, synthetic_run


def unpacked(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Head and columns, read as the page reads them."""
    data = gzip.decompress(base64.b64decode(text))
    length = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + length])
    columns = {
        name: np.frombuffer(data, dtype=f"<{kind}", count=count, offset=4 + length + offset)
        for name, kind, offset, count in head["columns"]
    }
    return head, columns


def packed(record: RunRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpacked(packed_run(record, attempt_fates(record.attempts), []))


def story_of(record: RunRecord) -> list[str]:
    return run_story(record, attempt_fates(record.attempts))


def attempt(subtask: int, number: int, started_s: float, **facts: Any) -> AttemptRecord:
    facts.setdefault("worker", "tm-1")
    facts.setdefault("end", "finished")
    return AttemptRecord(
        "job",
        "map",
        subtask,
        number,
        1,
        slot=0,
        started_s=started_s,
        ended_s=started_s + 1,
        **facts,
    )


def test_an_attempt_has_the_fate_that_its_result_had() -> None:
    attempts = [
        attempt(0, 0, 1.0),
        attempt(1, 0, 1.0, kept=False),
        attempt(1, 1, 5.0),
        attempt(2, 0, 1.0, end="lost", kept=False),
        attempt(3, 0, 1.0, end="canceled", kept=False),
        attempt(4, 0, 1.0, end="failed", kept=False),
        attempt(5, 0, 1.0, end="running", kept=False),
    ]
    fates = ["kept", "rerun", "repeated", "lost", "canceled", "failed", "running"]
    assert attempt_fates(attempts) == fates
    assert set(fates) == set(FATES)


def test_rows_are_in_the_order_of_racks_and_numbers() -> None:
    head, columns = packed(synthetic_run(Shape(12, racks=3)))
    assert head["workers"][:4] == [f"taskmanager-{i}" for i in (1, 4, 7, 10)]
    assert head["racks"] == ["rack-1", "rack-2", "rack-3"]
    assert np.all(np.diff(columns["row"].astype(int)) >= 0)
    assert natural_key("tm-2") < natural_key("tm-10")


def test_packed_times_are_those_of_the_record() -> None:
    record = synthetic_run(Shape(5))
    head, columns = packed(record)
    starts = sorted(a.started_s for a in record.attempts)
    assert sorted(columns["start"] * head["tick_s"]) == pytest.approx(starts, abs=1e-4)
    record.attempts[0].ended_s = None
    assert NEVER in packed(record)[1]["end"]


def test_a_long_run_fits_into_the_ticks() -> None:
    record = RunRecord("days", "simulated", 1, duration_s=90 * 86_400.0)
    record.attempts = [attempt(0, 0, 80 * 86_400.0)]
    head, columns = packed(record)
    assert columns["start"][0] * head["tick_s"] == pytest.approx(80 * 86_400, abs=0.01)


def test_a_worker_that_only_attempts_know_has_a_row() -> None:
    record = RunRecord("stray", "real", 1, attempts=[attempt(0, 0, 1.0, worker="stranger")])
    head, columns = packed(record)
    assert head["workers"] == ["stranger"]
    assert columns["slots"].tolist() == [1]


def test_the_curve_of_what_is_held_is_bounded_and_keeps_its_highest_value() -> None:
    record = synthetic_run(Shape(100, subtasks=9_000))
    _, columns = packed(record)
    assert len(columns["held_at"]) <= 4_000
    assert columns["held_partitions"].max() == record.measures.partitions_held_max


def test_equal_records_make_equal_reports() -> None:
    assert render_report([synthetic_run(Shape(6))]) == render_report([synthetic_run(Shape(6))])


def test_the_story_tells_of_the_death_the_wait_and_the_work() -> None:
    story = story_of(synthetic_run(Shape(10)))
    assert re.match(r"jobmanager-1 was lost at [\d.]+ s; jobmanager-2 led 2\.6 s later", story[0])
    assert "waited 3.1 s for workers" in story[0]
    assert "none of them ran again" in story[1]


def test_the_story_begins_with_findings_and_tells_of_other_faults() -> None:
    record = synthetic_run(Shape(10, racks_lost=1), findings=2)
    story = story_of(record)
    assert story[0] == "2 findings: finished work is kept."
    assert any("power-loss of 3 processes (rack 1)" in sentence for sentence in story)
    assert outcome(record) == "2 findings"


def test_the_line_makes_the_same_run_again() -> None:
    record = RunRecord("a b.yaml", "simulated", 7, options={"x.timeout": "5 s"})
    assert (
        reproducing_line(record) == "holdover simulate 'a b.yaml' --seed 7 --sweep 'x.timeout=5 s'"
    )


def test_what_comes_from_a_run_is_never_markup() -> None:
    evil = "</script><script>alert(1)</script>"
    record = synthetic_run(Shape(2))
    record.scenario = evil
    record.findings = [Finding(evil, 1.0, evil)]
    record.faults = [FaultRecord(evil, 1.0, [evil], evil)]
    assert evil not in render_report([record])
    assert html.escape(evil) in render_report([record])


def test_the_page_asks_for_nothing_from_outside() -> None:
    text = render_report([synthetic_run(Shape(3))])
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(""", text)
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}


def test_runs_with_findings_keep_their_timelines_when_not_all_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [synthetic_run(Shape(4), seed, findings=int(seed == 3)) for seed in (1, 2, 3)]
    monkeypatch.setattr(report_page, "ATTEMPTS_MAX", len(runs[2].attempts))
    text = render_report(runs)
    assert 'id="run-2"' in text
    assert 'id="run-0"' not in text


def test_a_report_of_no_run_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        render_report([])
