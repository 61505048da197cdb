"""The documentation of all options, made from their table so that it cannot be out of date."""

from __future__ import annotations

from holdover.config.options import OPTIONS
from holdover.config.relations import RELATIONS, REQUIREMENTS

_INTRODUCTION = """\
# Configuration

<!-- Made by `make docs` from holdover/config/options.py; a test fails when it is out of date. -->

Options come from a YAML file (nested or dotted keys), from the environment, and from
`-D key=value` on the command line; the later of these wins over the earlier. The environment
variable of an option is `HOLDOVER_` and its key in capitals, with `_` for everything that is
neither letter nor digit: `HOLDOVER_HEARTBEAT_TIMEOUT="50 s"`. An unknown key, an impossible value
and options that contradict each other are refused at start.

- A **duration** is a number and one of the units `ms`, `s`, `min`, `h`, `d`: `300 ms`.
- A **size** is a number and one of the units `b`, `kb`, `mb`, `gb`, `tb`; a `kb` has 1024 bytes.
- `{home}` is the state directory, `$HOLDOVER_HOME` or else `~/.holdover/local`; `{temp}` is the
  system's directory of temporary files.
- An option marked **job** can also be set by a job for itself, and then wins over the cluster's.
  A job keeps the options that it was submitted with.

## Options

| option | default | type | job | meaning |
|---|---|---|---|---|
"""
_RELATIONS = """
## What must hold between options

"""


def configuration_page() -> str:
    """The Markdown page docs/configuration.md."""
    rows = [
        f"| `{option.key}` | {f'`{option.default}`' if option.default else 'empty'}"
        f" | {option.type.name}: {option.type.allowed}"
        f" | {'job' if option.job_level else ''} | {option.description} |\n"
        for option in OPTIONS.values()
    ]
    relations = [
        f"- `{relation.lesser.key}` {'<=' if relation.or_equal else '<'}"
        f" `{relation.greater.key}`: otherwise {relation.reason}.\n"
        for relation in RELATIONS
    ]
    requirements = [
        f"- `{requirement.switch.key}: true` needs"
        f" {', '.join(f'`{option.key}`' for option in requirement.needed)}; where one of them is"
        " set, the switch must be set too.\n"
        for requirement in REQUIREMENTS
    ]
    return _INTRODUCTION + "".join((*rows, _RELATIONS, *relations, *requirements))
