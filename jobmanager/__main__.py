"""`python -m jobmanager [--config FILE] [-D key=value ...]`: one JobManager in the foreground."""

from __future__ import annotations

import asyncio
import signal
import sys

from holdover import __version__
from holdover.config import Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.runtime.foreground import EXIT_LOOP_ENDED, run_service
from holdover.runtime.log import Log
from holdover.runtime.real import process_age_s, real_runtime
from holdover.runtime.transport_security import credential_files
from jobmanager.job_manager import FatalError, JobManager

_log = Log(__name__)


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT (exit code 0). What cannot start says why in one line."""
    return run_service("jobmanager", str(__doc__), arguments, _serve)


async def _serve(configuration: Configuration) -> int:
    runtime = real_runtime(credentials=credential_files(configuration))
    started_s = runtime.clock.monotonic_s() - process_age_s()
    leader_service = configured_leader_service(runtime, configuration)
    jobmanager = JobManager(runtime, configuration, __version__, started_s, leader_service)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, jobmanager.stop)
    try:
        await jobmanager.run()
    except FatalError as error:
        _log.error("jobmanager ends", exception=error)
        return EXIT_LOOP_ENDED
    return 0


if __name__ == "__main__":
    sys.exit(main())
