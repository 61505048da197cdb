"""A partition read from another process, verified and decoded, beside bare Arrow Flight.

As a program (`python -m benchmarks.shuffle_throughput DIRECTORY`) it is that other process: it
serves the directory's partition and the same rows as an Arrow IPC file, and prints both ports.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import flight

from benchmarks.report import Report, Series, ratio
from benchmarks.serving_process import serving_process
from shuffle.environment import InputReader, PartitionSource, ResultOutput, ResultWriter
from shuffle.flight_servers import FlightPartitionServers
from shuffle.partition_file import PartitionFile
from shuffle.partition_name import PartitionIdentity, partition_base
from shuffle.partitioner import HashPartitioner

_HOST = "127.0.0.1"
_SUBPARTITIONS = 8
_BATCHES = 256
_BATCH_ROWS = 131_072
_REPETITIONS = 15
_IDENTITIES = {
    "none": PartitionIdentity("bench", "v0", 0, 0, 0, 1),
    "lz4": PartitionIdentity("bench", "v1", 0, 0, 0, 1),
}
_IPC_FILE = "rows.arrow"


async def run() -> Report:
    """One stream; every row is read to the end by a consumer that only counts bytes."""
    ours = Series("shuffle, checksums verified", "MB/s")
    compressed = Series("shuffle, lz4 (bytes before compression)", "MB/s")
    bare = Series("bare Arrow Flight of the same rows", "MB/s")
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        _write(Path(place))
        with serving_process("benchmarks.shuffle_throughput", place) as (partition_port, bare_port):
            for repetition in range(_REPETITIONS + 1):
                rates = [
                    _bare_rate(bare_port),
                    _shuffle_rate(place, partition_port, "none"),
                    _shuffle_rate(place, partition_port, "lz4"),
                ]
                if repetition > 0:  # the first one finds nothing in the page cache
                    for series, rate in zip((bare, ours, compressed), rates, strict=True):
                        series.samples.append(rate)
    report = Report("shuffle", f"{_SUBPARTITIONS} subpartitions, two processes, one stream")
    report.series = [ours, compressed, bare]
    report.add("shuffle / bare Arrow Flight", ratio(ours, bare), at_least=0.8)
    return report


def _write(place: Path) -> None:
    """The partition, once for each compression, and a file of the same batches for bare Flight."""
    generator = np.random.default_rng(7)
    for compression, identity in _IDENTITIES.items():
        output = ResultOutput(identity, HashPartitioner(["key"], _SUBPARTITIONS))
        writer = ResultWriter(str(place), [output], compression=compression)
        for _ in range(_BATCHES):
            writer.write(
                pa.RecordBatch.from_pydict(
                    {
                        "key": generator.integers(0, 1 << 24, _BATCH_ROWS),
                        "price": generator.random(_BATCH_ROWS),
                        "count": generator.integers(0, 1 << 8, _BATCH_ROWS),
                        "date": generator.integers(0, 1 << 12, _BATCH_ROWS),
                    }
                )
            )
        writer.commit()
    name = _IDENTITIES["none"].name
    partition = PartitionFile.open(partition_base(str(place), name), name)
    path = str(place / _IPC_FILE)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, partition.schema) as rows:
        for batch in partition.read(0, _SUBPARTITIONS):
            rows.write_batch(batch)


def _bare_rate(port: int) -> float:
    with flight.connect(f"grpc://{_HOST}:{port}") as client:
        started_s = time.monotonic()
        count: int = sum(chunk.data.nbytes for chunk in client.do_get(flight.Ticket(b"rows")))
        return count / (time.monotonic() - started_s) / 1e6


def _shuffle_rate(place: str, port: int, compression: str) -> float:
    source = PartitionSource(_IDENTITIES[compression].name, f"{_HOST}:{port}")
    elsewhere = os.path.join(place, "elsewhere")  # nothing is read by memory map
    started_s = time.monotonic()
    with InputReader(
        [source], 0, _SUBPARTITIONS, shuffle_dir=elsewhere, local_address="another:1"
    ) as reader:
        count: int = sum(batch.nbytes for batch in reader)
    return count / (time.monotonic() - started_s) / 1e6


class _BareServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """What Arrow Flight does by itself: batches of a memory-mapped file."""

    def __init__(self, path: str) -> None:
        super().__init__(f"grpc://{_HOST}:0")
        self._path = path

    def do_get(self, _context: object, _ticket: flight.Ticket) -> flight.RecordBatchStream:
        """All batches of the file."""
        file = pa.ipc.open_file(pa.memory_map(self._path))
        batches = (file.get_batch(index) for index in range(file.num_record_batches))
        return flight.GeneratorStream(file.schema, batches)


async def _serve(place: str) -> None:
    bases = {
        identity.name: partition_base(place, identity.name) for identity in _IDENTITIES.values()
    }
    partitions = await FlightPartitionServers().start(_HOST, 0, bases.get)
    bare = _BareServer(str(Path(place) / _IPC_FILE))
    print(partitions.port, bare.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    bare.shutdown()
    await partitions.stop()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
