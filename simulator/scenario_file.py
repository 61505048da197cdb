"""Reading a scenario from YAML: every error names file, line and field, and says what to do.

A scenario file is one mapping; `docs/scenarios.md` lists its fields. Values stay as they are
written until their field reads them: `on`, `1_000` and `08` mean what the field says, not what
YAML makes of them.
"""

from __future__ import annotations

import posixpath
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdover.errors import HoldoverError
from simulator.quantities import nearest
from simulator.scenario import JobSpec, Scenario

FILE_BYTES_MAX = 1 << 20
_DEPTH_MAX = 16
#: Values in a file, those that aliases repeat included.
_VALUES_MAX = 100_000
_ERRORS_TOLD_MAX = 20

_Path = tuple[str | int, ...]


class ScenarioInvalid(HoldoverError):
    """A scenario cannot be read; the message has a line for each thing that is wrong."""


def load_scenario(path: str) -> Scenario:
    """The scenario in a file; raises ScenarioInvalid.

    Paths in it are relative to the file.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ScenarioInvalid(f"cannot read scenario {path}: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ScenarioInvalid(f"scenario {path} is over {FILE_BYTES_MAX} bytes")
    scenario = parse_scenario(content, path)
    directory = posixpath.dirname(posixpath.abspath(path))
    jobs = [
        job.model_copy(update={"graph": posixpath.join(directory, job.graph)}) if job.graph else job
        for job in scenario.jobs
    ]
    return scenario.model_copy(update={"jobs": tuple(jobs)})


def stored_graph(job: JobSpec) -> bytes | None:
    """Content of the file that holds the job's graph, None for a job of stages.

    Raises ScenarioInvalid.
    """
    if job.graph is None:
        return None
    try:
        with open(job.graph, "rb") as file:
            return file.read()
    except OSError as error:
        reason = error.strerror or error
        raise ScenarioInvalid(f"job {job.name}: cannot read graph {job.graph}: {reason}") from error


def parse_scenario(content: bytes, name: str) -> Scenario:
    """As `load_scenario`, for content that was read from the file `name`.

    A scenario that gives itself no name has that of its file.
    """
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ScenarioInvalid(f"{name} is not YAML: {error}") from error
    if not isinstance(root, MappingNode):
        raise ScenarioInvalid(f"{name} holds no scenario: write `jobs:` and its other fields")
    reading = _Reading(name)
    value = reading.value(root, ())
    assert isinstance(value, dict)
    value.setdefault("name", posixpath.splitext(posixpath.basename(name))[0])
    try:
        return Scenario.model_validate(value)
    except ValidationError as error:
        raise ScenarioInvalid(reading.told(error, value)) from None


def scenario_text(scenario: Scenario) -> str:
    """A scenario as YAML that `parse_scenario` reads as the same one; defaults are left out."""
    fields = scenario.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100))


class _Reading:
    """One file: its values as text, and the line of each."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[_Path, int] = {}

    def value(self, node: Node, path: _Path) -> Any:
        """Mappings, lists, texts, and None where nothing is written."""
        line = node.start_mark.line + 1
        self._lines.setdefault(path, line)
        if len(self._lines) > _VALUES_MAX or len(path) > _DEPTH_MAX:
            raise ScenarioInvalid(f"{self._name} line {line}: too many values, or too deep")
        if isinstance(node, ScalarNode):
            return None if node.tag.endswith(":null") else str(node.value).strip()
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, MappingNode)
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = f"{self._name} line {key_node.start_mark.line + 1}"
            if not isinstance(key_node, ScalarNode):
                raise ScenarioInvalid(f"{at}: the name of a field must be text")
            key = str(key_node.value)
            if key.endswith(")"):
                raise ScenarioInvalid(
                    f"{at}: a comma between braces separates fields: put quotes around the value"
                    f" that ends with {key}"
                )
            if key in values:
                first = self._lines[*path, key]
                raise ScenarioInvalid(f"{at}: {key} is given twice, first in line {first}")
            self._lines[*path, key] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, (*path, key))
        return values

    def told(self, error: ValidationError, value: Any) -> str:
        """The errors of a validation, each a line, in the order of the file."""
        found: list[tuple[int, str]] = []
        for problem in error.errors(include_url=False):
            reason = problem.get("ctx", {}).get("error")
            path = _in_file((*problem["loc"], *getattr(reason, "path", ())), value)
            line, field = self._line(path), _field(path)
            told = f"{field} {_message(problem)}" if field else _message(problem)
            found.append((line, f"{self._name} line {line}: {told}"))
        found.sort(key=lambda entry: entry[0])
        lines = [text for _, text in found[:_ERRORS_TOLD_MAX]]
        if len(found) > len(lines):
            lines.append(f"... and {len(found) - len(lines)} more")
        return "\n".join(lines)

    def _line(self, path: _Path) -> int:
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]


def _in_file(location: _Path, value: Any) -> _Path:
    """The path in the file that a location in the models stands for: models also name the kind of
    a fault in the location, and fields that are missing; the file does not."""
    path: list[str | int] = []
    for step in location:
        is_field = isinstance(value, dict) and step in value
        is_item = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_field or is_item:
            value = value[step]
            path.append(step)
    return tuple(path)


def _field(path: _Path) -> str:
    """`faults[1].when`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _message(problem: Any) -> str:
    """What is wrong with a field, to follow its name."""
    context: dict[str, Any] = problem.get("ctx", {})
    if problem["type"] == "value_error":
        return str(context["error"])
    if problem["type"] == "missing":
        return f"needs `{problem['loc'][-1]}`"
    if problem["type"] == "union_tag_not_found":
        return "needs `kind`, to say what happens"
    if problem["type"] == "union_tag_invalid":
        kinds = str(context["expected_tags"]).replace("'", "").split(", ")
        return f"has an unknown kind {context['tag']!r}{nearest(str(context['tag']), kinds)}"
    text = str(problem["msg"])
    for beginning in ("Input should be ", "Input should have ", "Tuple should have "):
        if text.startswith(beginning):
            wanted = text.removeprefix(beginning)
            verb = "be" if beginning == "Input should be " else "have"
            shown = problem["input"]
            if isinstance(shown, str | int | float):
                return f"is {shown!r}, but must {verb} {wanted}"
            return f"must {verb} {wanted}"
    return text
