"""`holdover run`: a scenario on real processes of this machine, instead of a simulated cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdover.cli.command_line import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    errors_told,
    new_directory,
    run,
    tell,
    until_terminated,
)

if TYPE_CHECKING:
    from simulator.record import RunRecord
    from simulator.scenario import Scenario


def run_scenario(
    file: Annotated[Path, typer.Argument(metavar="SCENARIO", help="YAML file of the scenario.")],
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Decides what the scenario leaves to chance.")
    ] = None,
    times: Annotated[
        int, typer.Option(min=1, max=100, help="Runs, one after another, with the same seed.")
    ] = 1,
    report: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a report of the runs.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the records of the runs; - is stdout."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run in this directory, and leave it: logs, output."),
    ] = None,
) -> None:
    """Run a scenario on local processes, and make its faults with signals.

    The same file can be given to `holdover simulate`; the record and the report have the same
    form, so that a prediction can be held against what happens. Tasks of workloads sleep, so that
    many fit on one machine. Exit code 1 when something did not hold: rows lost or doubled, a job
    that did not finish, files left behind.
    """
    from holdover.cli.real_faults import check_runnable
    from simulator.scenario_file import load_scenario

    with errors_told():
        scenario = load_scenario(str(file))
        check_runnable(scenario)
        for note in _differences(scenario):
            tell(note)
        place = new_directory(keep, "--keep", "holdover-run-")
        used_seed = scenario.seed if seed is None else seed
        records = [
            _run_once(scenario, used_seed, place / f"run-{number}") for number in range(times)
        ]
        for record in records:
            record.scenario = str(file)  # what a person calls it, as `holdover simulate` has it
        if keep is None:
            shutil.rmtree(place)
        _write(records, report, json_file)
    if any(record.findings for record in records):
        raise typer.Exit(EXIT_REFUSED)


def _differences(scenario: Scenario) -> list[str]:
    """What the simulation knows of the scenario and local processes do not."""
    spec = scenario.cluster
    notes = []
    if spec.racks > 1:
        notes.append("racks are only names here: all processes run on this machine")
    if spec.leader == "service":
        notes.append(
            "the leader is elected by a locked file here, which is free as soon as its process is"
            " gone: `cluster: leader: file` predicts that"
        )
    if {"network", "disk"} & scenario.model_fields_set:
        notes.append("network and disk are this machine's, not those that the scenario describes")
    return notes


def _run_once(scenario: Scenario, seed: int, place: Path) -> RunRecord:
    from holdover.cli.real_run import RealRun

    place.mkdir(parents=True)
    try:
        return run(until_terminated(RealRun(scenario, seed, place, tell).run()))
    except typer.Exit as ended:
        if ended.exit_code != EXIT_INTERRUPTED:
            tell(f"logs are left in {place}")
        raise


def _write(records: list[RunRecord], report: Path | None, json_file: Path | None) -> None:
    from holdover.cli.run_table import write_findings, write_runs

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
    write_findings(records)
    write_runs(records)
