"""The real world as a `Runtime`."""

from __future__ import annotations

import os
import random
import secrets
import time

from holdover.runtime import (
    PartitionLookup,
    PartitionReceiver,
    PartitionServer,
    PartitionServers,
    Runtime,
)
from holdover.runtime.real_disk import LocalDisk
from holdover.runtime.real_network import TcpNetwork
from holdover.runtime.real_processes import ForkedTaskProcesses
from holdover.runtime.storage_disk import ObjectStorage, StorageDisk
from holdover.runtime.transport_security import CredentialFiles
from holdover.v1.common_pb2 import FinishedExecution


def real_runtime(
    *,
    partition_servers: PartitionServers | None = None,
    credentials: CredentialFiles | None = None,
) -> Runtime:
    """This machine's clock, randomness, network, disk and processes.

    `partition_servers` is given by processes that serve partitions, `credentials` by those whose
    connections are secured (`security.ssl.enabled`).
    """
    clock, randomness = SystemClock(), SystemRandomness()
    objects = ObjectStorage(clock, randomness)
    return Runtime(
        clock=clock,
        randomness=randomness,
        network=TcpNetwork(credentials),
        disk=StorageDisk(LocalDisk(), objects),
        task_processes=ForkedTaskProcesses(),
        partition_servers=partition_servers or NoPartitionServers(),
        objects=objects,
    )


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return time.time_ns() // 1_000_000


class SystemRandomness:
    """The machine's entropy."""

    def __init__(self) -> None:
        self._random = random.Random()

    def uniform(self, low: float, high: float) -> float:
        """See `Randomness.uniform`."""
        return self._random.uniform(low, high)

    def token_hex(self, n_bytes: int) -> str:
        """See `Randomness.token_hex`."""
        return secrets.token_hex(n_bytes)


class NoPartitionServers:
    """For processes that serve no partitions."""

    async def start(
        self,
        host: str,
        port: int,
        lookup: PartitionLookup,
        receiver: PartitionReceiver | None = None,
    ) -> PartitionServer:
        """Raises `RuntimeError` always."""
        raise RuntimeError(
            f"cannot serve partitions on {host}:{port}: this process was started without"
            " partition servers; give real_runtime(partition_servers=...)"
        )

    async def copy(self, directory: str, execution: FinishedExecution, address: str) -> None:
        """Raises `RuntimeError` always."""
        raise RuntimeError(
            f"cannot copy partitions from {directory} to {address}: this process was started"
            " without partition servers; give real_runtime(partition_servers=...)"
        )


def process_age_s() -> float:
    """For how long this process has existed, interpreter start and imports included (Linux)."""
    with open("/proc/self/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    started_s = int(fields[_START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


#: Place of `starttime` among the fields after the command's name in /proc/<pid>/stat.
_START_TIME_FIELD = 19
