"""`python -m taskmanager [--config FILE] [-D key=value ...]`: one TaskManager in the foreground."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from holdover.config import Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.runtime.foreground import EXIT_LOOP_ENDED, run_service
from holdover.runtime.log import Log
from holdover.runtime.real import real_runtime
from holdover.runtime.transport_security import credential_files
from shuffle.flight_servers import FlightPartitionServers
from taskmanager.process import TaskManager

_log = Log(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT (exit code 0). What cannot start says why in one line."""
    return run_service("taskmanager", str(__doc__), arguments, _serve)


async def _serve(configuration: Configuration) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    credentials = credential_files(configuration)
    runtime = real_runtime(
        partition_servers=FlightPartitionServers(credentials), credentials=credentials
    )
    leader_service = configured_leader_service(runtime, configuration)
    taskmanager = TaskManager(runtime, configuration, leader_service)
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


if __name__ == "__main__":
    sys.exit(main())
