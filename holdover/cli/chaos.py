"""`holdover chaos`: jobs on a cluster whose processes are killed all the time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdover.cli.command_line import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    AsJson,
    errors_told,
    new_directory,
    run,
    tell,
    until_terminated,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from holdover.cli.chaos_facts import ChaosFacts, ChaosPlan

_LISTED_MAX = 5
_LOG = "chaos.log"


def chaos(
    duration: Annotated[
        str, typer.Option(metavar="TIME", help="How long, such as '90 s' or '30 min'.")
    ] = "5 min",
    seed: Annotated[
        int | None, typer.Option(help="Draws victims, pauses and queries. Default: any.")
    ] = None,
    scale: Annotated[float, typer.Option(help="TPC-H scale factor.")] = 0.25,
    taskmanagers: Annotated[int, typer.Option(min=1, help="Number of TaskManagers.")] = 4,
    shuffle_services: Annotated[
        int, typer.Option(min=0, help="Number of shuffle services, which are killed, too.")
    ] = 0,
    streams: Annotated[int, typer.Option(min=1, help="Jobs side by side.")] = 3,
    directory: Annotated[
        Path | None,
        typer.Option(help="Directory of the cluster, new or empty. Default: a temporary one."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the directory, with logs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run TPC-H queries on a local cluster while its processes are killed every few seconds.

    JobManager, TaskManagers and shuffle services die by `kill -9`, alone or together, and are
    started again at once. Exit code 0 only when each result equals DuckDB's, no job was stuck, no
    finished work ran again, and neither a file nor a process was left.
    """
    from holdover.cli.chaos_facts import ChaosPlan

    with errors_told():
        plan = ChaosPlan(
            _seed(seed),
            _seconds(duration),
            scale,
            taskmanagers,
            shuffle_services=shuffle_services,
            streams=streams,
        )
        facts = _run(plan, directory, keep)
    if as_json:
        write_json(facts.as_json())
    else:
        write_table(("CHAOS", "GOOD" if facts.good else "NOT GOOD"), list(facts.rows()), "")
    if not facts.good:
        raise typer.Exit(EXIT_REFUSED)


def _run(plan: ChaosPlan, wanted: Path | None, keep: bool) -> ChaosFacts:
    import shutil

    from holdover.cli.chaos_run import Chaos
    from holdover.cli.tpch.data import tpch_data

    data = tpch_data(plan.scale, announce=tell)
    place = new_directory(wanted, "--directory", "holdover-chaos-")
    tell(f"seed {plan.seed}; what happens is told in {place / _LOG}")
    good = False
    try:
        with (place / _LOG).open("w", encoding="utf-8") as log:
            chaos = Chaos(plan, data, place, _sayer(log))
            facts = run(until_terminated(chaos.run()))
        good = facts.good
    except typer.Exit as ended:
        good = ended.exit_code == EXIT_INTERRUPTED
        raise
    finally:
        if keep or not good:
            tell(f"logs and what was found are left in {place}")
        else:
            shutil.rmtree(place)
    _tell_problems(facts)
    return facts


def _seed(given: int | None) -> int:
    import secrets

    return secrets.randbelow(1_000_000) if given is None else given


def _seconds(text: str) -> float:
    from holdover.config.values import Duration

    kind = Duration(1.0)
    try:
        return kind.parse(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} must be {kind.allowed}", param_hint="--duration"
        ) from None


def _sayer(log: TextIO) -> Callable[[str], None]:
    """Writes a line with its time, at once: who is interrupted still has it."""
    from datetime import datetime

    def say(text: str) -> None:
        moment = datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")
        log.write(f"{moment}  {text}\n")
        log.flush()

    return say


def _tell_problems(facts: ChaosFacts) -> None:
    for what, texts in facts.problems.items():
        for text in texts[:_LISTED_MAX]:
            tell(f"{what}: {text}")
        if len(texts) > _LISTED_MAX:
            tell(f"{what}: and {len(texts) - _LISTED_MAX} more")
