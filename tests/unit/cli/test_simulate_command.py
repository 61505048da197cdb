"""`holdover simulate`: what it runs, what it says, and when it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdover.cli.main import app
from simulator.record import Finding, Measures, RunRecord
from simulator.scenario import Scenario
from simulator.scenario_file import parse_scenario

SCENARIO = """\
jobs: [{name: job, stages: [{name: map, parallelism: 2}]}]
seed: 5
"""
RUNS: list[tuple[str, int, dict[str, str]]] = []


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return str(path)


@pytest.fixture(autouse=True)
def _runs_of_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command alone: runs are noted and answered at once; seed 13 finds something."""
    RUNS.clear()

    def run_scenario(
        scenario: Scenario, seed: int, *, options: Mapping[str, str], trace_lines_max: int
    ) -> RunRecord:
        RUNS.append((scenario.name, seed, dict(options)))
        record = RunRecord(scenario.name, "simulated", seed, digest="d" * 64, events=10)
        record.measures = Measures(finish_s=float(seed))
        record.trace = ["0.000 world begins\n"][:trace_lines_max]
        if seed == 13:
            record.findings.append(Finding("progress", 1.5, "nothing moves\nfor an hour"))
        return record

    monkeypatch.setattr("simulator.simulate.run_scenario", run_scenario)


def simulate(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == exit_code, result.output
    return result


def test_a_scenario_runs_once_with_its_own_seed(file: str) -> None:
    result = simulate(file)
    assert RUNS == [("small", 5, {})]
    assert ["finish", "5.0", "s"] in [line.split() for line in result.stdout.splitlines()]
    assert "trace dddddddddddddddd of 10 events" in result.stdout


def test_seeds_are_run_from_the_first_to_the_last(file: str) -> None:
    simulate(file, "--seeds", "3..6", "--jobs", "1")
    assert [seed for _, seed, _ in RUNS] == [3, 4, 5, 6]


def test_swarm_draws_a_scenario_for_each_seed() -> None:
    simulate("swarm", "--seeds", "1..2", "--jobs", "1")
    assert [(name, seed) for name, seed, _ in RUNS] == [("swarm", 1), ("swarm", 2)]


def test_many_runs_are_summed_up(file: str) -> None:
    result = simulate(file, "--seeds", "20..59", "--jobs", "1")
    assert result.stdout.startswith("40 runs, 0 with findings")
    assert "finish" in result.stdout
    assert "39.5 s" in result.stdout


def test_a_finding_is_told_first_with_the_line_that_makes_it_again(file: str) -> None:
    result = simulate(file, "--seeds", "12..14", "--jobs", "1", exit_code=1)
    first, *rest = result.stdout.splitlines()
    assert first == "1 finding with seed 13:"
    assert rest[0] == "  at 1.500 s  progress: nothing moves"
    assert rest[1].strip() == "for an hour"
    assert rest[2] == f"  again: holdover simulate {file} --seed 13"
    assert result.stderr == f"holdover simulate {file} --seed 13  # progress\n"


def test_a_sweep_has_a_line_for_each_value(file: str) -> None:
    result = simulate(
        file, "--seeds", "1..3", "--jobs", "1", "--sweep", "heartbeat.timeout=20 s,30 s"
    )
    assert [options["heartbeat.timeout"] for _, _, options in RUNS] == ["20 s"] * 3 + ["30 s"] * 3
    lines = result.stdout.splitlines()
    assert lines[0].startswith("heartbeat.timeout  finish")
    assert [line.split("  ")[0] for line in lines[1:]] == ["20 s", "30 s"]
    assert "2.0 s (worst 3.0 s)" in lines[1]


def test_a_finding_of_a_sweep_names_the_value_that_makes_it_again(file: str) -> None:
    result = simulate(
        file, "--seed", "13", "--sweep", "heartbeat.timeout=20 s,30 s", "--jobs", "1", exit_code=1
    )
    assert "1 finding with seed 13, heartbeat.timeout=20 s:" in result.stdout
    assert f"simulate {file} --seed 13 --sweep 'heartbeat.timeout=20 s'" in result.stdout


def test_records_are_written_as_json_lines(file: str, tmp_path: Path) -> None:
    simulate(file, "--seeds", "1..2", "--jobs", "1", "--json", str(tmp_path / "runs.json"))
    lines = (tmp_path / "runs.json").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [1, 2]
    result = simulate(file, "--json", "-")
    record = RunRecord.from_json(result.stdout)
    assert (record.scenario, record.seed) == (file, 5)


def test_a_report_is_written(file: str, tmp_path: Path) -> None:
    simulate(file, "--report", str(tmp_path / "run.html"))
    assert (tmp_path / "run.html").read_text().lower().startswith("<!doctype html>")


def test_the_trace_of_one_run_is_printed(file: str) -> None:
    assert simulate(file, "--trace").stdout.startswith("0.000 world begins\n")
    refused = simulate(file, "--trace", "--seeds", "1..2", exit_code=1)
    assert "--trace shows one run" in refused.stderr


def test_a_drawn_scenario_can_be_shown_and_run_as_a_file() -> None:
    shown = simulate("swarm", "--seed", "4", "--show").stdout
    assert parse_scenario(shown.encode(), "shown.yaml").description == "drawn from seed 4"
    assert not RUNS


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seeds", "6..5"], "must not be below the first"),
        (["--seeds", "all"], "write it as --seeds 1..100"),
        (["--seeds", "1..2", "--seed", "1"], "give one of them"),
        (["--sweep", "heartbeat.timout=5 s"], "did you mean heartbeat.timeout?"),
        (["--sweep", "heartbeat.timeout"], "write it as --sweep option=value"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(
    file: str, arguments: list[str], told: str
) -> None:
    assert told in simulate(file, *arguments, exit_code=1).stderr
    assert not RUNS


def test_a_wrong_scenario_is_refused_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(SCENARIO.replace("seed: 5", "sede: 5"))
    told = simulate(str(tmp_path / "wrong.yaml"), exit_code=1).stderr
    assert "wrong.yaml line 2: sede is no field here; did you mean seed?" in told


def test_other_commands_start_without_the_simulator() -> None:
    program = (
        "import sys, holdover.cli.main;"
        "print(*{'pydantic', 'yaml', 'simulator', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == ""


def test_a_run_that_raises_in_a_process_of_its_own_is_a_finding() -> None:
    # In a process of its own, because worker processes leave the tracker that started them.
    program = (
        "from holdover.cli.simulated_runs import RunOrder, run_all\n"
        "orders = [RunOrder('broken', 'no scenario', seed) for seed in (1, 2)]\n"
        "for record in run_all(orders, 2, whole=False):\n"
        "    print(record.seed, record.findings[0].text.splitlines()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    told = [line.split()[:2] for line in done.stdout.splitlines()]
    assert told == [["1", "AttributeError:"], ["2", "AttributeError:"]]
