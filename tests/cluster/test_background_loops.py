"""A background loop that dies comes back, or ends its process with its name in the log (P56)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdover.cli import local_cluster
from holdover.cli.local_cluster import JOBMANAGER
from holdover.errors import JobFailed
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import LedgerJob, chain
from tests.cluster.running_cluster import RunningCluster, wait_until
from tests.doubles import failing_loops

OPTIONS = {"heartbeat.interval": "300 ms", "heartbeat.timeout": "20 s"}
#: Loops that come back: their process (tm-0 is the only TaskManager), and what is started again.
RESTARTED = [
    (JOBMANAGER, "loop lag", "loop lag"),
    (JOBMANAGER, "watch for a newer leader", "watch for a newer leader"),
    (JOBMANAGER, "event log flush", "event log flush"),
    (JOBMANAGER, "orders to tm-0", "orders to tm-0"),
    (JOBMANAGER, "releases", "releases"),
    (JOBMANAGER, "recovery reports", "recovery reports"),
    ("tm-0", "disk space", "disk space"),
    ("tm-0", "connection", "connection"),
    ("tm-0", "leader record", "leader record"),
    ("tm-0", "reports", "reports"),
    ("tm-0", "deletions", "deletions"),
    ("tm-0", "session", "session"),
    ("tm-0", "heartbeats", "connection"),
]
#: Loops that end their process.
FATAL = [
    (JOBMANAGER, "watch heartbeats"),
    (JOBMANAGER, "remember workers"),
    ("tm-0", "registration timeout"),
    ("tm-0", "loop lag"),
]

pytestmark = [pytest.mark.slow]


@dataclass
class Orders:
    """Where loops are told to fail."""

    directory: Path

    async def fail(
        self, running: RunningCluster, process: str, loop: str, words: tuple[str, ...] = ()
    ) -> None:
        """Make a loop raise, and wait until the process says so in a line with these words."""
        words = words or (loop,)
        seen = len(running.cluster.log_text(process))
        (self.directory / process).mkdir(exist_ok=True)
        (self.directory / process / loop).touch()

        def lines() -> list[str]:
            new = running.cluster.log_text(process)[seen:].splitlines()
            return [line for line in new if all(word in line for word in words)]

        await wait_until(lines, f"{process} says {words}")


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    """Processes of the clusters in this test obey these orders."""
    directory = tmp_path / "orders"
    directory.mkdir()
    monkeypatch.setattr(local_cluster, "_JOBMANAGER_MODULE", failing_loops.__name__)
    monkeypatch.setattr(local_cluster, "_TASKMANAGER_MODULE", failing_loops.__name__)
    monkeypatch.setenv(failing_loops.DIRECTORY_VARIABLE, str(directory))
    yield Orders(directory)
    assert list(directory.glob("*/*")) == [], "an order was not carried out"


async def before_m(start_cluster: StartCluster) -> tuple[RunningCluster, LedgerJob]:
    """A cluster of one TaskManager, and a job whose tasks of M are held back."""
    running = await start_cluster(taskmanagers=1, slots=2, options=OPTIONS)
    job = chain(running.directory, 2)
    job.gates.close("M")
    await running.submit(job)
    await wait_until(lambda: len(job.ledger.starts("M")) == 2, "both tasks of M run")
    return running, job


async def test_loops_that_raise_are_started_again_and_the_job_takes_no_notice(
    start_cluster: StartCluster, orders: Orders
) -> None:
    """While garbage is collected every 10 ms; each task runs once."""
    running, job = await before_m(start_cluster)
    before = running.cluster.processes()
    for process, loop, restarted in RESTARTED:
        await orders.fail(running, process, loop, ("restarting it", restarted))
    job.gates.open("M")
    await running.finished(job)

    assert running.cluster.processes() == before
    assert set(job.ledger.starts().values()) == {1}, running.logs()


async def test_loops_that_cannot_be_started_again_end_their_process_and_the_job_goes_on_after_it(
    start_cluster: StartCluster, orders: Orders
) -> None:
    """Its log names the loop; started anew, the job ends right."""
    running, job = await before_m(start_cluster)
    for process, loop in FATAL:
        await orders.fail(running, process, loop)
        await wait_until(
            lambda process=process: process not in running.cluster.processes(),  # type: ignore[misc]
            f"{process} ends",
        )
        assert f"background loop '{loop}' ended" in running.cluster.log_text(process)
        if process == JOBMANAGER:
            running.cluster.start_jobmanager()
        else:
            running.cluster.start_taskmanager(0)
        await running.taskmanagers(1)
    job.gates.open("M")
    await running.finished(job)


async def test_a_loop_of_a_job_that_raises_fails_this_job_alone_with_the_reason(
    start_cluster: StartCluster, orders: Orders
) -> None:
    """P11: neither the JobManager nor another job ends with it."""
    running, job = await before_m(start_cluster)
    await orders.fail(running, JOBMANAGER, "inbox")
    with pytest.raises(JobFailed, match=r"MadeToFail.*please report this"):
        await running.client.wait(job.job_id)
    other = chain(running.directory, 2, "other")
    await running.submit(other)
    job.gates.open("M")
    await running.finished(other)
