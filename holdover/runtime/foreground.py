"""A service in the foreground: its command line, its configuration, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from holdover import config as options
from holdover.config import Configuration
from holdover.errors import HoldoverError
from holdover.runtime import log

_log = log.Log(__name__)

EXIT_CANNOT_START = 1
#: A background loop ended that must not.
EXIT_LOOP_ENDED = 70


class WorkerProcess(Protocol):
    """A worker with everything around it."""

    #: Gets an exception when a background loop ended that must not.
    failed: asyncio.Future[None]

    async def start(self) -> None:
        """Open everything. When it raises, `stop` closes what was opened."""

    async def stopped(self) -> str:
        """Wait until there is a reason in itself to end; the reason."""

    async def stop(self, reason: str) -> None:
        """Leave the cluster and close everything."""


def told_by_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told


async def run_worker(worker: WorkerProcess, told: asyncio.Event) -> int:
    """Run until it is told to end, or until the worker itself has a reason to; the exit code."""
    reason = "it could not start"
    try:
        await worker.start()
        waits = [
            stopped := asyncio.ensure_future(worker.stopped()),
            asyncio.ensure_future(told.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        reason = stopped.result() if stopped.done() else "it was told to stop"
        for wait in waits:
            wait.cancel()
    finally:
        await worker.stop(reason)
    if worker.failed.done() and (failure := worker.failed.exception()) is not None:
        _log.error("worker ends", exception=failure)
        return EXIT_LOOP_ENDED
    return 0


def run_service(
    name: str,
    description: str,
    arguments: list[str] | None,
    serve: Callable[[Configuration], Coroutine[Any, Any, int]],
) -> int:
    """Run `serve` to its end; the exit code. What cannot start says why in one line.

    Arguments are `--config FILE` and any number of `-D key=value`; None means those of the process.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--config", metavar="FILE", help="YAML file with options")
    parser.add_argument(
        "-D",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="one option; may be repeated",
    )
    parsed = parser.parse_args(arguments)

    try:
        configuration = Configuration.load(parsed.config, os.environ, parsed.overrides)
        log.configure(name, configuration.get(options.LOG_LEVEL).lower())
        return asyncio.run(serve(configuration))
    except (HoldoverError, OSError) as error:
        sys.stderr.write(f"{name}: {_text(error)}\n")
        return EXIT_CANNOT_START


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)
