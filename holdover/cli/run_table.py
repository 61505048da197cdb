"""What is said about the runs of a scenario, simulated or real: findings first, then figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from holdover.cli.command_line import tell, write_table
from simulator.record import RunRecord
from simulator.report.columns import attempt_fates
from simulator.report.story import outcome, reproducing_line, run_story
from simulator.sweep import MEASURES, seconds_text, sweep_rows

#: More runs than these are summed up.
RUNS_LISTED_MAX = 20
_FINDINGS_TOLD_MAX = 5
_TEXT_LINES_MAX = 12


def tell_runs(records: Sequence[RunRecord], report: Path | None, json_file: Path | None) -> None:
    """All that a command says about its runs, and the files that it was asked for.

    JSON to standard output (`-`) is all that stands there.
    """
    if report is not None:
        from simulator.report import write_report

        write_report(report, records)
        tell(f"the report is {report}")
    if json_file is not None:
        text = "".join(record.to_json() + "\n" for record in records)
        if str(json_file) == "-":
            typer.echo(text, nl=False)
            return
        json_file.write_text(text, encoding="utf-8")
    write_trace(records)
    write_findings(records)
    write_runs(records)


def write_findings(records: Sequence[RunRecord]) -> None:
    """What did not hold, and for each such run the one line that makes it again."""
    for record in records:
        if not record.findings:
            continue
        count = len(record.findings)
        typer.echo(f"{count} finding{'' if count == 1 else 's'} with {_run_name(record)}:")
        for finding in record.findings[:_FINDINGS_TOLD_MAX]:
            lines = finding.text.strip().splitlines() or [""]
            typer.echo(f"  at {finding.at_s:.3f} s  {finding.invariant}: {lines[0]}")
            shown = lines[1:][-_TEXT_LINES_MAX:]
            for line in shown:
                typer.echo(f"    {line}")
        if len(record.findings) > _FINDINGS_TOLD_MAX:
            typer.echo(f"  ... and {len(record.findings) - _FINDINGS_TOLD_MAX} more")
        typer.echo(f"  again: {reproducing_line(record)}")


def write_runs(records: Sequence[RunRecord]) -> None:
    """One run in sentences, a line for each of some, a summary of many; and a line for each value
    where options were swept."""
    if len(records) == 1:
        _write_one(records[0])
    elif any(record.options for record in records):
        _write_sweep(records)
    elif len(records) <= RUNS_LISTED_MAX:
        _write_each(records)
    else:
        _write_summary(records)


def write_trace(records: Sequence[RunRecord]) -> None:
    """Every event of the runs that kept them."""
    for record in records:
        for line in record.trace:
            typer.echo(line.rstrip("\n"))


def _write_one(record: RunRecord) -> None:
    for sentence in run_story(record, attempt_fates(record.attempts)):
        typer.echo(sentence)
    rows: list[list[object]] = [
        [measure.title, measure.text(figure)]
        for measure in MEASURES
        if (figure := measure.of(record)) is not None
    ]
    write_table(["measure", _run_name(record)], rows, "nothing was measured")
    if record.digest:
        typer.echo(
            f"trace {record.digest[:16]} of {record.events:,} events in"
            f" {seconds_text(record.duration_s)} of cluster time, {seconds_text(record.wall_s)}"
            " of real time"
        )


def _run_name(record: RunRecord) -> str:
    options = "".join(f", {key}={value}" for key, value in record.options.items())
    return f"seed {record.seed}{options}"


def _write_each(records: Sequence[RunRecord]) -> None:
    titles = ["seed", "outcome", *(measure.title for measure in MEASURES), "real time"]
    rows: list[list[object]] = []
    for record in records:
        figures = [
            "-" if (figure := measure.of(record)) is None else measure.text(figure)
            for measure in MEASURES
        ]
        rows.append([record.seed, outcome(record), *figures, seconds_text(record.wall_s)])
    write_table(titles, rows, "no runs")


def _write_summary(records: Sequence[RunRecord]) -> None:
    failed = sum(bool(record.findings) for record in records)
    events = sum(record.events for record in records)
    simulated_s = sum(record.duration_s for record in records)
    typer.echo(
        f"{len(records)} runs, {failed} with findings; {seconds_text(simulated_s)} of cluster time"
        f" and {events:,} events; {seconds_text(sum(r.wall_s for r in records))} of real time"
    )
    rows: list[list[object]] = []
    for measure in MEASURES:
        figures = [figure for record in records if (figure := measure.of(record)) is not None]
        if figures:
            median, worst = statistics.median(figures), max(figures)
            rows.append([measure.title, measure.text(median), measure.text(worst)])
    write_table(["", "median", "worst"], rows, "nothing was measured")


def _write_sweep(records: Sequence[RunRecord]) -> None:
    rows: list[list[Any]] = []
    swept = sweep_rows(records)
    for row in swept:
        failed = f"{row.findings} of {row.runs}" if row.findings else "none"
        rows.append([*row.options.values(), *row.cells(), failed])
    titles = [*swept[0].options, *(measure.title for measure in MEASURES), "runs with findings"]
    write_table(titles, rows, "no runs")
