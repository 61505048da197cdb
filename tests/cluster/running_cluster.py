"""A cluster of real processes for one test, and bounded waits that say what they saw."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from holdover.cli.local_cluster import JOBMANAGER, LocalCluster
from holdover.client import Client
from holdover.errors import HoldoverError
from holdover.v1.jobmanager_pb2 import JobStatus, RecoveryReport
from shuffle.partition_name import INDEX_SUFFIX, PartitionIdentity, parse_partition_name
from tests.cluster.ledger_jobs import LedgerJob

# Bounds against hanging, on machines far slower than ours: no statement about speed.
JOB_TIMEOUT_S = 240.0
WAIT_TIMEOUT_S = 120.0
POLL_S = 0.02
#: Options for tests that demand that nothing runs again: nobody is late, on however busy a machine.
UNHURRIED = {
    "execution.batch.job-recovery.previous-worker.recovery.timeout": "4 min",
    "execution.batch.job-recovery.adoption-timeout": "4 min",
}
#: The same, for processes that get no options.
UNHURRIED_ENVIRONMENT = {
    "HOLDOVER_" + re.sub(r"\W", "_", key).upper(): value for key, value in UNHURRIED.items()
}


async def wait_until(
    condition: Callable[[], object], what: str, timeout_s: float = WAIT_TIMEOUT_S
) -> None:
    """Look again until `condition` gives something true; fails with what it gave last.

    A condition that raises AssertionError does not hold yet, and its message is what was seen.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            seen = condition()
            if seen:
                return
        except AssertionError as error:
            seen = error
        assert time.monotonic() < deadline_s, f"not after {timeout_s:g} s: {what}; seen: {seen!r}"
        await asyncio.sleep(POLL_S)


def files_below(directory: Path) -> list[Path]:
    """Sorted; while others delete there, which makes `Path.rglob` raise in some Pythons."""
    found = os.walk(directory)
    return sorted(Path(place) / name for place, _, names in found for name in names)


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A published partition on the disk of a worker; `base` is its path without suffix."""

    worker: str
    identity: PartitionIdentity
    base: Path


@dataclass
class RunningCluster:
    """A cluster, a client that follows its leader, and a directory for jobs."""

    cluster: LocalCluster
    client: Client
    directory: Path

    async def submit(self, job: LedgerJob) -> None:
        """Submit the job."""
        await self.client.submit(job.build())

    async def finished(self, job: LedgerJob, timeout_s: float = JOB_TIMEOUT_S) -> JobStatus:
        """Wait for the job's end; its output must be GOLD, and the work of each task is counted
        by the caller in `job.ledger`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                status = await self.client.wait(job.job_id)
        except (TimeoutError, HoldoverError) as error:
            raise AssertionError(
                f"{job.job_id} does not finish: {error!r}\n{self.logs()}"
            ) from error
        assert job.result() == job.gold
        return status

    async def restart_jobmanager(self) -> int:
        """Kill the JobManager and start it again at once; its new pid."""
        await self.cluster.kill_jobmanager()
        return self.cluster.start_jobmanager()

    async def taskmanagers(self, count: int, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until the leader is ready and so many TaskManagers are registered."""
        await self.cluster.wait_until_ready(count, timeout_s)

    async def shuffle_services(self, *names: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until the leader knows these shuffle services, and no others."""
        async with asyncio.timeout(timeout_s):
            while sorted(await self._registered_services()) != sorted(names):
                await asyncio.sleep(POLL_S)

    async def _registered_services(self) -> list[str]:
        return [service.resource_id for service in await self.client.shuffle_services()]

    def logged(self, name: str, words: str) -> list[float]:
        """When the process logged a line with these words, oldest first (wall clock)."""
        return [
            datetime.fromisoformat(line.split(maxsplit=1)[0]).timestamp()
            for line in self.cluster.log_text(name).splitlines()
            if words in line
        ]

    async def durable(self, job: LedgerJob, finished: int = 0) -> None:
        """Wait until the leader has heard of so many finished subtasks, and every event of the job
        is on disk: what has finished must not be lost."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                status = (await self.client.describe(job.job_id)).status
                recovery = status.recovery
                written = recovery.durable_sequence >= recovery.last_sequence > 0
                if written and status.subtasks_finished >= finished:
                    return
                await asyncio.sleep(POLL_S)

    async def report(self, job: LedgerJob) -> RecoveryReport:
        """What the last failover cost the job."""
        return (await self.client.recovery_reports(job.job_id))[-1]

    def held(self, job_id: str, worker: str | None = None) -> list[HeldPartition]:
        """The job's published partitions on disk, of one worker or of all."""
        found = []
        for name in [worker] if worker else self.worker_names():
            for file in files_below(self.cluster.directory / "tmp" / name):
                shuffle, job, index = file.parts[-3:]
                if (shuffle, job) == ("shuffle", job_id) and index.endswith(INDEX_SUFFIX):
                    stem = index.removesuffix(INDEX_SUFFIX)
                    identity = parse_partition_name(f"{job_id}/{stem}")
                    found.append(HeldPartition(name, identity, file.with_name(stem)))
        return found

    def files_of(self, job_id: str) -> list[str]:
        """Every file of the job on the disks of the workers."""
        root = self.cluster.directory / "tmp"
        names = [str(path.relative_to(root)) for path in files_below(root)]
        return [name for name in names if job_id in name]

    def taskmanager_names(self) -> list[str]:
        """All that were ever started."""
        names = range(self.cluster.taskmanagers)
        return [self.cluster.taskmanager_name(index) for index in names]

    def worker_names(self) -> list[str]:
        """These, and the shuffle services."""
        services = range(self.cluster.shuffle_services)
        names = [self.cluster.shuffle_service_name(index) for index in services]
        return [*self.taskmanager_names(), *names]

    def logs(self) -> str:
        """The end of every log, for messages of failure."""
        return "\n".join(
            f"--- {name}\n{self.cluster.log_tail(name)}"
            for name in (JOBMANAGER, *self.worker_names())
        )
