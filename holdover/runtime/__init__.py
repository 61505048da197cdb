"""The only door to clock, randomness, network, disk and task processes.

Services are given one `Runtime` at start and take nothing from anywhere else. Real arm:
`holdover.runtime.real.real_runtime`. All waiting is asyncio's, on a loop that the world owns, so
that the protocols can be kept in virtual time as well; `asyncio.sleep`, `wait_for` and `timeout`
are free to use.

This module imports neither grpc nor pyarrow: task processes import it too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdover.runtime.clock import Clock, Randomness
from holdover.runtime.disk import AppendFile, Disk, Entry, FileLock, FileStat
from holdover.runtime.errors import (
    AddressInUse,
    AddressUnavailable,
    ObjectConflict,
    ObjectStoreError,
    ObjectStoreFenced,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    StorageNotWritable,
    TaskProcessesUnavailable,
    TaskProcessGone,
)
from holdover.runtime.network import GRPC_MESSAGE_BYTES_MAX, Network, Server, may_be_insecure
from holdover.runtime.objects import (
    NoObjects,
    ObjectVersion,
    VersionedObject,
    VersionedObjects,
    is_object_url,
)
from holdover.runtime.partitions import (
    PartitionLookup,
    PartitionReceiver,
    PartitionServer,
    PartitionServers,
)
from holdover.runtime.processes import (
    TASK_MESSAGE_BYTES_MAX,
    ExitStatus,
    TaskProcess,
    TaskProcesses,
    TaskProcessPool,
    TaskProcessSpec,
)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything a service may take from the world."""

    clock: Clock
    randomness: Randomness
    network: Network
    disk: Disk
    task_processes: TaskProcesses
    partition_servers: PartitionServers
    objects: VersionedObjects = field(default_factory=NoObjects)


__all__ = [
    "GRPC_MESSAGE_BYTES_MAX",
    "TASK_MESSAGE_BYTES_MAX",
    "AddressInUse",
    "AddressUnavailable",
    "AppendFile",
    "Clock",
    "Disk",
    "Entry",
    "ExitStatus",
    "FileLock",
    "FileStat",
    "Network",
    "NoObjects",
    "ObjectConflict",
    "ObjectStoreError",
    "ObjectStoreFenced",
    "ObjectStoreRefused",
    "ObjectStoreUnavailable",
    "ObjectVersion",
    "PartitionLookup",
    "PartitionReceiver",
    "PartitionServer",
    "PartitionServers",
    "Randomness",
    "Runtime",
    "Server",
    "StorageNotWritable",
    "TaskProcess",
    "TaskProcessGone",
    "TaskProcessPool",
    "TaskProcessSpec",
    "TaskProcesses",
    "TaskProcessesUnavailable",
    "VersionedObject",
    "VersionedObjects",
    "is_object_url",
    "may_be_insecure",
]
