"""How a JobManager takes a large job up again: a real process, light TaskManagers, real gRPC."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.event_logs import write_log
from benchmarks.light_taskmanagers import LightTaskManagers
from benchmarks.report import Report, Series
from holdover.api import Job
from holdover.cli.local_cluster import LocalCluster
from holdover.client import Client
from holdover.config import HIGH_AVAILABILITY_CLUSTER_ID, Configuration
from holdover.coordination.file_leader import FileLeaderService
from holdover.errors import ClusterError
from holdover.ids import AttemptKey
from holdover.runtime.real import real_runtime
from holdover.v1 import common_pb2, events_pb2, job_pb2
from holdover.v1.jobmanager_pb2 import WORKER_RETURN_KIND_IN_TIME, RecoveryReport
from jobmanager.job_store import JobStore

_JOB_ID = "large"
_VERTICES = 8
_CONSUMERS = 8
_WORKERS = int(os.environ.get("BENCH_WORKERS", "500"))
_PARTITIONS = int(os.environ.get("BENCH_PARTITIONS", "200000"))
_REPETITIONS = int(os.environ.get("BENCH_REPETITIONS", "3"))
_TIMEOUT_S = 120.0
_POLL_INTERVAL_S = 0.05
_FIRST_EPOCH = 1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def run() -> Report:
    """A job of finished producers, all of whose partitions are to be kept, loses its JobManager."""
    running = Series("start of the process to RUNNING", "s")
    cpu = Series("... CPU of the JobManager until then", "s")
    memory = Series("... its peak memory until then", "MiB")
    lag = Series("... longest stall of its event loop", "ms")
    attempts = Series("... attempts to register, each TaskManager", "")
    phases: dict[str, Series] = {}
    with tempfile.TemporaryDirectory(prefix="holdover-bench-") as place:
        cluster = LocalCluster(Path(place) / "cluster", taskmanagers=0)
        storage = f"{cluster.storage}/{Configuration.of({}).get(HIGH_AVAILABILITY_CLUSTER_ID)}"
        held = await _prepare(storage)
        retrieval = FileLeaderService(real_runtime(), storage).retrieval()
        workers = LightTaskManagers(real_runtime(), held, retrieval)
        async with workers, asyncio.timeout(_TIMEOUT_S * _REPETITIONS):
            for _ in range(_REPETITIONS):
                tried = workers.attempts
                started_s = time.monotonic()
                pid = cluster.start_jobmanager()
                try:
                    async with cluster.client() as client:
                        report = await _until_running(client)
                        running.samples.append(time.monotonic() - started_s)
                        cpu.samples.append(_cpu_s(pid))
                        memory.samples.append(_peak_mib(pid))
                        lag.samples.append((await client.cluster()).loop_lag_max_ms)
                finally:
                    await cluster.kill_jobmanager()
                attempts.samples.append((workers.attempts - tried) / _WORKERS)
                _check(workers, report)
                for phase in report.phases:
                    series = phases.setdefault(phase.name, Series(f"... phase {phase.name}", "s"))
                    series.samples.append(phase.duration_ms / 1000)
        await cluster.stop()
    report_of_all = Report(
        "recovery-size",
        f"{_WORKERS} TaskManagers offer {_PARTITIONS:,} partitions to a new JobManager",
    )
    report_of_all.series = [running, *phases.values(), cpu, memory, lag, attempts]
    report_of_all.add("start to RUNNING, s", running.median, at_most=15)
    report_of_all.add("peak memory, MiB", memory.median, at_most=1024)
    report_of_all.add("longest stall of the event loop, ms", lag.median)
    return report_of_all


async def _prepare(storage: str) -> dict[str, list[common_pb2.FinishedExecution]]:
    """What an earlier leader has left behind: the job, its log, who was there; and what each
    TaskManager holds."""
    runtime = real_runtime()
    election = FileLeaderService(runtime, storage).election()
    assert (await election.campaign("127.0.0.1:1")).epoch == _FIRST_EPOCH
    await election.step_down()
    store = JobStore(runtime.disk, storage)
    await store.open()
    graph = _graph()
    await store.store(graph, submitted_wall_ms=runtime.clock.wall_ms(), leader_epoch=_FIRST_EPOCH)
    names = [f"tm-{number}" for number in range(_WORKERS)]
    await store.write_workers(names)
    held: dict[str, list[common_pb2.FinishedExecution]] = {name: [] for name in names}
    await write_log(store.events_directory(_JOB_ID), _history(graph, held), _JOB_ID)
    return held


def _graph() -> job_pb2.JobGraph:
    job = Job(_JOB_ID)
    stages = [
        job.workload(0, 0, name=f"produce-{i}", parallelism=_PARTITIONS // _VERTICES)
        for i in range(_VERTICES)
    ]
    for number, stage in enumerate(stages):
        stage.hash("value").workload(600, name=f"consume-{number}", parallelism=_CONSUMERS)
    return job.build(_JOB_ID)


def _history(
    graph: job_pb2.JobGraph, held: dict[str, list[common_pb2.FinishedExecution]]
) -> Iterator[events_pb2.JobEvent]:
    """All producers have finished, spread over the TaskManagers."""
    yield events_pb2.JobEvent(
        job_state_changed=events_pb2.JobStateChanged(state=common_pb2.JOB_STATE_RUNNING)
    )
    producers = [vertex for vertex in graph.vertices if vertex.outputs]
    for vertex in producers:
        shape = events_pb2.ExecutionJobVertexInitialized(
            vertex_id=vertex.vertex_id, parallelism=vertex.parallelism
        )
        yield events_pb2.JobEvent(vertex_initialized=shape)
    names = list(held)
    for vertex in producers:
        for subtask in range(vertex.parallelism):
            name = names[subtask % len(names)]
            execution = _finished(AttemptKey(_JOB_ID, vertex.vertex_id, subtask, 0, _FIRST_EPOCH))
            held[name].append(execution)
            location = common_pb2.PartitionLocation(worker_id=name)
            finished = events_pb2.ExecutionVertexFinished(execution=execution, location=location)
            yield events_pb2.JobEvent(vertex_finished=finished)


def _finished(key: AttemptKey) -> common_pb2.FinishedExecution:
    partition = common_pb2.ResultPartition(
        subpartition_bytes=[100_000 + key.subtask] * _CONSUMERS,
        rows=25_000,
        data_bytes=_CONSUMERS * (100_000 + key.subtask),
        index_crc32c=0x9E3779B9 ^ key.subtask,
    )
    return common_pb2.FinishedExecution(
        attempt=key.to_proto(), partitions=[partition], rows_out=25_000, duration_ms=1_234
    )


async def _until_running(client: Client) -> RecoveryReport:
    """The report of the leader that runs the job."""
    while True:
        try:
            reports = await client.recovery_reports(_JOB_ID)
        except ClusterError:
            reports = []  # it starts
        if reports and reports[-1].complete:
            return reports[-1]
        await asyncio.sleep(_POLL_INTERVAL_S)


def _check(workers: LightTaskManagers, report: RecoveryReport) -> None:
    workers.check()
    kept = sum(vertex.kept for vertex in report.vertices)
    if kept != _PARTITIONS or report.restarted_reason:
        back = sum(worker.kind == WORKER_RETURN_KIND_IN_TIME for worker in report.workers)
        phases = {phase.name: phase.duration_ms for phase in report.phases}
        raise RuntimeError(
            f"{kept} of {_PARTITIONS} partitions were kept, {back} of {_WORKERS} TaskManagers came"
            f" in time, phases in ms {phases}; {report.restarted_reason}"
        )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not tell VmHWM")
