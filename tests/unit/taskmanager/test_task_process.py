"""The task process as the TaskManager makes it: forked, single-threaded, without gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdover.runtime import TaskProcessSpec
from holdover.runtime.real import real_runtime
from holdover.v1.common_pb2 import ExecutionAttempt
from holdover.v1.job_pb2 import JobGraph, JobVertex, Operator, Workload
from holdover.v1.taskmanager_pb2 import RunTask, TaskCommand, TaskDeployment, TaskEvent


async def test_forked_task_processes_run_attempts(tmp_path: Path) -> None:
    """P52: the entry and all that it imports can be forked (no gRPC, no thread), or open fails."""
    workload = Operator(name="w", workload=Workload(output_bytes=0))
    graph = JobGraph(job_id="job", vertices=[JobVertex(vertex_id="v0", operators=[workload])])
    path = tmp_path / "graph"
    path.write_bytes(graph.SerializeToString())
    spec = TaskProcessSpec(entry="taskmanager.task:main", log_path=str(tmp_path / "log"))
    pool = await real_runtime().task_processes.open(spec)
    try:
        async with asyncio.timeout(30):
            process = await pool.acquire()
            message = await process.receive()
            assert message is not None, (tmp_path / "log").read_text()
            assert TaskEvent.FromString(message).HasField("ready")
            for subtask in range(3):
                attempt = ExecutionAttempt(job_id="job", vertex_id="v0", subtask=subtask)
                run = RunTask(
                    deployment=TaskDeployment(attempt=attempt, parallelism=3),
                    job_graph_path=str(path),
                    shuffle_directory=str(tmp_path / "shuffle"),
                    scratch_directory=str(tmp_path / "scratch"),
                )
                await process.send(TaskCommand(run=run).SerializeToString())
                message = await process.receive()
                assert message is not None, (tmp_path / "log").read_text()
                assert TaskEvent.FromString(message).finished.attempt == attempt
    finally:
        await pool.close()
