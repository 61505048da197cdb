"""A service in the foreground: its command line, its configuration, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from holdover import config as options
from holdover.config import Configuration
from holdover.errors import HoldoverError
from holdover.runtime import log

EXIT_CANNOT_START = 1
#: A background loop ended that must not.
EXIT_LOOP_ENDED = 70


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
