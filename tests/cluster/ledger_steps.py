"""Steps that stories about ledger jobs share: bring a job to a moment, and ask what has rerun."""

from __future__ import annotations

from pathlib import Path

from holdover.v1.events_pb2 import ResetReason
from holdover.v1.jobmanager_pb2 import RecoveryReport, VertexRecovery
from tests.cluster.ledger_jobs import LedgerJob
from tests.cluster.running_cluster import HeldPartition, RunningCluster, wait_until


async def until_held_back(
    running: RunningCluster, job: LedgerJob, held: str = "M", *done: str
) -> LedgerJob:
    """Submit the job, and wait until all of the first stages is finished and the next one waits:
    all of its tasks, so that none of them begins at a moment that somebody else chooses. There must
    be a slot for each.
    """
    done = done or ("S",)
    job.gates.close(held)
    await running.submit(job)
    await wait_until(
        lambda: 0 < len(job.ledger.starts(done[0])) == len(job.ledger.starts(held)),
        f"all of {held} runs",
    )
    for stage in done:
        assert job.ledger.ends(stage) == job.ledger.starts(stage)
    return job


async def loss_noticed(running: RunningCluster, job: LedgerJob, *stages: str) -> None:
    """Wait until every TaskManager knows that its JobManager is gone, and no task of these stages
    lives any more. All of those that were deployed must have begun before.
    """
    for name in running.taskmanager_names():
        await wait_until(
            lambda name=name: running.logged(name, "JobManager lost"),  # type: ignore[misc]
            f"{name} notices the loss",
        )
    await tasks_ended(job, *stages)


async def tasks_ended(job: LedgerJob, *stages: str, before_epoch: int | None = None) -> None:
    """Wait until no task of these stages lives, or none that an earlier leader has deployed: only
    then is a gate that opens for those who come after them.
    """
    for stage in stages:
        await wait_until(
            lambda stage=stage: not task_pids(job, stage, before_epoch),  # type: ignore[misc]
            f"the tasks of {stage} are ended",
        )


def begun(job: LedgerJob, stage: str, epoch: int) -> set[int]:
    """Subtasks of the stage that have begun under the leader of that epoch."""
    lines = [line for line in job.ledger.lines() if line.what == "start" and line.stage == stage]
    return {line.subtask for line in lines if line.epoch == epoch}


def once(job: LedgerJob, stage: str, n: int) -> None:
    """Each task of the stage has begun once."""
    assert job.ledger.starts(stage) == {(stage, subtask): 1 for subtask in range(n)}


def rerun(job: LedgerJob, stage: str) -> set[int]:
    """Subtasks of the stage that have begun more than once."""
    return {task[1] for task, count in job.ledger.starts(stage).items() if count > 1}


def held_by_stage(
    running: RunningCluster, job: LedgerJob, stage: str, worker: str | None = None
) -> list[HeldPartition]:
    """Published partitions of the stage on the disk of one worker, or of all."""
    vertex_id = vertex_of(job, stage)
    held = running.held(job.job_id, worker)
    return [partition for partition in held if partition.identity.vertex == vertex_id]


def held_subtasks(
    running: RunningCluster, job: LedgerJob, stage: str, worker: str | None = None
) -> set[int]:
    """Subtasks whose output is published."""
    held = held_by_stage(running, job, stage, worker)
    return {partition.identity.subtask for partition in held}


def vertex_of(job: LedgerJob, stage: str) -> str:
    """Id of the vertex whose tasks have noted that stage."""
    return next(line.vertex_id for line in job.ledger.lines() if line.stage == stage)


def task_pids(job: LedgerJob, stage: str, before_epoch: int | None = None) -> list[int]:
    """Living processes that have begun a task of the stage and not ended it; only tasks of leaders
    before that epoch, if one is given."""
    lines = [line for line in job.ledger.lines() if line.stage == stage]
    ended = {(line.task, line.attempt, line.epoch) for line in lines if line.what == "end"}
    pids = {
        line.pid
        for line in lines
        if (line.task, line.attempt, line.epoch) not in ended
        and (before_epoch is None or line.epoch < before_epoch)
    }
    return sorted(pid for pid in pids if is_alive(pid))


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] not in ("Z", "X")


def told(report: RecoveryReport, job: LedgerJob, stage: str) -> VertexRecovery:
    """What a report says of the stage."""
    vertex_id = vertex_of(job, stage)
    return next(vertex for vertex in report.vertices if vertex.vertex_id == vertex_id)


def resets(vertex: VertexRecovery) -> dict[str, int]:
    """How many subtasks were reset for each reason: `{"PARTITION_MISSING": 2}`."""
    prefix = "RESET_REASON_"
    return {
        ResetReason.Name(reset.reason).removeprefix(prefix): reset.subtasks
        for reset in vertex.resets
    }
