"""A sweep: its combinations before the runs, its table after them."""

from __future__ import annotations

import pytest

from holdover.errors import ConfigurationError
from simulator.record import Finding, Measures, RunRecord
from simulator.scenario import Scenario
from simulator.sweep import (
    MEASURES,
    SweptOption,
    bytes_text,
    combinations,
    seconds_text,
    sweep_rows,
    swept_options,
)

INTERVAL, TIMEOUT = "heartbeat.interval", "heartbeat.timeout"
SCENARIO = Scenario.model_validate({"jobs": [{"stages": [{"name": "map", "parallelism": 1}]}]})


def run(value: str, finish_s: float, recovery_s: float | None = None) -> RunRecord:
    measures = Measures(finish_s=finish_s, recovery_s=recovery_s)
    return RunRecord("s", "simulated", 0, options={TIMEOUT: value}, measures=measures)


def test_every_value_of_one_option_meets_every_value_of_the_other() -> None:
    swept = swept_options([f"{INTERVAL}=1 s,2 s", f"{TIMEOUT}=20 s, 30 s"])
    assert swept[1] == SweptOption(TIMEOUT, ("20 s", "30 s"))
    combined = combinations(swept, SCENARIO)
    assert [tuple(options.values()) for options in combined] == [
        ("1 s", "20 s"),
        ("1 s", "30 s"),
        ("2 s", "20 s"),
        ("2 s", "30 s"),
    ]
    assert combinations([], SCENARIO) == [{}]


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([TIMEOUT], "write it as"),
        ([f"{TIMEOUT}=1 s,"], "write it as"),
        ([f"{TIMEOUT}=60 s", f"{TIMEOUT}=70 s"], "given twice"),
        (["a=1", "b=2", "c=3"], "at most 2"),
        ([f"{TIMEOUT}={','.join(f'{n} s' for n in range(99))}"], "more than 50 values"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        swept_options(texts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{TIMEOUT}=60 s,5 s", "heartbeat.timeout=5 s: heartbeat.interval"),
        ("heartbeat.timout=60 s", "did you mean heartbeat.timeout?"),
        ("taskmanager.numberOfTaskSlots=2", "set `cluster: slots`"),
    ],
)
def test_a_combination_that_no_cluster_accepts_is_refused_before_any_run(
    text: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        combinations(swept_options([text]), SCENARIO)


def test_a_row_has_the_median_and_the_worst_of_its_runs() -> None:
    records = [run("20 s", 5.0), run("30 s", 7.0, 1.0), run("20 s", 6.0), run("20 s", 100.0)]
    records[0].findings.append(Finding("progress", 1.0, "stuck"))
    first, second = sweep_rows(records)
    assert (first.options, first.runs, first.findings) == ({TIMEOUT: "20 s"}, 3, 1)
    assert (first.medians[0], first.worst[0]) == (6.0, 100.0)
    assert first.cells()[:2] == ["6.0 s (worst 100.0 s)", "-"]
    assert second.cells()[:2] == ["7.0 s", "1.0 s"]
    assert len(second.cells()) == len(MEASURES)


def test_figures_are_written_as_a_person_says_them() -> None:
    assert [seconds_text(s) for s in (0.04, 119.94, 200, 7_500)] == [
        "0.0 s",
        "119.9 s",
        "3 min 20 s",
        "2 h 5 min",
    ]
    assert [bytes_text(n) for n in (0, 1_023, 1_536, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 TiB",
    ]
