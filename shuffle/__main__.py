"""`python -m shuffle [--config FILE] [-D key=value ...]`: one shuffle service in the foreground."""

from __future__ import annotations

import os
import sys

from holdover.config import Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.runtime.foreground import run_service, run_worker, told_by_signals
from holdover.runtime.real import real_runtime
from holdover.runtime.transport_security import credential_files
from shuffle.flight_servers import FlightPartitionServers
from shuffle.service_process import ShuffleServiceProcess


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM, SIGINT, or until it is drained (exit code 0)."""
    return run_service("shuffle", str(__doc__), arguments, _serve)


async def _serve(configuration: Configuration) -> int:
    credentials = credential_files(configuration)
    runtime = real_runtime(
        partition_servers=FlightPartitionServers(credentials), credentials=credentials
    )
    leader_service = configured_leader_service(runtime, configuration)
    service = ShuffleServiceProcess(runtime, configuration, leader_service)
    return await run_worker(service, told_by_signals())


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Flight waits, without end, for a task that has begun to put and sends nothing: it would keep
    # this process from ending. All that is to be kept is on the disk by now.
    os._exit(exit_code)
