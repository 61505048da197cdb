"""User code that misbehaves, on real processes: it fails its task alone, and its job in the end."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import pytest_asyncio

from holdover.api import Job
from holdover.cli.local_cluster import LocalCluster
from holdover.errors import JobCanceled, JobFailed
from holdover.task_context import current
from tests.cluster.ledger_jobs import Ledger
from tests.cluster.ledger_steps import is_alive
from tests.cluster.running_cluster import JOB_TIMEOUT_S, RunningCluster, wait_until

SUBTASKS = 4
BAD_SUBTASK = 2
#: Long enough that nobody is silent for so long because the machine is busy.
HEARTBEAT_TIMEOUT_S = 6.0
CANCELLATION_TIMEOUT_S = 1.0
GIL_HELD_S = 13.0
OPTIONS = {
    "heartbeat.interval": "300 ms",
    "heartbeat.timeout": f"{HEARTBEAT_TIMEOUT_S:g} s",
    "restart-strategy.fixed-delay.attempts": "1",
    "restart-strategy.fixed-delay.delay": "0 ms",
    "task.cancellation.timeout": f"{CANCELLATION_TIMEOUT_S:g} s",
}

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningCluster]:
    """One cluster for all: at the end its processes are those that it began with."""
    directory = tmp_path_factory.mktemp("user-code")
    cluster = LocalCluster(directory / "cluster", taskmanagers=2, slots=2, options=OPTIONS)
    async with cluster, cluster.client() as client:
        before = {tm.resource_id: tm.incarnation for tm in await client.taskmanagers()}
        running = RunningCluster(cluster, client, directory)
        yield running
        after = {tm.resource_id: tm.incarnation for tm in await client.taskmanagers()}
        lost = [line for line in cluster.log_text().splitlines() if "taskmanager lost" in line]
        assert after == before, running.logs()
        assert lost == [], "a TaskManager was declared dead"


def work(
    ledger: Ledger, misbehave: Callable[[], None], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One subtask of the stage misbehaves."""
    ledger.note("start", "M")
    if current().subtask == BAD_SUBTASK:
        misbehave()
    yield from batches
    ledger.note("end", "M")


def job_of(name: str, directory: Path, misbehave: Callable[[], None]) -> tuple[Job, Ledger]:
    """Numbers -> the stage -> a file, four subtasks."""
    ledger = Ledger(directory / f"{name}.ledger")
    job = Job(name)
    numbers = job.sequence(0, 100, parallelism=SUBTASKS).hash("value")
    stage = numbers.map_partition(
        partial(work, ledger, misbehave), name="stage", parallelism=SUBTASKS
    )
    stage.write_parquet(str(directory / f"{name}.output"))
    return job, ledger


def raise_an_error() -> None:
    """A plain mistake, with a line of its own in the traceback."""
    raise LookupError("no such thing as 42")


def exit_the_interpreter() -> None:
    sys.exit(3)


def exit_at_once() -> None:
    os._exit(7)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    """A null pointer in C."""
    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("misbehave", "told"),
    [
        (raise_an_error, "LookupError: no such thing as 42"),
        (exit_the_interpreter, "SystemExit: 3"),
        (exit_at_once, "exited with code 7"),
        (be_killed, "SIGKILL"),
        (crash, "SIGSEGV"),
    ],
)
async def test_user_code_that_ends_badly_fails_its_task_alone_and_then_the_job(
    running: RunningCluster, misbehave: Callable[[], None], told: str
) -> None:
    """The task runs again as the restart strategy allows; the reason reaches the client."""
    name = misbehave.__name__.replace("_", "-")
    job, ledger = job_of(name, running.directory, misbehave)
    await running.client.submit(job, name)
    with pytest.raises(JobFailed) as failed:
        async with asyncio.timeout(JOB_TIMEOUT_S):
            await running.client.wait(name)

    assert told in f"{failed.value}\n{failed.value.traceback}"
    if misbehave in (raise_an_error, exit_the_interpreter):
        assert f"in {misbehave.__name__}" in failed.value.traceback
    starts = ledger.starts()
    assert starts.pop(("M", BAD_SUBTASK)) == 2, "one restart is allowed"
    assert set(starts.values()) <= {1}, "another subtask ran again"
    assert not (running.directory / f"{name}.output" / "_SUCCESS").exists()


def hold_the_gil() -> None:
    """No other thread of this process runs meanwhile: PyDLL keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int(GIL_HELD_S * 1e6))


async def test_a_task_that_holds_the_gil_gets_nobody_declared_dead(running: RunningCluster) -> None:
    """P55: for more than twice the heartbeat timeout. The fixture looks for lost TaskManagers."""
    job, ledger = job_of("gil", running.directory, hold_the_gil)
    started_s = time.monotonic()
    await running.client.submit(job, "gil")
    async with asyncio.timeout(JOB_TIMEOUT_S):
        await running.client.wait("gil")
    assert time.monotonic() - started_s > GIL_HELD_S > 2 * HEARTBEAT_TIMEOUT_S
    assert set(ledger.starts().values()) == {1}


def ignore_cancellation(ready: Path) -> None:
    """Neither a signal nor an exception ends it, once it has said so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.touch()
    while True:
        with suppress(BaseException):
            time.sleep(0.1)


async def test_a_task_that_ignores_its_cancellation_is_killed_after_the_timeout(
    running: RunningCluster,
) -> None:
    """behaviour 4.1. Its slot is free afterwards."""
    ready = running.directory / "stubborn.ready"
    job, ledger = job_of("stubborn", running.directory, partial(ignore_cancellation, ready))
    await running.client.submit(job, "stubborn")
    await wait_until(ready.exists, "the task runs")
    await wait_until(lambda: len(ledger.ends()) == SUBTASKS - 1, "the others have ended")
    pid = next(line.pid for line in ledger.lines() if line.subtask == BAD_SUBTASK)

    cancelled_s = time.monotonic()
    await running.client.cancel("stubborn")
    with pytest.raises(JobCanceled):
        async with asyncio.timeout(JOB_TIMEOUT_S):
            await running.client.wait("stubborn")
    assert time.monotonic() - cancelled_s >= CANCELLATION_TIMEOUT_S
    await wait_until(lambda: not is_alive(pid), "its process is gone")
    async with asyncio.timeout(JOB_TIMEOUT_S):
        while any(tm.slots_free < tm.slots for tm in await running.client.taskmanagers()):
            await asyncio.sleep(0.02)
