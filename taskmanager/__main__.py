"""`python -m taskmanager [--config FILE] [-D key=value ...]`: one TaskManager in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from typing import Any

from holdover import config as options
from holdover.config import Configuration
from holdover.errors import HoldoverError
from holdover.runtime import log
from holdover.runtime.real import real_runtime
from shuffle.flight import FlightPartitionServers
from taskmanager.process import TaskManager

EXIT_CANNOT_START = 1
EXIT_LOOP_ENDED = 70

_log = log.Log(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT (exit code 0). What cannot start says why in one line."""
    parser = argparse.ArgumentParser(prog="taskmanager", description=__doc__)
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
        log.configure("taskmanager", configuration.get(options.LOG_LEVEL).lower())
        return asyncio.run(_serve(configuration))
    except (HoldoverError, OSError) as error:
        sys.stderr.write(f"taskmanager: {_text(error)}\n")
        return EXIT_CANNOT_START


async def _serve(configuration: Configuration) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runtime = real_runtime(partition_servers=FlightPartitionServers())
    taskmanager = TaskManager(runtime, configuration)
    stopping = asyncio.ensure_future(stop.wait())
    reason = "it could not start"
    try:
        await taskmanager.start()
        ends: list[asyncio.Future[Any]] = [stopping, taskmanager.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        reason = "it was told to stop" if stopping.done() else "a background loop has ended"
    finally:
        stopping.cancel()
        await taskmanager.stop(reason)
    if taskmanager.failed.done() and (failure := taskmanager.failed.exception()) is not None:
        _log.error("taskmanager ends", exception=failure)
        return EXIT_LOOP_ENDED
    return 0


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
