"""A shuffle service behind a real Flight server, and a task's side of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from holdover.config import Configuration
from holdover.ids import AttemptKey
from holdover.runtime import PartitionServer, Runtime
from holdover.runtime.real import real_runtime
from holdover.runtime.supervisor import Supervisor
from holdover.runtime.transport_security import CredentialFiles
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition
from shuffle.flight import FlightPartitionClient
from shuffle.flight_result_target import ShuffleServiceTarget
from shuffle.flight_servers import FlightPartitionServers
from shuffle.partition_file import decoded_batch
from shuffle.partition_index import PartitionMetrics
from shuffle.partition_name import PartitionIdentity
from shuffle.service import ServiceIdentity, ShuffleService
from shuffle.stocktaking import take_stock

JOB = "job-a"


def attempt(subtask: int = 0, number: int = 0, epoch: int = 1, job: str = JOB) -> AttemptKey:
    """An attempt of vertex "map"."""
    return AttemptKey(job, "map", subtask, number, epoch)


def identity(key: AttemptKey, output: int = 0) -> PartitionIdentity:
    """One of its outputs."""
    return PartitionIdentity(key.job_id, key.vertex_id, output, key.subtask, key.attempt, key.epoch)


def numbers(first: int, rows: int) -> pa.RecordBatch:
    """Rows to write."""
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64())})


def execution(key: AttemptKey, *metrics: PartitionMetrics) -> FinishedExecution:
    """What an attempt says of itself when it has put these partitions."""
    return FinishedExecution(
        attempt=key.to_proto(),
        partitions=[
            ResultPartition(
                output=output,
                subpartition_bytes=part.subpartition_bytes,
                rows=part.rows,
                data_bytes=part.data_bytes,
                index_crc32c=part.index_crc32c,
            )
            for output, part in enumerate(metrics)
        ],
    )


def put(
    target: ShuffleServiceTarget, key: AttemptKey, rows: int = 10, first: int = 0
) -> FinishedExecution:
    """Put one output of two subpartitions, each with half of the rows; not published."""
    writer = target.open(identity(key), 2)
    try:
        for half in range(2):
            writer.write(half, numbers(first + half * rows // 2, rows // 2))
        return execution(key, writer.commit())
    finally:
        writer.abort()


@dataclass
class ServiceWorld:
    """The service and its server; `start` again makes another run of the same service."""

    path: Path
    #: With them, the service speaks TLS only.
    credentials: CredentialFiles | None = None
    runtime: Runtime = field(default_factory=real_runtime)
    service: ShuffleService = field(init=False)
    server: PartitionServer = field(init=False)
    supervisor: Supervisor = field(init=False)
    failed: list[str] = field(default_factory=list)

    async def start(self, **options: str) -> None:
        """Begin, with what an earlier run has left; the leader is sought if an option names it."""
        self.path.mkdir(exist_ok=True)
        directory = str(self.path)
        configuration = Configuration.of({"shuffle.service.disk-reserve": "0 b", **options})
        self.supervisor = Supervisor(
            "shuffle service", on_fatal=lambda name, error: self.failed.append(f"{name}: {error}")
        )
        self.service = ShuffleService(
            self.runtime,
            configuration,
            ServiceIdentity("shuffle-1", self.runtime.randomness.token_hex(4)),
            directory,
            self.supervisor,
            None,
        )
        self.service.take_up_found(
            await take_stock(self.runtime.disk, self.runtime.clock, directory)
        )
        await self.service.measure()
        self.server = await FlightPartitionServers(self.credentials).start(
            "127.0.0.1", 0, self.service.finished.path_of, self.service
        )
        if "jobmanager.rpc.port" in options:
            self.service.start("127.0.0.1:1", self.address)

    async def stop(self) -> None:
        """End this run, and check it."""
        await self.supervisor.close()
        await self.service.close()
        await self.server.stop()
        self.service.finished.check()
        assert self.failed == []

    @property
    def address(self) -> str:
        """Its data address."""
        return f"127.0.0.1:{self.server.port}"

    def files(self) -> list[str]:
        """What is on the disk, relative to the shuffle directory."""
        return sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file())

    def directories(self) -> list[str]:
        """Of jobs, empty ones included."""
        return sorted(p.name for p in self.path.iterdir() if p.is_dir())

    async def put(self, key: AttemptKey, rows: int = 10) -> FinishedExecution:
        """See `put`."""
        with ShuffleServiceTarget(self.address, retry_timeout_s=60) as target:
            return await asyncio.to_thread(put, target, key, rows)

    async def publish(self, finished: FinishedExecution) -> FinishedExecution:
        """Publish what was put."""
        with ShuffleServiceTarget(self.address, retry_timeout_s=60) as target:
            return await asyncio.to_thread(target.publish, finished)

    async def finish(self, *keys: AttemptKey) -> None:
        """Put and publish."""
        for key in keys:
            await self.publish(await self.put(key))

    async def fetched(self, key: AttemptKey) -> list[int]:
        """All rows of the attempt's output."""

        def fetch() -> list[int]:
            name = identity(key).name
            with FlightPartitionClient(self.address) as client:
                stream = client.fetch(name, 0, 2)
                values: list[int] = []
                for block in stream:
                    batch = decoded_batch(block.data, block.rows, stream.schema, name)
                    values += batch.column(0).to_pylist()
                return values

        return await asyncio.to_thread(fetch)
