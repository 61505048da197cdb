"""`python -m benchmarks [NAME ...]`: runs benchmarks, prints tables, writes benchmarks/results."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable

from benchmarks import (
    events,
    external_shuffle,
    prediction,
    queries,
    recovery,
    recovery_size,
    scale,
    shuffle_throughput,
    stages,
    tasks,
    tls,
    wide_shuffle,
)
from benchmarks.report import Report

BENCHMARKS: dict[str, Callable[[], Awaitable[Report]]] = {
    "recovery": recovery.run,
    "queries": queries.run,
    "overhead": queries.overhead,
    "shuffle": shuffle_throughput.run,
    "external-shuffle": external_shuffle.run,
    "wide-shuffle": wide_shuffle.run,
    "tasks": tasks.run,
    "events": events.run,
    "event-overhead": events.overhead,
    "prediction": prediction.run,
    "scale": scale.run,
    "stages": stages.run,
    "recovery-size": recovery_size.run,
    "tls": tls.run,
}


async def _run(names: list[str]) -> None:
    for name in names:
        report = await BENCHMARKS[name]()
        report.print()
        print(f"  written to {report.write()}")


def main() -> None:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}")
    # SIGTERM ends it as Ctrl-C does, so that clusters are stopped first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asyncio.run(_run(names))


if __name__ == "__main__":
    main()
