"""A recovery report in words."""

from __future__ import annotations

from collections.abc import Iterator

from holdover.cli.command_line import human_bytes, human_time
from holdover.cli.plain import enum_name
from holdover.v1.events_pb2 import ResetReason
from holdover.v1.jobmanager_pb2 import RecoveryReport, VertexRecovery, WorkerReturnKind


def report_lines(report: RecoveryReport) -> Iterator[str]:
    """What happened, in the order in which a reader asks: when, how long, who, what was kept."""
    state = "" if report.complete else ", not complete yet"
    yield f"epoch {report.leader_epoch}: led from {human_time(report.leading_wall_ms)}{state}"
    if report.last_event_wall_ms:
        gap_s = (report.leading_wall_ms - report.last_event_wall_ms) / 1000
        moment = human_time(report.last_event_wall_ms)
        yield f"  last event of the leader before: {moment} ({gap_s:.1f} s earlier)"
    if report.restarted_reason:
        yield f"  started from the beginning: {report.restarted_reason}"
    phases = ", ".join(f"{phase.name} {phase.duration_ms} ms" for phase in report.phases)
    early = ", the wait ended early" if report.early_end else ""
    yield f"  {phases or 'no phase has ended yet'}{early}"
    if report.first_deployment_ms >= 0:
        yield f"  first task {report.first_deployment_ms} ms after the start of the process"
    for worker in report.workers:
        kind = enum_name(WorkerReturnKind.DESCRIPTOR, worker.kind).lower().replace("_", " ")
        after = f" after {worker.after_ms} ms" if worker.after_ms >= 0 else ""
        taken = f"{worker.partitions_accepted} of {worker.partitions_offered} partitions accepted"
        yield f"  {worker.worker_id}: {kind}{after}, {taken}"
    for vertex in report.vertices:
        yield f"  {vertex.vertex_id} {vertex.name}: {vertex_text(vertex)}"
    yield f"  kept {human_bytes(report.bytes_kept)}, replayed {report.events_replayed} events"
    for finding in report.log_findings:
        yield f"  log: {finding}"


def vertex_text(vertex: VertexRecovery) -> str:
    """What became of a vertex's subtasks: `4 kept (1 adopted), 2 reset (worker lost)`."""
    adopted = f" ({vertex.adopted} adopted)" if vertex.adopted else ""
    parts = [f"{vertex.kept} kept{adopted}"]
    for reset in vertex.resets:
        reason = enum_name(ResetReason.DESCRIPTOR, reset.reason).lower().replace("_", " ")
        parts.append(f"{reset.subtasks} reset ({reason})")
    parts.append(f"{vertex.unfinished} had not finished")
    return ", ".join(parts)
