"""A process that passes for a JobManager, TaskManager or shuffle service: `python -m ... -D k=v`.

The JobManager says that three TaskManagers and two shuffle services are registered. The TaskManager
has a child process. Each ends at once with a message when its options hold `log.level=ERROR`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

from holdover.runtime.real import real_runtime
from holdover.v1.jobmanager_pb2 import ShuffleServiceStatus
from tests.doubles.jobmanager_double import JobManagerDouble, Jobs


async def main(options: dict[str, str]) -> None:
    """Run until SIGTERM."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    print("started", flush=True)
    if options.get("log.level") == "ERROR":
        sys.exit("refuses to start")
    if "taskmanager.resource-id" in options:
        code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)  # noqa: ASYNC220
        await terminated.wait()
        return
    if "shuffle.service.resource-id" in options:
        await terminated.wait()
        return
    jobs = Jobs(shuffle_services=[ShuffleServiceStatus(), ShuffleServiceStatus()])
    port = int(options["jobmanager.rpc.port"])
    async with JobManagerDouble(real_runtime(), jobs, port=port):
        await terminated.wait()


if __name__ == "__main__":
    pairs = [argument.partition("=") for argument in sys.argv[1:] if argument != "-D"]
    asyncio.run(main({key: value for key, _, value in pairs}))
