"""Puts a report together: styles, program and data in one HTML file.

MODEL. Every run is in the summary with its measures; timelines are kept for as many runs as
ATTEMPTS_MAX allows, those with findings first, and the page says which have none.
"""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from simulator.record import RunRecord
from simulator.report.columns import attempt_fates, packed_run
from simulator.report.story import outcome, reproducing_line, run_story

#: Attempts whose timelines are kept, over all runs of a report: some 15 bytes each.
ATTEMPTS_MAX = 600_000
#: In the order in which the browser runs them.
SCRIPTS = (
    "dom.js",
    "read.js",
    "palette.js",
    "rows.js",
    "density.js",
    "bars.js",
    "lanes.js",
    "held.js",
    "overview.js",
    "details.js",
    "timeline.js",
    "keys.js",
    "recovery.js",
    "run_view.js",
    "plots.js",
    "comparison.js",
    "main.js",
)


def write_report(path: Path, records: Sequence[RunRecord]) -> None:
    """Write the report of these runs to `path`, replacing it.

    Raises ValueError if there is no run, OSError if it cannot be written.
    """
    path.write_text(render_report(records), encoding="utf-8")


def render_report(records: Sequence[RunRecord]) -> str:
    """The HTML text of the report of these runs, in the given order. Equal records, equal text.

    Raises ValueError if there is no run.
    """
    if not records:
        raise ValueError("a report needs at least one run; there is none")
    fates = [attempt_fates(record.attempts) for record in records]
    stories = [run_story(record, its) for record, its in zip(records, fates, strict=True)]
    drawn = _drawn(records)
    index = [
        _summary(record, story, i in drawn)
        for i, (record, story) in enumerate(zip(records, stories, strict=True))
    ]
    data = [_script("application/json", "report-index", _json(index))]
    for i in sorted(drawn):
        packed = packed_run(records[i], fates[i], stories[i])
        data.append(_script("application/octet-stream", f"run-{i}", packed))
    scenarios = list(dict.fromkeys(record.scenario for record in records))
    title = f"{', '.join(scenarios[:3])}{' …' if len(scenarios) > 3 else ''} · Holdover"
    parts = {
        "title": html.escape(title),
        "style": _asset("page.css"),
        "fallback": _fallback(records, stories),
        "data": "\n".join(data),
        "program": "\n".join(_asset(name) for name in SCRIPTS),
    }
    page = _asset("page.html")
    for name, text in parts.items():
        before, mark, after = page.partition(f"<!-- {name} -->")
        if not mark:
            raise AssertionError(f"page.html has no place for {name}")
        page = before + text + after
    return page


def _drawn(records: Sequence[RunRecord]) -> frozenset[int]:
    """The runs whose timelines are kept: with findings first, then as given; at least one."""
    left = ATTEMPTS_MAX
    drawn: list[int] = []
    for i in sorted(range(len(records)), key=lambda i: (not records[i].findings, i)):
        attempts = len(records[i].attempts)
        if attempts <= left or not drawn:
            drawn.append(i)
            left -= attempts
    return frozenset(drawn)


def _summary(record: RunRecord, story: Sequence[str], drawn: bool) -> dict[str, Any]:
    return {
        "scenario": record.scenario,
        "world": record.world,
        "seed": record.seed,
        "options": record.options,
        "outcome": outcome(record),
        "findings": len(record.findings),
        "story": list(story),
        "line": reproducing_line(record),
        "measures": dataclasses.asdict(record.measures),
        "attempts": len(record.attempts),
        "workers": len(record.workers),
        "drawn": drawn,
    }


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _script(kind: str, name: str, text: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>'


def _fallback(records: Sequence[RunRecord], stories: Sequence[Sequence[str]]) -> str:
    """What a reader without scripts sees."""
    told = [
        f"<h2>{html.escape(reproducing_line(record))}</h2><p>{html.escape(' '.join(story))}</p>"
        for record, story in zip(records[:20], stories, strict=False)
    ]
    return "".join(told)


def _asset(name: str) -> str:
    return resources.files("simulator.report").joinpath("assets", name).read_text(encoding="utf-8")
