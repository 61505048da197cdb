"""`holdover demo`: a cluster loses its JobManager in the middle of a job, and continues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdover.cli.command_line import (
    EXIT_INTERRUPTED,
    AsJson,
    errors_told,
    new_directory,
    run,
    tell,
    until_terminated,
    write_json,
)

if TYPE_CHECKING:
    from holdover.cli.demo_run import Facts
    from holdover.cli.demo_screen import DemoScreen
    from holdover.cli.tpch.query import Query

# Some 10 to 30 seconds of work on two cores.
_SCALE = 10.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def demo(
    scale: Annotated[
        float, typer.Option(help="TPC-H scale factor: larger is more data and a longer job.")
    ] = _SCALE,
    query_number: Annotated[
        int, typer.Option("--query", metavar="N", help="TPC-H query: 1, 3, 5, 9 or 18.")
    ] = 9,
    directory: Annotated[
        Path | None,
        typer.Option(help="Directory of the cluster, new or empty. Default: a temporary one."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the directory, with logs and result.")
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="Secure all connections with certificates of its own.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a TPC-H query on a local cluster, kill its JobManager half way, and check the result.

    Exit code 0 only when the result equals DuckDB's and no finished subtask ran again.
    """
    from holdover.cli.tpch.queries import QUERIES

    if query_number not in QUERIES:
        known = ", ".join(map(str, QUERIES))
        tell(f"query {query_number} is not among those written for Holdover: {known}")
        raise typer.Exit(2)
    with errors_told():
        facts = _demonstrate(QUERIES[query_number], scale, directory, keep, tls, as_json)
    if as_json:
        write_json(facts.as_json())
    if not facts.good:
        raise typer.Exit(1)


def _demonstrate(
    query: Query, scale: float, wanted: Path | None, keep: bool, tls: bool, quiet: bool
) -> Facts:
    import shutil

    from holdover.cli.command_line import human_bytes
    from holdover.cli.demo_run import SLOTS, TASKMANAGERS, Demonstration
    from holdover.cli.demo_screen import DemoScreen
    from holdover.cli.tpch.data import tpch_data

    screen = DemoScreen(quiet=quiet)
    screen.title(
        f"One JobManager, {TASKMANAGERS} TaskManagers with {SLOTS} slots each,"
        " and a job that outlives the JobManager"
    )
    data = tpch_data(scale, announce=tell)
    screen.step(
        "Data",
        f"TPC-H at scale factor {scale:g}, {human_bytes(data.bytes())} of Parquet"
        f" in {data.directory}",
    )
    place = new_directory(wanted, "--directory", "holdover-demo-")
    try:
        options = _certificates(place, screen) if tls else {}
        facts = run(until_terminated(Demonstration(query, data, place, screen, options).run()))
    except typer.Exit as ended:
        keep = keep or ended.exit_code != EXIT_INTERRUPTED
        raise
    finally:
        if keep:
            tell(f"logs, ledger and result are left in {place}")
        else:
            shutil.rmtree(place)
    screen.end(facts.good, _summary(facts))
    return facts


def _certificates(place: Path, screen: DemoScreen) -> dict[str, str]:
    """Makes some; returns the options that use them."""
    from holdover.cli.certificate_authority import make_certificates, security_options

    directory = place / "certificates"
    make_certificates(directory, (), days=1)
    screen.step("TLS", "every connection is secured, and both sides show a certificate")
    return security_options(directory)


def _summary(facts: Facts) -> str:
    finished = len(facts.finished_before_kill)
    rerun = len(facts.rerun_finished)
    if facts.good:
        return (
            f"All {finished} finished subtasks outlived the JobManager; only what was running ran"
            f" again. The job took {facts.total_s:.1f} s with its failover."
        )
    if rerun:
        return f"{rerun} of {finished} subtasks ran again although they had finished."
    return "The result is not DuckDB's."
