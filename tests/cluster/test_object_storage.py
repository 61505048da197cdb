"""A cluster whose storage is in an object store, on real processes against an S3 server."""

from __future__ import annotations

import asyncio
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from holdover.cli.local_cluster import JOBMANAGER
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import LedgerJob, chain
from tests.cluster.running_cluster import UNHURRIED, WAIT_TIMEOUT_S, RunningCluster, wait_until
from tests.doubles.s3_server import (
    ACCESS_KEY,
    SECRET_KEY,
    Fault,
    S3Proxy,
    environment,
    make_bucket,
    moto_server,
    s3_proxy,
)

N = 3
BUCKET = "holdover"
STORAGE = f"s3://{BUCKET}/clusters/one"
#: So long that no leader loses its lease because the machine is busy.
LEASE_S = 8.0
OPTIONS = {
    "high-availability.storageDir": STORAGE,
    "high-availability.lease-duration": f"{LEASE_S:g} s",
    "job-event.store.write-buffer.flush-interval": "100 ms",
    **UNHURRIED,
}

pytestmark = pytest.mark.slow


@dataclass
class Store:
    """The server, through its proxy for the cluster and directly for the test."""

    proxy: S3Proxy
    port: int

    async def keys(self, words: str) -> list[str]:
        """Keys that contain the words."""
        return [key for key in (await asyncio.to_thread(self._list)) if words in key]

    def _list(self) -> list[str]:
        url = f"http://127.0.0.1:{self.port}/{BUCKET}?list-type=2"
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=t/20260101/us-east-1/s3/x"}
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=WAIT_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
        return [part.split("</Key>")[0] for part in text.split("<Key>")[1:]]


@pytest_asyncio.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store, of which processes that are started now know."""
    with moto_server() as port:
        make_bucket(port, BUCKET)
        async with s3_proxy(port) as proxy:
            for name, value in environment(proxy.endpoint).items():
                monkeypatch.setenv(name, value)
            yield Store(proxy, port)


async def before_m(running: RunningCluster) -> LedgerJob:
    """A job all of whose tasks of S have ended, durably; those of M wait."""
    job = chain(running.directory, N)
    job.gates.close("M")
    await running.submit(job)
    await wait_until(lambda: len(job.ledger.starts("M")) == N, "all tasks of M wait")
    await running.durable(job)
    return job


def check_nothing_is_local_or_secret(running: RunningCluster) -> None:
    """No storage directory was made on this machine, and no log tells credentials."""
    assert not (running.cluster.directory / "storage").exists()
    for path in (running.cluster.directory / "logs").iterdir():
        text = path.read_text()
        assert ACCESS_KEY not in text
        assert SECRET_KEY not in text


async def test_a_job_goes_on_after_its_jobmanager_was_killed(
    store: Store, start_cluster: StartCluster
) -> None:
    """Finished tasks do not run again; the job's objects are gone in the end, its summary is not.
    The store throttles while the next JobManager recovers."""
    running = await start_cluster(taskmanagers=2, slots=2, options=OPTIONS)
    job = await before_m(running)
    assert await store.keys(f"jobs/{job.job_id}/events/")
    store.proxy.faults = [Fault(503, count=10, matching=lambda target: "/jobs/" in target)]
    await running.restart_jobmanager()
    await running.taskmanagers(2)
    job.gates.open("M")
    await running.finished(job)
    assert job.ledger.starts("S") == {("S", i): 1 for i in range(N)}
    assert store.proxy.faults[0].count == 0
    assert await store.keys(f"archive/{job.job_id}.pb")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while await store.keys(f"jobs/{job.job_id}"):
            await asyncio.sleep(0.1)
    check_nothing_is_local_or_secret(running)


async def test_a_job_outlives_a_store_that_fails_for_a_while(
    store: Store, start_cluster: StartCluster
) -> None:
    """Its log is degraded with the reason meanwhile, and durable again afterwards."""
    running = await start_cluster(taskmanagers=2, slots=2, options=OPTIONS)
    job = chain(running.directory, N)
    job.gates.close("M")
    await running.submit(job)
    await wait_until(lambda: len(job.ledger.starts("M")) == N, "all tasks of M wait")
    await running.durable(job)
    outage = Fault(500, count=1_000_000, code="InternalError", matching=lambda t: "/events/" in t)
    store.proxy.faults = [outage]
    job.gates.open("M")
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while not (reason := (await running.client.describe(job.job_id)).status.recovery.reason):
            await asyncio.sleep(0.05)
    print(reason)
    store.proxy.faults = []
    await running.finished(job)
    assert set(job.ledger.starts().values()) == {1}


async def test_a_jobmanager_whose_bucket_is_missing_ends_and_names_it(store: Store) -> None:
    """In one line, without the credentials that it used."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jobmanager", "-D", "jobmanager.rpc.port=0"),
        *("-D", "high-availability.storageDir=s3://missing/prefix"),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        told = (await process.communicate())[1].decode().splitlines()[-1]
    assert process.returncode == 1
    assert "s3://missing/prefix/default/leader" in told
    assert "the bucket does not exist" in told
    assert ACCESS_KEY not in told


async def test_a_paused_leader_is_succeeded_and_adds_nothing_when_it_wakes(
    store: Store, start_cluster: StartCluster
) -> None:
    """Two candidates: one leads. The first is stopped, the second leads with a larger epoch; after
    SIGCONT the first writes no object any more, and campaigns again."""
    running = await start_cluster(taskmanagers=2, slots=2, options=OPTIONS)
    running.cluster.start_standby(1)
    standby = f"{JOBMANAGER}-1"
    waits = "another process leads"
    await wait_until(lambda: running.logged(standby, waits), "the standby waits")
    job = await before_m(running)
    running.cluster.send_signal(JOBMANAGER, signal.SIGSTOP)
    try:
        await wait_until(lambda: running.logged(standby, "jobmanager leads"), "the standby leads")
        before = {*await store.keys("/events/0000000000000001-")}
    finally:
        running.cluster.send_signal(JOBMANAGER, signal.SIGCONT)
    await wait_until(lambda: running.logged(JOBMANAGER, "leadership lost"), "it knows")
    await wait_until(lambda: running.logged(JOBMANAGER, waits), "it waits in turn")
    assert {*await store.keys("/events/0000000000000001-")} <= before
    job.gates.open("M")
    await running.finished(job)
    assert job.ledger.starts("S") == {("S", i): 1 for i in range(N)}
    check_nothing_is_local_or_secret(running)
