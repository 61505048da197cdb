"""`python -m jobmanager [--config FILE] [-D key=value ...]`: one JobManager in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from holdover import __version__
from holdover import config as options
from holdover.config import Configuration
from holdover.errors import HoldoverError
from holdover.runtime import log
from holdover.runtime.real import process_age_s, real_runtime
from jobmanager.job_manager import FatalError, JobManager

EXIT_CANNOT_START = 1
EXIT_LOOP_ENDED = 70

_log = log.Log(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT (exit code 0). What cannot start says why in one line."""
    parser = argparse.ArgumentParser(prog="jobmanager", description=__doc__)
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
        log.configure("jobmanager", configuration.get(options.LOG_LEVEL).lower())
        asyncio.run(_serve(configuration))
    except FatalError as error:
        _log.error("jobmanager ends", exception=error)
        return EXIT_LOOP_ENDED
    except (HoldoverError, OSError) as error:
        sys.stderr.write(f"jobmanager: {_text(error)}\n")
        return EXIT_CANNOT_START
    return 0


async def _serve(configuration: Configuration) -> None:
    runtime = real_runtime()
    started_s = runtime.clock.monotonic_s() - process_age_s()
    jobmanager = JobManager(runtime, configuration, __version__, started_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, jobmanager.stop)
    await jobmanager.run()


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
