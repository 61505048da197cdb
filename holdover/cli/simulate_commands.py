"""`holdover simulate`: a scenario, or what seeds draw, in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdover.cli.command_line import EXIT_REFUSED, errors_told
from holdover.errors import ConfigurationError

if TYPE_CHECKING:
    from holdover.cli.simulated_runs import RunOrder
    from simulator.record import RunRecord
    from simulator.scenario import Scenario

_SEEDS_MAX = 10_000_000
_TRACE_LINES_MAX = 1_000_000


def simulate(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO|swarm|swarm-double|swarm-external",
            help="YAML file of the scenario; `swarm` draws one per seed, `swarm-double` one whose"
            " faults strike while the cluster recovers from others, `swarm-external` one whose"
            " jobs' output goes to shuffle services.",
        ),
    ],
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Decides all chance; the scenario's own, or else 0."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="A..B", help="Run once with each of these seeds.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, metavar="K", help="Runs at a time. Default: one per CPU."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION=V1,V2,...", help="Run with each value; for up to two options"),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a report of the runs.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the records, a line each; - is stdout."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print every event of the run.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the scenario, drawn or read, and do not run it.")
    ] = False,
) -> None:
    """Run a scenario on a simulated cluster: the same services, in virtual time.

    The same seed gives the same run. Exit code 1 when an invariant did not hold; what did not is
    told first, with the one line that makes that run again.
    """
    from holdover.cli.run_table import tell_runs
    from holdover.cli.simulated_runs import run_all
    from simulator.swarm import SWARMS

    with errors_told():
        chosen = _seeds(seed, seeds)
        described = None if scenario in SWARMS else _load(scenario)
        if show:
            _show(scenario, described, chosen or [0])
            return
        orders = _orders(scenario, described, chosen, sweep or [])
        if trace and len(orders) > 1:
            raise ConfigurationError("--trace shows one run: name its seed and options")
        whole = report is not None or json_file is not None or len(orders) == 1
        trace_lines_max = _TRACE_LINES_MAX if trace else 0
        workers = min(jobs or os.cpu_count() or 1, len(orders))
        with _progress(len(orders)) as ended:
            records = run_all(
                orders, workers, whole=whole, trace_lines_max=trace_lines_max, ended=ended
            )
        tell_runs(records, report, json_file)
    if any(record.findings for record in records):
        raise typer.Exit(EXIT_REFUSED)


def _seeds(seed: int | None, seeds: str | None) -> list[int]:
    """The seeds that were asked for; none when none was."""
    if seeds is None:
        return [] if seed is None else [seed]
    if seed is not None:
        raise ConfigurationError("--seed and --seeds: give one of them")
    first, separator, last = seeds.partition("..")
    if not (separator and first.isascii() and last.isascii() and first.isdigit()):
        raise ConfigurationError(f"--seeds {seeds}: write it as --seeds 1..100")
    if not last.isdigit() or not 0 <= int(last) - int(first) < _SEEDS_MAX:
        raise ConfigurationError(f"--seeds {seeds}: the second must not be below the first")
    return list(range(int(first), int(last) + 1))


def _load(path: str) -> Scenario:
    from simulator.scenario_file import load_scenario

    return load_scenario(path)


def _show(name: str, scenario: Scenario | None, seeds: list[int]) -> None:
    from simulator.scenario_file import scenario_text
    from simulator.swarm import draw_scenario

    shown = [scenario] if scenario is not None else [draw_scenario(seed, name) for seed in seeds]
    typer.echo("---\n".join(scenario_text(one) for one in shown), nl=False)


def _orders(
    name: str, scenario: Scenario | None, seeds: list[int], sweep: list[str]
) -> list[RunOrder]:
    """Every run, those of one combination of options together."""
    from holdover.cli.simulated_runs import RunOrder
    from simulator.swarm import draw_scenario
    from simulator.sweep import combinations, swept_options

    used = seeds or [0 if scenario is None else scenario.seed]
    checked = draw_scenario(used[0], name) if scenario is None else scenario
    return [
        RunOrder(name, scenario, seed, options)
        for options in combinations(swept_options(sweep), checked)
        for seed in used
    ]


@contextmanager
def _progress(total: int) -> Iterator[Callable[[RunRecord], None]]:
    """A bar where a person looks at a terminal. Of many runs, one that finds something is told as
    soon as it has ended, so that an interrupted search was not in vain."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    if total == 1:
        yield lambda _: None
        return
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    columns = (BarColumn(), MofNCompleteColumn(), Remaining(), TextColumn("{task.description}"))
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        bar = progress.add_task("no findings", total=total)
        failed = 0

        def ended(record: RunRecord) -> None:
            nonlocal failed
            failed += bool(record.findings)
            told = f"{failed} runs with findings" if failed else "no findings"
            progress.update(bar, advance=1, description=told)
            if record.findings:
                console.print(_found(record))

        yield ended


def _found(record: RunRecord) -> str:
    from simulator.report.story import reproducing_line

    return f"{reproducing_line(record)}  # {record.findings[0].invariant}"
