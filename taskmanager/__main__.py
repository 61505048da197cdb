"""`python -m taskmanager [--config FILE] [-D key=value ...]`: one TaskManager in the foreground."""

from __future__ import annotations

import sys

from holdover.config import Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.runtime.foreground import run_service, run_worker, told_by_signals
from holdover.runtime.real import real_runtime
from holdover.runtime.transport_security import credential_files
from shuffle.flight_servers import FlightPartitionServers
from taskmanager.process import TaskManager


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT (exit code 0). What cannot start says why in one line."""
    return run_service("taskmanager", str(__doc__), arguments, _serve)


async def _serve(configuration: Configuration) -> int:
    credentials = credential_files(configuration)
    runtime = real_runtime(
        partition_servers=FlightPartitionServers(credentials), credentials=credentials
    )
    leader_service = configured_leader_service(runtime, configuration)
    taskmanager = TaskManager(runtime, configuration, leader_service)
    return await run_worker(taskmanager, told_by_signals())


if __name__ == "__main__":
    sys.exit(main())
