"""`python -m shuffle [--config FILE] [-D key=value ...]`: one shuffle service in the foreground."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from holdover.config import Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.runtime.foreground import EXIT_LOOP_ENDED, run_service
from holdover.runtime.log import Log
from holdover.runtime.real import real_runtime
from holdover.runtime.transport_security import credential_files
from shuffle.flight_servers import FlightPartitionServers
from shuffle.service_process import ShuffleServiceProcess

_log = Log(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM, SIGINT, or until it is drained (exit code 0)."""
    return run_service("shuffle", str(__doc__), arguments, _serve)


async def _serve(configuration: Configuration) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    credentials = credential_files(configuration)
    runtime = real_runtime(
        partition_servers=FlightPartitionServers(credentials), credentials=credentials
    )
    leader_service = configured_leader_service(runtime, configuration)
    process = ShuffleServiceProcess(runtime, configuration, leader_service)
    told = asyncio.ensure_future(stop.wait())
    reason = "it could not start"
    try:
        await process.start()
        stopped = asyncio.ensure_future(process.stopped())
        await asyncio.wait([told, stopped], return_when=asyncio.FIRST_COMPLETED)
        reason = stopped.result() if stopped.done() else "it was told to stop"
        stopped.cancel()
    finally:
        told.cancel()
        await process.stop(reason)
    if process.failed.done() and (failure := process.failed.exception()) is not None:
        _log.error("shuffle service ends", exception=failure)
        return EXIT_LOOP_ENDED
    return 0


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Flight waits, without end, for a task that has begun to put and sends nothing: it would keep
    # this process from ending. All that is to be kept is on the disk by now.
    os._exit(exit_code)
