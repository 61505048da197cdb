"""A cluster with a leader and a standby that etcd elects, on real processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from holdover.cli.local_cluster import JOBMANAGER
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import LedgerJob, chain
from tests.cluster.proxy import Direction, Proxy
from tests.cluster.running_cluster import UNHURRIED, RunningCluster, wait_until
from tests.doubles.etcd_members import EtcdMembers
from tests.doubles.ports import free_port

#: How often a leader is killed, paused, and asked to stop: FAILOVER_ROUNDS=20 gives a distribution,
#: on a machine that has nothing else to do.
ROUNDS = int(os.environ.get("FAILOVER_ROUNDS", "0"))
#: Otherwise so long that no leader loses its lease because the machine is busy.
LEASE_S = 2.0 if ROUNDS else 6.0
N = 3
STANDBY = f"{JOBMANAGER}-1"
NAMES = (JOBMANAGER, STANDBY)
OPTIONS = {
    "high-availability.type": "etcd",
    "heartbeat.interval": "400 ms",
    "heartbeat.timeout": "2 s" if ROUNDS else "8 s",
    **UNHURRIED,
}
_ENDPOINTS = "high-availability.etcd.endpoints"
_LEADS = "jobmanager leads"
_LOST = "leadership lost"
_WAITS = "another process leads"
_TIMEOUT_S = 120.0


@dataclass
class ElectedCluster:
    """Two JobManagers, of which `leader` leads at first, and TaskManagers.

    Each JobManager reaches etcd through `to_etcd`; if the cluster was started `behind_proxies`,
    everybody else reaches it through `to_jobmanager`.
    """

    running: RunningCluster
    members: EtcdMembers
    to_etcd: dict[str, Proxy] = field(default_factory=dict)
    to_jobmanager: dict[str, Proxy] = field(default_factory=dict)

    @property
    def leader(self) -> str:
        """Who was the last to say that it leads."""
        led = {name: self.running.logged(name, _LEADS)[-1:] for name in NAMES}
        return max(NAMES, key=lambda name: led[name])

    @property
    def standby(self) -> str:
        """The other."""
        return NAMES[1 - NAMES.index(self.leader)]

    def epochs(self, *names: str) -> list[int]:
        """Of all leaderships of both, or of one of them, in the order in which they began."""
        lines = [
            line
            for name in names or NAMES
            for line in self.running.cluster.log_text(name).splitlines()
            if f" {_LEADS} " in line
        ]
        return [int(line.split("epoch=")[1].split()[0]) for line in sorted(lines)]

    async def waits(self, name: str, since_s: float = 0.0) -> None:
        """Wait until it is a standby."""
        await wait_until(lambda: self.said(name, _WAITS, since_s), f"{name} waits", _TIMEOUT_S)

    async def leads(self, name: str, since_s: float) -> float:
        """Wait until it leads; how long after `since_s` it was."""
        await wait_until(lambda: self.said(name, _LEADS, since_s), f"{name} leads", _TIMEOUT_S)
        return self.said(name, _LEADS, since_s)[0] - since_s

    async def knows_that_it_lost(self, name: str, since_s: float) -> float:
        """Wait until it knows that it does not lead any more; how long that took."""
        await wait_until(lambda: self.said(name, _LOST, since_s), f"{name} knows", _TIMEOUT_S)
        return self.said(name, _LOST, since_s)[0] - since_s

    def said(self, name: str, words: str, since_s: float) -> list[float]:
        """When the process logged the words after that time."""
        return [at_s for at_s in self.running.logged(name, words) if at_s >= since_s - 0.001]

    async def start_jobmanager(self, name: str) -> None:
        """Start one of the two again; it waits, or leads."""
        self.running.cluster.options[_ENDPOINTS] = self._endpoints(name)
        if name == JOBMANAGER:
            self.running.cluster.start_jobmanager()
        else:
            self.running.cluster.start_standby(1)

    async def kill(self, name: str) -> float:
        """kill -9, and when."""
        at_s = time.time()
        self.running.cluster.send_signal(name, signal.SIGKILL)
        await self.running.cluster.wait_for_end(name, _TIMEOUT_S)
        return at_s

    async def job_before_m(self, job_id: str = "chain") -> LedgerJob:
        """A job all of whose tasks of S have ended, durably; those of M wait."""
        job = chain(self.running.directory, N, job_id)
        job.gates.close("M")
        await self.running.submit(job)
        await wait_until(
            lambda: len(job.ledger.starts("M")) == N, "all tasks of M wait", _TIMEOUT_S
        )
        await self.running.durable(job)
        return job

    async def finish(self, job: LedgerJob, *, kept: bool = True) -> None:
        """Let it go on, and wait for GOLD; no leader acted after its successor: all that the first
        one has deployed had begun before there was another. If `kept`, what had finished before did
        not run again.
        """
        job.gates.open("M")
        await self.running.finished(job)
        assert not kept or job.ledger.starts("S") == {("S", i): 1 for i in range(N)}
        epochs = [line.epoch for line in job.ledger.lines() if line.what == "start"]
        assert epochs == sorted(epochs), "an older leader has deployed after a newer one"
        assert len(set(self.epochs())) == len(self.epochs())
        for name in NAMES:
            assert self.epochs(name) == sorted(self.epochs(name))

    async def listed(self) -> str:
        """What `holdover list` says that was told of nothing but etcd."""
        keys = ("high-availability.type", _ENDPOINTS, "high-availability.cluster-id")
        defines = [f"{key}={self.running.cluster.options[key]}" for key in keys]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdover.cli.main", "list", "--json"),
            *itertools.chain.from_iterable(("-D", define) for define in defines),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(_TIMEOUT_S):
            return (await process.communicate())[0].decode()

    def cut(self, *proxies: Proxy) -> None:
        """Nothing comes through; connections stay open."""
        for proxy in proxies:
            for direction in Direction:
                proxy.silence(direction)

    def _endpoints(self, name: str) -> str:
        proxy = self.to_etcd.get(name)
        return proxy.address if proxy is not None else ",".join(self.members.endpoints)


@asynccontextmanager
async def elected_cluster(
    start_cluster: StartCluster,
    members: EtcdMembers,
    cluster_id: str,
    *,
    lease_s: float = LEASE_S,
    behind_proxies: Sequence[str] = (),
) -> AsyncIterator[ElectedCluster]:
    """Everything is ready. `behind_proxies`: "etcd", "taskmanagers" or both."""
    places = {
        _ENDPOINTS: ",".join(members.endpoints),
        "high-availability.cluster-id": cluster_id,
        "high-availability.lease-duration": f"{lease_s:g} s",
    }
    if "taskmanagers" in behind_proxies:
        places |= {"jobmanager.rpc.address": "127.0.0.2", "jobmanager.bind-host": "127.0.0.1"}
    running = await start_cluster(2, 2, {**OPTIONS, **places}, start=False)
    elected = ElectedCluster(running, members)
    async with AsyncExitStack() as stack:
        for name in NAMES:
            if "etcd" in behind_proxies:
                proxy = Proxy(f"127.0.0.1:{free_port()}", members.endpoints[0])
                elected.to_etcd[name] = await stack.enter_async_context(proxy)
            await elected.start_jobmanager(name)
            expected = _LEADS if name == JOBMANAGER else _WAITS
            await wait_until(lambda: running.logged(name, expected), expected, _TIMEOUT_S)  # noqa: B023
            if "taskmanagers" in behind_proxies:
                address = _serving_address(running, name)
                proxy = Proxy(address, address.replace("127.0.0.2", "127.0.0.1"))
                elected.to_jobmanager[name] = await stack.enter_async_context(proxy)
        running.cluster.options[_ENDPOINTS] = places[_ENDPOINTS]
        for index in range(2):
            running.cluster.start_taskmanager(index)
        await running.taskmanagers(2, _TIMEOUT_S)
        yield elected


def _serving_address(running: RunningCluster, name: str) -> str:
    lines = running.cluster.log_text(name).splitlines()
    line = next(line for line in reversed(lines) if "jobmanager serves" in line)
    return line.split("address=")[1].split()[0]
