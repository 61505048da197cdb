"""A job as clients see it: made from the scheduler's state, never the other way round."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence

from holdover.runtime import Clock
from holdover.runtime.log import Log
from holdover.v1 import common_pb2, events_pb2, job_pb2, jobmanager_pb2
from jobmanager.job_store import StoredJob
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import TERMINAL_JOB_STATES, JobState
from jobmanager.scheduler.vertices import ExecutionJobVertex, ExecutionVertex

HISTORY_ENTRIES_MAX = 500
TRACEBACK_CHARACTERS_MAX = 64 * 1024

_log = Log(__name__)


class JobHistory:
    """Every state that the job has had, over all leaders, with epochs and times; at most the last
    500.
    """

    def __init__(self, job: StoredJob, epoch: int, clock: Clock) -> None:
        self._job_id = job.job_id
        self._epoch = epoch
        self._clock = clock
        self._submitted_wall_ms = job.submitted_wall_ms
        self._changes: list[events_pb2.JobStateChanged] = []

    def replayed(self, changes: Sequence[events_pb2.JobStateChanged]) -> None:
        """What the log says."""
        self._changes = list(changes)[-HISTORY_ENTRIES_MAX:]

    def add(self, state: JobState) -> None:
        """The state changes now."""
        change = events_pb2.JobStateChanged(
            state=state.value,
            leader_epoch=self._epoch,
            wall_ms=self._clock.wall_ms(),
        )
        self._changes = [*self._changes[1 - HISTORY_ENTRIES_MAX :], change]
        _log.info("job state", job=self._job_id, state=state.name, epoch=self._epoch)

    def note(self, event: events_pb2.JobEvent) -> None:
        """Something happened: a change of state is kept, and what must run again is logged."""
        if event.HasField("job_state_changed"):
            self.add(JobState(event.job_state_changed.state))
        elif event.HasField("vertex_reset"):
            reset = event.vertex_reset
            _log.info(
                "subtasks run again",
                job=self._job_id,
                vertex=reset.vertex_id,
                count=len(reset.subtasks),
                reason=events_pb2.ResetReason.Name(reset.reason).removeprefix("RESET_REASON_"),
            )

    def changes(self) -> list[events_pb2.JobStateChanged]:
        """The changes that the event log tells of, oldest first. The end is none of them: it counts
        when the job's summary is stored, and until then a next leader has to bring it about.
        """
        ends = [state.value for state in TERMINAL_JOB_STATES]
        return [change for change in self._changes if change.state not in ends]

    def entries(self) -> Iterable[jobmanager_pb2.JobStateEntry]:
        """For a JobStatus: CREATED, then the changes."""
        yield jobmanager_pb2.JobStateEntry(
            state=common_pb2.JOB_STATE_CREATED, wall_ms=self._submitted_wall_ms
        )
        for change in self._changes:
            yield jobmanager_pb2.JobStateEntry(
                state=change.state, leader_epoch=change.leader_epoch, wall_ms=change.wall_ms
            )


def job_status(
    job: StoredJob, scheduler: Scheduler, history: JobHistory, *, with_vertices: bool
) -> jobmanager_pb2.JobStatus:
    """The status of a job that this leader runs (the event log's part is added by the
    JobMaster).
    """
    graph = scheduler.graph
    status = jobmanager_pb2.JobStatus(
        job_id=job.job_id,
        name=job.graph.name,
        state=graph.state.value,
        history=history.entries(),
        failure=graph.failure,
        submitted_wall_ms=job.submitted_wall_ms,
        waiting=scheduler.waiting,
        restarts=scheduler.restart_strategy.restarts,
        subtasks_total=sum(owner.parallelism for owner in graph.vertices.values()),
        subtasks_finished=sum(owner.finished_count for owner in graph.vertices.values()),
    )
    if with_vertices:
        status.vertices.extend(_vertex_status(owner) for owner in graph.vertices.values())
    return status


def _vertex_status(owner: ExecutionJobVertex) -> jobmanager_pb2.VertexStatus:
    return jobmanager_pb2.VertexStatus(
        vertex_id=owner.vertex_id,
        name=owner.vertex.name,
        parallelism=owner.parallelism,
        state_counts=owner.state_counts,
        rows_in=owner.rows_in,
        rows_out=owner.rows_out,
        bytes_out=owner.bytes_out,
    )


def held_by_workers(graphs: Iterable[ExecutionGraph]) -> dict[str, tuple[int, int]]:
    """How many finished partitions each worker holds of these jobs, and their bytes."""
    held: dict[str, tuple[int, int]] = {}
    for graph in graphs:
        for vertex in graph.all_subtasks():
            if vertex.finished is not None and vertex.available:
                count, size = held.get(vertex.stored_at, (0, 0))
                held[vertex.stored_at] = (
                    count + len(vertex.finished.partitions),
                    size + execution_bytes(vertex.finished),
                )
    return held


def execution_bytes(execution: common_pb2.FinishedExecution) -> int:
    """Bytes of an execution's partitions on disk."""
    return sum(partition.data_bytes for partition in execution.partitions)


def subtask_status(graph: ExecutionGraph, vertex: ExecutionVertex) -> jobmanager_pb2.SubtaskStatus:
    """A subtask as a client sees it."""
    finished = vertex.finished
    return jobmanager_pb2.SubtaskStatus(
        attempt=vertex.key(graph.job_id).to_proto(),
        state=vertex.state.value,
        worker_id=vertex.stored_at or (vertex.slot.worker_id if vertex.slot else ""),
        bytes_out=execution_bytes(finished) if finished else 0,
        duration_ms=finished.duration_ms if finished else 0,
    )


def result_files(graph: ExecutionGraph) -> list[jobmanager_pb2.ResultFile]:
    """The files that the job's sinks have published."""
    files: list[jobmanager_pb2.ResultFile] = []
    for owner in graph.vertices.values():
        formats = [o.sink.format for o in owner.vertex.operators if o.HasField("sink")]
        for vertex in owner.subtasks:
            if vertex.finished is None:
                continue
            for file in vertex.finished.staged_files:
                files.append(
                    jobmanager_pb2.ResultFile(
                        index=len(files),
                        path=file.final_path,
                        bytes=file.bytes,
                        rows=file.rows,
                        format=formats[0] if formats else job_pb2.FILE_FORMAT_UNSPECIFIED,
                    )
                )
    return files


def internal_failure(error: Exception) -> common_pb2.Failure:
    """What a job that met a defect of the JobManager ends with."""
    trace = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS_MAX:]
    return common_pb2.Failure(
        kind=common_pb2.FAILURE_KIND_JOB,
        message=f"the JobManager failed on this job: {error!r}; please report this",
        traceback=trace,
    )
