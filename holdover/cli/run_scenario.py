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
    from holdover.cli.run_table import tell_runs
    from simulator.scenario_file import load_scenario

    with errors_told():
        scenario = load_scenario(str(file))
        check_runnable(scenario)
        for note in _differences(scenario):
            tell(note)
        used_seed = scenario.seed if seed is None else seed
        records = _run_all(scenario, used_seed, times, keep)
        for record in records:
            record.scenario = str(file)  # what a person calls it, as `holdover simulate` has it
        tell_runs(records, report, json_file)
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


def _run_all(scenario: Scenario, seed: int, times: int, keep: Path | None) -> list[RunRecord]:
    from holdover.cli.real_run import RealRun

    place = new_directory(keep, "--keep", "holdover-run-")
    left = keep is not None
    records = []
    try:
        for number in range(times):
            directory = place / f"run-{number}"
            directory.mkdir()
            real_run = RealRun(scenario, seed, directory, tell)
            records.append(run(until_terminated(real_run.run())))
            left = left or bool(records[-1].findings)
    except typer.Exit as ended:
        left = left or ended.exit_code != EXIT_INTERRUPTED
        raise
    finally:
        if left:
            tell(f"logs and output are left in {place}")
        else:
            shutil.rmtree(place)
    return records
