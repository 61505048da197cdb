"""A recovery report in words."""

from __future__ import annotations

from collections.abc import Iterator

from holdover.cli.command_line import human_bytes, human_time, table_lines
from holdover.cli.plain import enum_name
from holdover.v1.events_pb2 import ResetReason
from holdover.v1.jobmanager_pb2 import (
    RecoveryPhase,
    RecoveryReport,
    VertexRecovery,
    WorkerReturn,
    WorkerReturnKind,
)

_INDENT = "  "
_NAME_CHARACTERS_MAX = 48
_PHASES = {
    "start": "start of the process",
    "lead": "leading",
    "replay": "replay",
    "wait": "wait for TaskManagers",
    "reconcile": "reconciling",
}
_REASONS = {
    ResetReason.RESET_REASON_PARTITION_MISSING: "nobody offered the partition in time",
    ResetReason.RESET_REASON_PARTITION_LOST: "the partition could not be read",
    ResetReason.RESET_REASON_WORKER_LOST: "the TaskManager was lost",
    ResetReason.RESET_REASON_UPSTREAM_CLOSURE: "needed again by what runs again, and deleted",
    ResetReason.RESET_REASON_INDETERMINATE_PRODUCER: "what it had read is made anew",
    ResetReason.RESET_REASON_STAGED_FILES_LOST: "its staged output is gone",
    ResetReason.RESET_REASON_SPLITS_UNKNOWN: "nobody knows what others of its source have read",
}
_KINDS = {
    WorkerReturnKind.WORKER_RETURN_KIND_IN_TIME: "in time",
    WorkerReturnKind.WORKER_RETURN_KIND_LATE: "late",
    WorkerReturnKind.WORKER_RETURN_KIND_MISSING: "missing",
    WorkerReturnKind.WORKER_RETURN_KIND_EMPTY: "with nothing of this job",
}


def report_lines(report: RecoveryReport) -> Iterator[str]:
    """What happened, in the order in which a reader asks: when, how long, who, what was kept."""
    state = "" if report.complete else "; this recovery is not complete"
    yield f"epoch {report.leader_epoch} led from {human_time(report.leading_wall_ms)}{state}"
    for line in _summary_lines(report):
        yield _INDENT + line
    if report.workers:
        rows = [_worker_row(worker) for worker in report.workers]
        for line in table_lines(("TASKMANAGER", "CAME BACK", "AFTER", "OFFERED", "TAKEN"), rows):
            yield _INDENT + line
    if report.vertices:
        vertices = [_vertex_row(vertex) for vertex in report.vertices]
        columns = ("VERTEX", "KEPT", "ADOPTED", "RESET", "UNFINISHED", "WHY RESET")
        for line in table_lines(columns, vertices):
            yield _INDENT + line


def _summary_lines(report: RecoveryReport) -> Iterator[str]:
    if report.last_event_wall_ms:
        gap_s = (report.leading_wall_ms - report.last_event_wall_ms) / 1000
        moment = human_time(report.last_event_wall_ms)
        yield f"last event of the leaders before: {moment}, {gap_s:.1f} s earlier"
    if report.restarted_reason:
        yield f"started from the beginning: {report.restarted_reason}"
    if report.phases:
        total_ms = sum(phase.duration_ms for phase in report.phases)
        phases = ", ".join(_phase_text(phase, report) for phase in report.phases)
        yield f"took {_seconds(total_ms)}: {phases}"
    if report.first_deployment_ms >= 0:
        after = _seconds(report.first_deployment_ms)
        yield f"first task deployed {after} after the start of the process"
    kept = sum(vertex.kept for vertex in report.vertices)
    adopted = sum(vertex.adopted for vertex in report.vertices)
    reset = sum(counts.subtasks for vertex in report.vertices for counts in vertex.resets)
    unfinished = sum(vertex.unfinished for vertex in report.vertices)
    yield (
        f"{kept} finished subtasks kept ({adopted} of them adopted), {reset} reset,"
        f" {unfinished} had not finished"
    )
    yield (
        f"partitions kept: {human_bytes(report.bytes_kept)};"
        f" events replayed: {report.events_replayed}"
    )
    for finding in report.log_findings:
        yield f"event log: {finding}"


def _phase_text(phase: RecoveryPhase, report: RecoveryReport) -> str:
    early = " (ended early: nothing more was awaited)"
    ended = early if phase.name == "wait" and report.early_end else ""
    return f"{_PHASES.get(phase.name, phase.name)} {_seconds(phase.duration_ms)}{ended}"


def _worker_row(worker: WorkerReturn) -> tuple[object, ...]:
    unknown = enum_name(WorkerReturnKind.DESCRIPTOR, worker.kind)
    return (
        worker.worker_id,
        _KINDS.get(worker.kind, unknown),
        _seconds(worker.after_ms) if worker.after_ms >= 0 else "-",
        worker.partitions_offered,
        worker.partitions_accepted,
    )


def _vertex_row(vertex: VertexRecovery) -> tuple[object, ...]:
    name = f"{vertex.vertex_id} {vertex.name}"
    if len(name) > _NAME_CHARACTERS_MAX:
        name = name[: _NAME_CHARACTERS_MAX - 4] + " ..."
    reasons = [
        f"{counts.subtasks} {_REASONS.get(counts.reason) or _unknown_reason(counts.reason)}"
        for counts in vertex.resets
    ]
    reset = sum(counts.subtasks for counts in vertex.resets)
    return name, vertex.kept, vertex.adopted, reset, vertex.unfinished, "; ".join(reasons)


def _unknown_reason(reason: ResetReason.ValueType) -> str:
    """The name of a reason that only a later version has words for."""
    return enum_name(ResetReason.DESCRIPTOR, reason).lower().replace("_", " ")


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.2f} s"
