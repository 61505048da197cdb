"""A sweep: the same scenario under each value of one or two options, and what a user weighs.

Pure: it makes the combinations before the runs and the rows of the table after them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from holdover.errors import ConfigurationError
from simulator.model import FieldRefused
from simulator.record import RunRecord
from simulator.scenario import Scenario, check_options

SWEPT_OPTIONS_MAX = 2
VALUES_MAX = 50


@dataclass(frozen=True, slots=True)
class SweptOption:
    """An option and the texts that it gets, one after the other."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of the table: a figure of a run, and how it is written."""

    title: str
    of: Callable[[RunRecord], float | None]
    text: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """All runs under one combination of values."""

    options: Mapping[str, str]
    runs: int
    findings: int
    #: By measure; None where no run has the figure.
    medians: tuple[float | None, ...]
    worst: tuple[float | None, ...]

    def cells(self) -> list[str]:
        """The figures as text: the median, and the worst where it is another."""
        return [
            _cell(measure, median, worst)
            for measure, median, worst in zip(MEASURES, self.medians, self.worst, strict=True)
        ]


def swept_options(texts: Sequence[str]) -> list[SweptOption]:
    """Reads "key=value,value" texts; raises ConfigurationError."""
    swept: list[SweptOption] = []
    for text in texts:
        key, separator, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split(","))
        if not separator or not key.strip() or not all(values):
            raise ConfigurationError(f"--sweep {text}: write it as --sweep option=value,value,...")
        if len(values) > VALUES_MAX:
            raise ConfigurationError(f"--sweep {key.strip()}: more than {VALUES_MAX} values")
        if any(option.key == key.strip() for option in swept):
            raise ConfigurationError(f"--sweep {key.strip()} is given twice: list all its values")
        swept.append(SweptOption(key.strip(), tuple(dict.fromkeys(values))))
    if len(swept) > SWEPT_OPTIONS_MAX:
        raise ConfigurationError(f"at most {SWEPT_OPTIONS_MAX} options can be swept at a time")
    return swept


def combinations(swept: Sequence[SweptOption], scenario: Scenario) -> list[dict[str, str]]:
    """Every combination of values, the last option varying fastest; one empty one for no option.

    Raises ConfigurationError for a combination that the scenario's cluster would refuse.
    """
    combined = [
        dict(zip([option.key for option in swept], values, strict=True))
        for values in product(*(option.values for option in swept))
    ]
    for options in combined:
        try:
            check_options({**scenario.options, **options})
        except FieldRefused as error:
            told = ", ".join(f"{key}={value}" for key, value in options.items())
            key = str(error.path[0]) if error.path else ""
            problem = str(error) if str(error).startswith(key) else f"{key} {error}"
            raise ConfigurationError(f"--sweep {told}: {problem}", key=key) from None
    return combined


def sweep_rows(records: Sequence[RunRecord]) -> list[SweepRow]:
    """A row for each combination of swept values, in the order of their first run."""
    groups: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(tuple(record.options.items()), []).append(record)
    return [_row(dict(options), runs) for options, runs in groups.items()]


def _row(options: Mapping[str, str], runs: Sequence[RunRecord]) -> SweepRow:
    medians: list[float | None] = []
    worst: list[float | None] = []
    for measure in MEASURES:
        figures = [figure for run in runs if (figure := measure.of(run)) is not None]
        medians.append(statistics.median(figures) if figures else None)
        worst.append(max(figures, default=None))
    findings = sum(bool(run.findings) for run in runs)
    return SweepRow(options, len(runs), findings, tuple(medians), tuple(worst))


def _cell(measure: Measure, median: float | None, worst: float | None) -> str:
    if median is None or worst is None:
        return "-"
    text, worst_text = measure.text(median), measure.text(worst)
    return text if text == worst_text else f"{text} (worst {worst_text})"


def seconds_text(seconds: float) -> str:
    """`2.4 s`, `3 min 20 s`, `1 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 7_200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"


def bytes_text(count: float) -> str:
    """`3.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _count_text(count: float) -> str:
    return f"{count:g}"


#: What a user weighs; lower is better in all of them.
MEASURES: tuple[Measure, ...] = (
    Measure("finish", lambda run: run.measures.finish_s, seconds_text),
    Measure("recovery", lambda run: run.measures.recovery_s, seconds_text),
    Measure("work rerun", lambda run: run.measures.work_rerun_s, seconds_text),
    Measure("rerun", lambda run: run.measures.subtasks_rerun, _count_text),
    Measure("finished rerun", lambda run: run.measures.finished_rerun, _count_text),
    Measure("partitions", lambda run: run.measures.partitions_held_max, _count_text),
    Measure("bytes held", lambda run: run.measures.bytes_retained_max, bytes_text),
)
