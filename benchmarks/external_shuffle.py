"""A partition written to a shuffle service and read from it, beside a TaskManager's own disk, and
beside bare Arrow Flight of the same bytes.

As a program (`python -m benchmarks.external_shuffle DIRECTORY`) it is the process at the other end:
a shuffle service, the partition server of a TaskManager that has written to DIRECTORY, and a bare
Flight server; it prints the ports of all three.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from benchmarks.report import Report, Series, ratio
from benchmarks.serving_process import serving_process
from holdover.config import Configuration
from holdover.coordination.leader_services import configured_leader_service
from holdover.ids import AttemptKey
from holdover.runtime.real import real_runtime
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition
from shuffle.environment import InputReader, PartitionSource
from shuffle.flight_result_target import ShuffleServiceTarget
from shuffle.flight_servers import FlightPartitionServers
from shuffle.partition_encoder import PartitionEncoder
from shuffle.partition_file import PartitionWriter
from shuffle.partition_index import PartitionMetrics
from shuffle.partition_name import DATA_SUFFIX, PartitionIdentity, partition_base
from shuffle.service import ShuffleService
from shuffle.service_process import ShuffleServiceProcess

_HOST = "127.0.0.1"
_SUBPARTITIONS = 8
_BATCHES = int(os.environ.get("BENCH_BATCHES", "64"))
_BATCH_ROWS = 131_072
_REPETITIONS = int(os.environ.get("BENCH_REPETITIONS", "9"))
_MESSAGE_BYTES = 2 << 20
_BARE_SCHEMA = pa.schema([pa.field("bytes", pa.large_binary(), nullable=False)])
_FORGET = "forget"
#: Files in memory, where there is such a place: what a disk is busy with is no affair of the ways.
_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@dataclass(slots=True)
class _Rates:
    """MB/s of one way, by samples."""

    write: Series
    read: Series
    both: Series

    @classmethod
    def of(cls, name: str) -> _Rates:
        """Without samples."""
        return cls(*(Series(f"{name}, {what}", "MB/s") for what in ("write", "read", "both")))

    def add(self, megabytes: float, written_s: float, read_s: float) -> None:
        """One round."""
        self.write.samples.append(megabytes / written_s)
        self.read.samples.append(megabytes / read_s)
        self.both.samples.append(2 * megabytes / (written_s + read_s))


async def run() -> Report:
    """Write it, then read it, by one stream each; the ways in turns, each round with new files."""
    ways = {
        "service": _Rates.of("shuffle service"),
        "local": _Rates.of("TaskManager's own disk"),
        "bare": _Rates.of("bare Arrow Flight to a file"),
    }
    with tempfile.TemporaryDirectory(prefix="holdover-bench-", dir=_MEMORY) as place:
        pieces = _pieces()
        with serving_process("benchmarks.external_shuffle", place) as ports:
            service_port, local_port, bare_port = ports
            encoded = _encoded(place, pieces)
            megabytes = sum(part.size for part in encoded) / 1e6
            for repetition in range(_REPETITIONS + 1):
                times_s = {
                    "bare": _bare(bare_port, encoded),
                    "service": _through_service(service_port, pieces, repetition),
                    "local": _local(place, local_port, pieces, repetition),
                }
                _forget(place, bare_port)
                if repetition > 0:  # the first one warms up
                    for way, (written_s, read_s) in times_s.items():
                        ways[way].add(megabytes, written_s, read_s)
    about = f"{megabytes:.0f} MB in {_SUBPARTITIONS} subpartitions, two processes, one stream"
    report = Report("external-shuffle", about)
    report.series = [series for way in ways.values() for series in (way.both, way.write, way.read)]
    service, bare = ways["service"], ways["bare"]
    report.add("service / bare, written and read", ratio(service.both, bare.both), at_least=0.7)
    report.add("service / bare, written", ratio(service.write, bare.write))
    report.add("service / bare, read", ratio(service.read, bare.read))
    report.add("service / own disk, both", ratio(service.both, ways["local"].both))
    return report


# ------------------------------------------------------------------------------- this side


def _pieces() -> list[tuple[int, pa.RecordBatch]]:
    """Rows, split already: how rows are split does not depend on where they go."""
    generator = np.random.default_rng(7)
    pieces = []
    each = _BATCH_ROWS // _SUBPARTITIONS
    for _ in range(_BATCHES):
        batch = pa.RecordBatch.from_pydict(
            {
                "key": generator.integers(0, 1 << 24, _BATCH_ROWS),
                "price": generator.random(_BATCH_ROWS),
                "count": generator.integers(0, 1 << 8, _BATCH_ROWS),
                "date": generator.integers(0, 1 << 12, _BATCH_ROWS),
            }
        )
        pieces += [(part, batch.slice(part * each, each)) for part in range(_SUBPARTITIONS)]
    return pieces


def _encoded(place: str, pieces: list[tuple[int, pa.RecordBatch]]) -> list[pa.Buffer]:
    """The bytes that the partition has in a file, as messages."""
    identity = _identity(10_000)
    writer = PartitionWriter(place, identity, _SUBPARTITIONS, compression="none")
    _write(writer, pieces)
    with pa.OSFile(partition_base(place, identity.name) + DATA_SUFFIX) as file:
        size = file.size()
        return [file.read_buffer(_MESSAGE_BYTES) for _ in range(0, size, _MESSAGE_BYTES)]


def _identity(repetition: int) -> PartitionIdentity:
    return PartitionIdentity("bench", "v0", 0, 0, repetition, 1)


def _write(writer: PartitionEncoder, pieces: list[tuple[int, pa.RecordBatch]]) -> PartitionMetrics:
    for subpartition, piece in pieces:
        writer.write(subpartition, piece)
    return writer.commit()


def _through_service(
    port: int, pieces: list[tuple[int, pa.RecordBatch]], repetition: int
) -> tuple[float, float]:
    identity = _identity(repetition)
    address = f"{_HOST}:{port}"
    started_s = time.monotonic()
    with ShuffleServiceTarget(address) as target:
        metrics = _write(target.open(identity, _SUBPARTITIONS, compression="none"), pieces)
        target.publish(
            FinishedExecution(
                attempt=AttemptKey(*identity.producer).to_proto(),
                partitions=[
                    ResultPartition(
                        subpartition_bytes=metrics.subpartition_bytes,
                        rows=metrics.rows,
                        data_bytes=metrics.data_bytes,
                        index_crc32c=metrics.index_crc32c,
                    )
                ],
            )
        )
    written_s = time.monotonic() - started_s
    return written_s, _read_s(identity, address)


def _local(
    place: str, port: int, pieces: list[tuple[int, pa.RecordBatch]], repetition: int
) -> tuple[float, float]:
    identity = _identity(repetition)
    started_s = time.monotonic()
    _write(PartitionWriter(place, identity, _SUBPARTITIONS, compression="none"), pieces)
    written_s = time.monotonic() - started_s
    return written_s, _read_s(identity, f"{_HOST}:{port}")


def _read_s(identity: PartitionIdentity, address: str) -> float:
    """As a task of another TaskManager reads: every block verified, every row decoded."""
    started_s = time.monotonic()
    with InputReader(
        [PartitionSource(identity.name, address)],
        0,
        _SUBPARTITIONS,
        shuffle_dir="/nowhere",
        local_address="another:1",
    ) as reader:
        rows = sum(batch.num_rows for batch in reader)
    if rows != _BATCHES * _BATCH_ROWS:
        raise RuntimeError(f"{rows} rows were read of {_BATCHES * _BATCH_ROWS}")
    return time.monotonic() - started_s


def _bare(port: int, encoded: list[pa.Buffer]) -> tuple[float, float]:
    started_s = time.monotonic()
    with flight.connect(f"grpc://{_HOST}:{port}") as client:
        descriptor = flight.FlightDescriptor.for_command(b"bytes")
        stream, answers = client.do_put(descriptor, _BARE_SCHEMA)
        for data in encoded:
            stream.write_batch(_bare_message(data))
        stream.done_writing()
        answers.read()
        stream.close()
        written_s = time.monotonic() - started_s
        started_s = time.monotonic()
        chunks = client.do_get(flight.Ticket(b"bytes"))
        size = sum(chunk.data.column(0).buffers()[2].size for chunk in chunks)
    if size != sum(data.size for data in encoded):
        raise RuntimeError(f"{size} bytes were read")
    return written_s, time.monotonic() - started_s


def _bare_message(data: pa.Buffer) -> pa.RecordBatch:
    ends = pa.py_buffer(np.array([0, data.size], dtype=np.int64))
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, ends, data])
    return pa.RecordBatch.from_arrays([column], schema=_BARE_SCHEMA)


def _forget(place: str, bare_port: int) -> None:
    """Delete what the round has written, so that the disk has no old round to write back."""
    for file in Path(place, "bench").iterdir():
        file.unlink()
    with flight.connect(f"grpc://{_HOST}:{bare_port}") as client:
        list(client.do_action(flight.Action(_FORGET, b"")))


# ------------------------------------------------------------------------------- the other side


class _BareServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """What Arrow Flight does by itself: bytes to a file, and from it."""

    def __init__(self, path: str, forget: Callable[[], None]) -> None:
        super().__init__(f"grpc://{_HOST}:0")
        self._path = path
        self._forget = forget

    def do_put(self, _context: object, _descriptor: object, reader: Any, writer: Any) -> None:
        """One file, as it comes."""
        with open(self._path, "wb", buffering=0) as file:
            for chunk in reader:
                file.write(chunk.data.column(0).buffers()[2])
        writer.write(pa.py_buffer(b"done"))

    def do_get(self, _context: object, _ticket: flight.Ticket) -> flight.GeneratorStream:
        """The file, in messages."""
        return flight.GeneratorStream(_BARE_SCHEMA, self._messages())

    def _messages(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(self._path) as file:
            while (data := file.read_buffer(_MESSAGE_BYTES)).size:
                yield _bare_message(data)

    def do_action(self, _context: object, _action: flight.Action) -> list[flight.Result]:
        """Delete what was put here and to the shuffle service."""
        os.unlink(self._path)
        self._forget()
        return []


def _forget_all(service: ShuffleService) -> None:
    held = service.finished.inventory()
    service.release_attempts([AttemptKey.from_proto(execution.attempt) for execution in held])


async def _serve(place: str) -> None:
    configuration = Configuration.of(
        {
            "io.tmp.dirs": os.path.join(place, "service"),
            "high-availability.storageDir": os.path.join(place, "storage"),
            "jobmanager.rpc.port": "1",  # no leader ever comes
            "shuffle.service.disk-reserve": "0 b",
        }
    )
    runtime = real_runtime(partition_servers=FlightPartitionServers())
    leader_service = configured_leader_service(runtime, configuration)
    process = ShuffleServiceProcess(runtime, configuration, leader_service)
    await process.start()
    service, loop = process.service, asyncio.get_running_loop()
    assert service is not None
    local = await FlightPartitionServers().start(_HOST, 0, lambda name: partition_base(place, name))

    def forget() -> None:
        loop.call_soon_threadsafe(_forget_all, service)

    bare = _BareServer(os.path.join(place, "bare"), forget)
    print(process.data_address.rpartition(":")[2], local.port, bare.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    bare.shutdown()
    await local.stop()
    await process.stop("the benchmark is over")


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
