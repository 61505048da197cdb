"""docs/scenarios.md: its examples run, and it leaves no field, kind or role out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from holdover.cli.main import app
from simulator.fault_kinds import (
    ROLES,
    FaultMade,
    JobIs,
    JobsAre,
    StageFinished,
    StepName,
    StepReached,
)
from simulator.record import RunRecord
from simulator.scenario import ClusterSpec, DiskSpec, JobSpec, NetworkSpec, Scenario, StageSpec
from simulator.scenario_file import parse_scenario
from tests.tidy.source import ROOT
from tests.unit.simulator.test_scenario import FAULT_MODELS

PAGE = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
SCENARIOS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
MODELS: list[type[BaseModel]] = [
    *(Scenario, ClusterSpec, JobSpec, StageSpec, NetworkSpec, DiskSpec),
    *(StageFinished, JobIs, JobsAre, FaultMade, StepReached),
]


def fields(model: Any) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_on_the_page(model: type[BaseModel]) -> None:
    assert [name for name in fields(model) if not re.search(rf"[`{{ ]{name}[`:]", PAGE)] == []


@pytest.mark.parametrize("model", FAULT_MODELS, ids=lambda model: model.__name__)
def test_every_kind_of_fault_is_on_the_page_with_its_fields(model: Any) -> None:
    kind = model.model_fields["kind"].default
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |"))
    shared = {"kind", "id", "at", "when", "repeat", "every"}
    own = [name for name in fields(model) if name not in shared]
    assert sorted(re.findall(r"`(\w+)`", row.split("|")[2])) == sorted(own)
    in_both_worlds = next(line for line in PAGE.splitlines() if "to local processes too" in line)
    assert (f"`{kind}`" in in_both_worlds) == model.real


def test_every_role_is_on_the_page() -> None:
    victims = PAGE.split("### Victims")[1]
    assert [role for role in ROLES if not re.search(rf"`{role}(:\d)?`", victims)] == []


def test_every_step_is_on_the_page() -> None:
    steps = PAGE.split("### Steps")[1].split("### Victims")[0]
    assert [step for step in get_args(StepName) if f"`{step}`" not in steps] == []


def test_the_defaults_of_the_cluster_are_on_the_page() -> None:
    table = PAGE.split("## cluster")[1].split("## jobs")[0]
    defaults = ClusterSpec().model_dump()
    assert [key for key, value in defaults.items() if f"`{value}`" not in table] == []


@pytest.mark.parametrize("text", SCENARIOS)
def test_an_example_runs_and_finds_nothing(text: str, tmp_path: Path) -> None:
    name = parse_scenario(text.encode(), "page.yaml").name
    (tmp_path / "page.yaml").write_text(text)
    arguments = ["simulate", str(tmp_path / "page.yaml"), "--json", "-"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{name}: {result.output}"
    record = RunRecord.from_json(result.stdout)
    assert [job.state for job in record.jobs] == ["FINISHED"] * len(record.jobs)
    assert record.faults


def test_the_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("first.yaml").write_text(SCENARIOS[0])
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        result = CliRunner().invoke(app, arguments)
        assert program == "holdover"
        assert result.exit_code == 0, f"{command}: {result.output}"
    assert Path("first.html").exists()
    assert Path("runs.json").exists()
