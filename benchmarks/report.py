"""What a benchmark hands back: samples, ratios and goals; as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"


@dataclass(slots=True)
class Series:
    """Samples of one quantity, in the order in which they were taken."""

    name: str
    unit: str
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(self.samples)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that comes out of series, and what it should be.

    Attributes:
        name: "Q9: recovery enabled / disabled".
        value: what was measured.
        goal: what it should be at most, or at least with `at_least`; None when there is none.
    """

    name: str
    value: float
    goal: float | None = None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """The goal, and whether it is met."""
        if self.goal is None:
            return ""
        met = self.value >= self.goal if self.at_least else self.value <= self.goal
        sign = ">=" if self.at_least else "<="
        return f"goal {sign} {self.goal:g}: {'met' if met else 'MISSED'}"


@dataclass(slots=True)
class Report:
    """The outcome of one benchmark."""

    name: str
    about: str
    series: list[Series] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """One more figure, with its goal if it has one."""
        goal = at_most if at_least is None else at_least
        self.figures.append(Figure(name, value, goal, at_least is not None))

    def print(self) -> None:
        """As text, for people."""
        print(f"\n{self.name}: {self.about}")
        for series in self.series:
            low, high = min(series.samples), max(series.samples)
            print(
                f"  {series.name:<44} {series.median:>10.3f} {series.unit:<8}"
                f" ({low:.3f} to {high:.3f}, {len(series.samples)} samples)"
            )
        for figure in self.figures:
            print(f"  {figure.name:<44} {figure.value:>10.3f} {'':<8} {figure.verdict}".rstrip())
        for note in self.notes:
            print(f"  note: {note}")

    def write(self) -> Path:
        """As JSON, under benchmarks/results."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        document = {
            **asdict(self),
            "medians": {series.name: series.median for series in self.series},
            "machine": {
                "cores": os.cpu_count(),
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "system": platform.platform(),
                "python": platform.python_version(),
            },
            "load_average": os.getloadavg(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        return path


def ratio(numerator: Series, denominator: Series) -> float:
    """The median of the ratios of pairs that were measured one after the other."""
    pairs = zip(numerator.samples, denominator.samples, strict=True)
    return median(above / below for above, below in pairs)
