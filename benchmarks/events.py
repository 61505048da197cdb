"""The event log: how fast it takes events, what it costs the event loop, the disk, and a job."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.event_logs import (
    GRAPH_SUBTASKS,
    SlowSyncDisk,
    finished_events,
    rounds_of_events,
    write_log,
)
from benchmarks.report import Report, Series, ratio
from holdover.api import Job
from holdover.cli.local_cluster import LocalCluster
from holdover.client import Client
from holdover.runtime import Disk
from holdover.runtime.loop_lag import LoopLagMonitor
from holdover.runtime.real import SystemClock
from holdover.runtime.real_disk import LocalDisk
from holdover.v1.events_pb2 import JobEvent, JobEventRecord
from jobmanager.event_store import EventStoreStatus, EventWriterSettings, JobEventWriter

_EVENTS_A_TURN = 50
_LAG_LOOK_S = 0.001
_SYNC_S = 0.2


async def run() -> Report:
    """Appending for BENCH_SECONDS (10), on this disk and on one that takes 200 ms for a sync, and
    replaying BENCH_EVENTS (1,000,000)."""
    seconds = float(os.environ.get("BENCH_SECONDS", "10"))
    events = int(os.environ.get("BENCH_EVENTS", "1000000"))
    report = Report(
        "events", f"the event log, {seconds:g} s of appending, replay of {events:,} events"
    )
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        await _measure_appending(report, Path(place), seconds)
        await _measure_replay(report, Path(place) / "replay", events)
    return report


async def overhead() -> Report:
    """A job of BENCH_TASKS (5,000) short tasks with the log and without, BENCH_PAIRS pairs (31)."""
    tasks = int(os.environ.get("BENCH_TASKS", "5000"))
    pairs = int(os.environ.get("BENCH_PAIRS", "31"))
    enabled = Series("with the event log", "s")
    disabled = Series("without", "s")
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        cluster = LocalCluster(Path(place) / "cluster", taskmanagers=3, slots=2)
        async with cluster, cluster.client() as client:
            for number in range(pairs + 1):
                # What runs first changes from pair to pair, so that neither gains by its place.
                order = [True, False] if number % 2 else [False, True]
                for with_log in order:
                    taken_s = await _job_s(client, tasks, with_log, f"{number}-{with_log}".lower())
                    if number > 0:  # the first pair warms up
                        (enabled if with_log else disabled).samples.append(taken_s)
    report = Report("event-overhead", f"a job of {tasks} tasks of no work, {pairs} pairs of runs")
    report.series = [enabled, disabled]
    report.add("with the event log / without", ratio(enabled, disabled), at_most=1.02)
    report.add("... all runs together", sum(enabled.samples) / sum(disabled.samples))
    return report


async def _job_s(client: Client, tasks: int, with_log: bool, run: str) -> float:
    """Seconds from the submission of a job to its end."""
    job = Job(run, options={"execution.batch.job-recovery.enabled": with_log})
    job.workload(0, 0, parallelism=tasks)
    started_s = time.monotonic()
    await client.wait(await client.submit(job, run))
    return time.monotonic() - started_s


async def _measure_appending(report: Report, place: Path, seconds: float) -> None:
    pool = finished_events(1_000)
    encoding = Series("protobuf alone, the same records", "1/s")
    accepted = Series("events accepted", "1/s")
    idle = await _idle_lag_ms(min(seconds, 2.0))
    for name, disk in (("this disk", LocalDisk()), ("200 ms a sync", SlowSyncDisk(_SYNC_S))):
        encoding.samples.append(_encoding_rate(pool))
        run = await _append(disk, place / name.replace(" ", "-"), pool, seconds)
        accepted.samples.append(run.events / seconds)
        at_least = 200_000 if name == "this disk" else None
        report.add(f"events/s accepted, {name}", run.events / seconds, at_least=at_least)
        report.add(f"longest stall of the loop, {name}, ms", run.lag_ms, at_most=10)
        report.add(f"memory grown by, {name}, MiB", run.grown_bytes / 2**20, at_most=128)
        per_event = run.status.written_bytes / run.status.durable_sequence
        report.add(f"bytes on disk per event, {name}", per_event)
    report.series += [accepted, encoding]
    bare = sum(event.ByteSize() for event in pool) / len(pool)
    report.add("bytes of the bare event in protobuf", bare)
    report.add("accepted / protobuf alone", ratio(accepted, encoding))
    report.add("longest stall of an idle loop, ms", idle)
    report.notes.append("the bytes on disk include snapshots: the log is compacted every 64 MiB")


class _Appended:
    """What a run of appending has given."""

    def __init__(
        self, events: int, lag_ms: float, grown_bytes: int, status: EventStoreStatus
    ) -> None:
        self.events = events
        self.lag_ms = lag_ms
        self.grown_bytes = grown_bytes
        self.status = status


async def _append(
    disk: Disk, directory: Path, pool: Sequence[JobEvent], seconds: float
) -> _Appended:
    writer = JobEventWriter(
        disk,
        SystemClock(),
        str(directory),
        job_id="job",
        leader_epoch=1,
        snapshot_source=lambda: pool,
        settings=EventWriterSettings(),
    )
    writer.start()
    turns = [pool[at : at + _EVENTS_A_TURN] for at in range(0, len(pool), _EVENTS_A_TURN)]
    before_bytes = most_bytes = _resident_bytes()
    events = turn = 0
    with _lag_measured() as lag_ms:
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            await writer.wait_for_room()
            for event in turns[turn % len(turns)]:
                writer.append(event)
            events += _EVENTS_A_TURN
            turn += 1
            if turn % 1_000 == 0:
                most_bytes = max(most_bytes, _resident_bytes())
            await asyncio.sleep(0)
        longest_ms = lag_ms()
    await writer.flush(60)
    status = writer.status
    await writer.close()
    return _Appended(events, longest_ms, most_bytes - before_bytes, status)


async def _idle_lag_ms(seconds: float) -> float:
    """What the machine itself does to a loop that only spins."""
    with _lag_measured() as lag_ms:
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:  # noqa: ASYNC110  to spin is what is measured
            await asyncio.sleep(0)
        return lag_ms()


@contextmanager
def _lag_measured() -> Iterator[Callable[[], float]]:
    """Hands out what tells the longest lag so far, in milliseconds."""
    monitor = LoopLagMonitor(_LAG_LOOK_S, warn_above_s=3600)
    looking = asyncio.ensure_future(monitor.run())
    try:
        yield lambda: monitor.max_lag_s * 1000
    finally:
        looking.cancel()


def _encoding_rate(pool: Sequence[JobEvent], seconds: float = 1.0) -> float:
    """Records per second that protobuf encodes while nothing else happens."""
    count = 0
    started_s = time.monotonic()
    while (taken_s := time.monotonic() - started_s) < seconds:
        for event in pool:
            count += 1
            JobEventRecord(
                sequence=count, leader_epoch=1, wall_ms=1_750_000_000_000, event=event
            ).SerializeToString()
    return count / taken_s


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _measure_replay(report: Report, directory: Path, events: int) -> None:
    """In a process of its own, whose memory is then that of the replay."""
    written = await write_log(str(directory), rounds_of_events(events))
    for what, into_graph in (("", False), (" into a job's state", True)):
        command = [sys.executable, "-m", "benchmarks.event_logs", str(directory), str(into_graph)]
        process = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=True
        )
        told = json.loads(process.stdout)
        if told["events"] != written:
            raise AssertionError(f"{written} events were written, {told['events']} were read")
        # How long the state takes depends on what the events do to it: here, each resets one.
        limit_s = None if into_graph else 10.0
        report.add(f"replay{what}, s", told["seconds"], at_most=limit_s)
        report.add(f"replay{what}, peak memory, MiB", told["peak_mib"], at_most=500)
    report.notes.append(
        f"{written:,} events of {GRAPH_SUBTASKS} subtasks that finish and are reset in turns"
    )
