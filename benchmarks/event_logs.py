"""Event logs for benchmarks.

As a program, `DIRECTORY True|False` replays one, into a job's state or not, and tells seconds,
events and peak memory as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from holdover.api import Job
from holdover.ids import AttemptKey
from holdover.runtime import AppendFile
from holdover.runtime.real import SystemClock
from holdover.runtime.real_disk import LocalDisk
from holdover.v1 import common_pb2, events_pb2, job_pb2
from holdover.v1.events_pb2 import JobEvent
from jobmanager.event_store import EventWriterSettings, JobEventWriter, replay
from jobmanager.recovery import replay_job

GRAPH_SUBTASKS = 2_000
_CONSUMERS = 4
_VERTEX = "v0"
_EVENTS_A_FLUSH = 5_000


def finished_events(count: int, attempt: int = 0) -> list[JobEvent]:
    """Subtasks that have finished, each with a partition of four subpartitions."""
    return [_finished(subtask, attempt) for subtask in range(count)]


def _finished(subtask: int, attempt: int) -> JobEvent:
    partition = common_pb2.ResultPartition(
        subpartition_bytes=[100_000 + subtask] * _CONSUMERS,
        rows=25_000,
        data_bytes=400_000 + subtask,
        index_crc32c=0x9E3779B9 ^ subtask,
    )
    execution = common_pb2.FinishedExecution(
        attempt=AttemptKey("job", _VERTEX, subtask, attempt, 1).to_proto(),
        partitions=[partition],
        rows_in=25_000,
        rows_out=25_000,
        duration_ms=1_234,
    )
    location = common_pb2.PartitionLocation(worker_id=f"tm-{subtask % 100}")
    finished = events_pb2.ExecutionVertexFinished(execution=execution, location=location)
    return JobEvent(vertex_finished=finished)


def rounds_of_events(count: int) -> Iterator[JobEvent]:
    """At least so many events that happen to one vertex: all its subtasks finish, all are reset."""
    running = events_pb2.JobStateChanged(state=common_pb2.JOB_STATE_RUNNING)
    yield JobEvent(job_state_changed=running)
    shape = events_pb2.ExecutionJobVertexInitialized(vertex_id=_VERTEX, parallelism=GRAPH_SUBTASKS)
    yield JobEvent(vertex_initialized=shape)
    reset = events_pb2.ExecutionVertexReset(vertex_id=_VERTEX, subtasks=range(GRAPH_SUBTASKS))
    done = 2
    for attempt in range(1 + count // GRAPH_SUBTASKS):
        if attempt:
            yield JobEvent(vertex_reset=reset)
        yield from finished_events(GRAPH_SUBTASKS, attempt)
        done += GRAPH_SUBTASKS + 1
        if done >= count:
            return


async def write_log(directory: str, events: Iterator[JobEvent], job_id: str = "job") -> int:
    """Write a log that is never compacted; return the number of its events."""
    writer = JobEventWriter(
        LocalDisk(),
        SystemClock(),
        directory,
        job_id=job_id,
        leader_epoch=1,
        snapshot_source=list,
        settings=EventWriterSettings(compaction_bytes=1 << 40),
    )
    writer.start()
    count = 0
    for event in events:
        writer.append(event)
        count += 1
        if count % _EVENTS_A_FLUSH == 0:
            # An overflow of the buffer would cost a snapshot, and there is no state to make one of.
            await writer.flush(60)
    await writer.flush(60)
    await writer.close()
    return count


class SlowSyncDisk(LocalDisk):
    """A local disk that takes a while for each sync of a file."""

    def __init__(self, sync_s: float) -> None:
        super().__init__()
        self._sync_s = sync_s

    async def open_append(self, path: str) -> AppendFile:
        """See `Disk.open_append`."""
        return _SlowFile(await super().open_append(path), self._sync_s)


class _SlowFile:
    def __init__(self, file: AppendFile, sync_s: float) -> None:
        self._file = file
        self._sync_s = sync_s

    @property
    def path(self) -> str:
        return self._file.path

    async def write(self, data: bytes) -> None:
        await self._file.write(data)

    async def sync(self) -> None:
        await asyncio.sleep(self._sync_s)
        await self._file.sync()

    async def truncate(self, size: int) -> None:
        await self._file.truncate(size)

    async def close(self) -> None:
        await self._file.close()


def _graph() -> job_pb2.JobGraph:
    """A job with that one vertex."""
    job = Job("job")
    job.workload(0, 0, parallelism=GRAPH_SUBTASKS)
    return job.build("job")


async def _replay(directory: str, into_graph: bool) -> int:
    disk = LocalDisk()
    if into_graph:
        return (await replay_job(disk, directory, _graph())).findings.events
    return (await replay(disk, directory, lambda _: None)).events


def _peak_bytes() -> int:
    """Of this program. What `getrusage` tells begins with the memory of the process it was forked
    from."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell VmHWM")


def main() -> None:
    """See the module."""
    directory, into_graph = sys.argv[1], sys.argv[2] == "True"
    started_s = time.monotonic()
    events = asyncio.run(_replay(directory, into_graph))
    seconds = time.monotonic() - started_s
    peak_mib = _peak_bytes() / 2**20
    print(json.dumps({"events": events, "seconds": seconds, "peak_mib": peak_mib}))


if __name__ == "__main__":
    main()
