"""A JobManager or a TaskManager whose background loops can be made to raise, one by one.

`python -m ... -D key=value ...`. A file in the directory that the environment names, below one for
the process, makes the loop raise whose name begins like the file's; that takes the file away.
Garbage is collected all the time, so that a task which nobody holds would be gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import jobmanager.__main__
import taskmanager.__main__
from holdover.runtime.supervisor import RestartPolicy, Supervisor

DIRECTORY_VARIABLE = "_HOLDOVER_FAILING_LOOPS"
POLL_S = 0.02
GC_INTERVAL_S = 0.01

_collectors: list[asyncio.Task[None]] = []


class MadeToFail(Exception):
    """The test wants it."""


def _process_name() -> str:
    """`jobmanager`, or the resource id of the TaskManager."""
    key = "taskmanager.resource-id="
    names = [word.removeprefix(key) for word in sys.argv if word.startswith(key)]
    return names[0] if names else "jobmanager"


async def _until_told(name: str) -> None:
    orders = Path(os.environ[DIRECTORY_VARIABLE]) / _process_name()
    while True:
        for order in orders.glob("*"):
            if name.startswith(order.name):
                order.unlink()
                return
        await asyncio.sleep(POLL_S)


async def _collect_garbage() -> None:
    gc.freeze()
    while True:
        gc.collect()
        await asyncio.sleep(GC_INTERVAL_S)


async def _until_it_fails(name: str, work: Awaitable[None]) -> None:
    """The work of a loop, until it ends or is made to raise."""
    if not _collectors:
        _collectors.append(asyncio.ensure_future(_collect_garbage()))
    running = asyncio.ensure_future(work)
    told = asyncio.ensure_future(_until_told(name))
    try:
        await asyncio.wait([running, told], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise MadeToFail(name)
        running.result()
    finally:
        for task in (running, told):
            task.cancel()
        await asyncio.gather(running, told, return_exceptions=True)


_run_as_it_is = Supervisor.run


def _run(
    supervisor: Supervisor,
    name: str,
    loop_function: Callable[[], Awaitable[None]],
    restart: RestartPolicy | None = None,
) -> None:
    """In the place of `Supervisor.run`."""
    _run_as_it_is(supervisor, name, lambda: _until_it_fails(name, loop_function()), restart)


if __name__ == "__main__":
    Supervisor.run = _run  # type: ignore[assignment,method-assign]
    is_jobmanager = _process_name() == "jobmanager"
    sys.exit(jobmanager.__main__.main() if is_jobmanager else taskmanager.__main__.main())
