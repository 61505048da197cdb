"""What is wrong in a scenario file is told with file, line and field; the examples are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.scenario_file import ScenarioInvalid, load_scenario, parse_scenario, scenario_text
from tests.tidy.source import ROOT

EXAMPLES = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))
GOOD = """\
cluster: {taskmanagers: 4, slots: 2}
jobs:
  - name: job
    stages:
      - {name: map, parallelism: 8, seconds: 1 s}
      - {name: reduce, exchange: hash}
options: {heartbeat.timeout: 50 s}
faults:
  - {kind: crash, victims: leader, when: {stage: map, finished: 50 %}}
  - {kind: pause, victims: one, at: 3 s, for: 2 s}
"""


@pytest.mark.parametrize(
    ("written", "instead", "told"),
    [
        ("slots: 2", "slot: 2", "line 1: cluster.slot is no field here; did you mean slots?"),
        ("slots: 2", "slots: two", "line 1: cluster.slots is 'two', but must be a valid integer"),
        ("slots: 2", "slots: 0", "line 1: cluster.slots is '0', but must be greater than or"),
        ("name: job", "name: My Job", "line 3: jobs[0].name job id 'My Job' is not allowed"),
        ("1 s}", "1}", None),
        ("1 s}", "1 m}", "line 5: jobs[0].stages[0].seconds is '1 m', but must be a duration"),
        ("1 s}", "uniform(1 s, 2 s)}", "line 5: a comma between braces separates fields"),
        ("hash", "hsh", "line 6: jobs[0].stages[1].exchange is 'hsh', but must be 'hash',"),
        ("heartbeat.timeout", "heartbeat.timout", "line 7: options.heartbeat.timout is no option"),
        (": 50 s}", ": 50}", "line 7: options.heartbeat.timeout heartbeat.timeout is '50'"),
        ("crash", "crush", "line 9: faults[0] has an unknown kind 'crush'; did you mean crash?"),
        ("kind: crash, ", "", "line 9: faults[0] needs `kind`"),
        ("leader,", "leadr,", "line 9: faults[0].victims has no role 'leadr'"),
        ("stage: map, f", "stage: map, of: jib, f", "line 9: faults[0].when names the job 'jib'"),
        ("stage: map", "stag: map", "line 9: faults[0].when.stag is no field here"),
        ("finished: 50 %", "finished: 500 %", "line 9: faults[0].when.finished is '500 %'"),
        (", for: 2 s", "", "line 10: faults[1] needs `for`"),
        ("at: 3 s", "at: 3", "line 10: faults[1].at is '3', but must be a duration"),
        ("options:", "jobs: []\noptions:", "line 7: jobs is given twice, first in line 2"),
        ("slots: 2}", "slots: 2", "is not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_place(written: str, instead: str, told: str | None) -> None:
    text = GOOD.replace(written, instead, 1)
    assert text != GOOD
    if told is None:
        parse_scenario(text.encode(), "s.yaml")
        return
    with pytest.raises(ScenarioInvalid) as caught:
        parse_scenario(text.encode(), "s.yaml")
    assert told in str(caught.value)
    assert str(caught.value).startswith("s.yaml ")


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = GOOD.replace("slots: 2", "slots: 0").replace("at: 3 s", "at: 3").replace("hash", "x")
    with pytest.raises(ScenarioInvalid) as caught:
        parse_scenario(text.encode(), "s.yaml")
    lines = [line.split(":")[0] for line in str(caught.value).splitlines()]
    assert lines == ["s.yaml line 1", "s.yaml line 6", "s.yaml line 10"]


@pytest.mark.parametrize("content", [b"", b"- a", b"text", b"\xff\xfe\x00"])
def test_what_is_no_mapping_is_no_scenario(content: bytes) -> None:
    with pytest.raises(ScenarioInvalid, match=r"s\.yaml"):
        parse_scenario(content, "s.yaml")


def test_aliases_cannot_make_a_file_endless() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ScenarioInvalid, match="too many values"):
        parse_scenario("\n".join(lines).encode(), "s.yaml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioInvalid, match=r"cannot read scenario .*none\.yaml"):
        load_scenario(str(tmp_path / "none.yaml"))


def test_a_stored_graph_lies_beside_the_scenario(tmp_path: Path) -> None:
    file = tmp_path / "stored.yaml"
    file.write_text("jobs: [{name: job, graph: job.pb}]")
    scenario = load_scenario(str(file))
    assert scenario.jobs[0].graph == str(tmp_path / "job.pb")
    assert scenario.name == "stored"


def test_a_scenario_s_text_is_read_as_the_same_scenario() -> None:
    scenario = parse_scenario(GOOD.encode(), "s.yaml")
    assert parse_scenario(scenario_text(scenario).encode(), "t.yaml") == scenario


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_is_a_scenario_named_as_its_file(file: Path) -> None:
    scenario = load_scenario(str(file))
    assert scenario.name == file.stem
    assert scenario.description


def test_examples_that_run_in_both_worlds_say_so_rightly() -> None:
    for file in EXAMPLES:
        says = "Runs in both worlds" in file.read_text()
        scenario = load_scenario(str(file))
        can = all(fault.real for fault in scenario.faults) and scenario.cluster.leader == "file"
        assert says == can, file.name
