"""What mutual TLS costs: a partition over the network, a query, and many small tasks.

As a program (`python -m benchmarks.tls DIRECTORY`) it is the process that serves the partition,
once in plain text and once over TLS, and prints both ports.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.report import Report, Series, ratio
from benchmarks.serving_process import serving_process
from holdover.api import Job
from holdover.cli.certificate_authority import make_certificates, security_options
from holdover.cli.local_cluster import LocalCluster
from holdover.cli.tpch.data import tpch_data
from holdover.cli.tpch.queries import QUERIES
from holdover.client import Client
from holdover.config import Configuration
from holdover.runtime.transport_security import CredentialFiles, credential_files
from shuffle.environment import InputReader, PartitionSource, ResultOutput, ResultWriter
from shuffle.flight_servers import FlightPartitionServers
from shuffle.partition_name import PartitionIdentity, partition_base
from shuffle.partitioner import HashPartitioner

_HOST = "127.0.0.1"
_IDENTITY = PartitionIdentity("bench", "v0", 0, 0, 0, 1)
_SUBPARTITIONS = 8
_BATCHES = 128
_BATCH_ROWS = 131_072
_FETCHES = 9
_SCALE = float(os.environ.get("BENCH_SCALE", "3"))
_REPETITIONS = int(os.environ.get("BENCH_REPETITIONS", "5"))
_TASKS = 1000
_TASKMANAGERS, _SLOTS = 3, 2


async def run() -> Report:
    """Each in turns with and without TLS; connections and caches are warm."""
    report = Report("tls", "two clusters of the same size, one with mutual TLS, in turns")
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        options = _certificates(Path(place))
        plain, secured = await asyncio.to_thread(_fetches, place, options)
        report.series += [secured, plain]
        report.add("partition over TLS / in plain text (rates)", ratio(secured, plain))
        for secured, plain in await _jobs(Path(place), options):
            report.series += [secured, plain]
            report.add(f"{secured.name} / without", ratio(secured, plain))
    return report


def _certificates(place: Path) -> dict[str, str]:
    make_certificates(place / "certificates", (), days=1)
    return security_options(place / "certificates")


# ------------------------------------------------------------------------------- one partition


def _fetches(place: str, options: dict[str, str]) -> tuple[Series, Series]:
    plain = Series("partition, one stream, plain text", "MB/s")
    secured = Series("partition, one stream, TLS", "MB/s")
    files = credential_files(Configuration.of(options))
    _write(place)
    with serving_process("benchmarks.tls", place) as (plain_port, secured_port):
        for repetition in range(_FETCHES + 1):
            rates = [_rate(place, plain_port, None), _rate(place, secured_port, files)]
            if repetition > 0:  # the first one finds nothing in the page cache
                for series, rate in zip((plain, secured), rates, strict=True):
                    series.samples.append(rate)
    return plain, secured


def _write(place: str) -> None:
    generator = np.random.default_rng(7)
    output = ResultOutput(_IDENTITY, HashPartitioner(["key"], _SUBPARTITIONS))
    writer = ResultWriter(place, [output], compression="none")
    for _ in range(_BATCHES):
        keys = generator.integers(0, 1 << 24, _BATCH_ROWS)
        columns = {"key": keys, "price": generator.random(_BATCH_ROWS)}
        writer.write(pa.RecordBatch.from_pydict(columns))
    writer.commit()


def _rate(place: str, port: int, files: CredentialFiles | None) -> float:
    started_s = time.monotonic()
    with InputReader(
        [PartitionSource(_IDENTITY.name, f"{_HOST}:{port}")],
        0,
        _SUBPARTITIONS,
        shuffle_dir=os.path.join(place, "elsewhere"),  # nothing is read by memory map
        local_address="another:1",
        credentials=files,
    ) as reader:
        count: int = sum(batch.nbytes for batch in reader)
    return count / (time.monotonic() - started_s) / 1e6


# ------------------------------------------------------------------------------- whole clusters


async def _jobs(place: Path, options: dict[str, str]) -> list[tuple[Series, Series]]:
    """Seconds of a query and of many small tasks: with TLS, without."""
    names = (f"Q9 at scale factor {_SCALE:g}", f"{_TASKS} tasks of no work")
    pairs = [(Series(f"{name}, TLS", "s"), Series(f"{name}, plain text", "s")) for name in names]
    data = await asyncio.to_thread(tpch_data, _SCALE)
    async with AsyncExitStack() as stack:
        clients = []
        for name, chosen in (("secured", options), ("plain", {})):
            cluster = LocalCluster(
                place / name, taskmanagers=_TASKMANAGERS, slots=_SLOTS, options=chosen
            )
            await stack.enter_async_context(cluster)
            clients.append(await stack.enter_async_context(cluster.client()))
        for repetition in range(_REPETITIONS + 1):
            for which, client in enumerate(clients):
                output = str(place / f"output-{which}-{repetition}")
                small = Job("small")
                small.workload(0, 0, parallelism=_TASKS)
                taken_s = [await _time_s(client, QUERIES[9].job(data, output))]
                taken_s.append(await _time_s(client, small))
                if repetition > 0:  # the first one warms up
                    for pair, seconds in zip(pairs, taken_s, strict=True):
                        pair[which].samples.append(seconds)
    return pairs


async def _time_s(client: Client, job: Job) -> float:
    """From submission to the end."""
    started_s = time.monotonic()
    await client.wait(await client.submit(job))
    return time.monotonic() - started_s


async def _serve(place: str) -> None:
    configuration = Configuration.of(security_options(Path(place) / "certificates"))
    files = await asyncio.to_thread(credential_files, configuration)
    servers = [
        await FlightPartitionServers(chosen).start(
            _HOST, 0, lambda name: partition_base(place, name)
        )
        for chosen in (None, files)
    ]
    print(*(server.port for server in servers), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
