"""The commands that ask the leader once: what they ask, and how its answer is written."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import typer

from holdover.cli.command_line import human_bytes, human_time, write_json, write_table
from holdover.cli.connection import Target
from holdover.cli.plain import enum_name, plain
from holdover.cli.progress import finished_subtasks
from holdover.cli.recovery_report import report_lines
from holdover.client import state_name
from holdover.v1.common_pb2 import ExecutionState
from holdover.v1.events_pb2 import JobEventRecord
from holdover.v1.jobmanager_pb2 import JobStatus, RecoveryMode, RecoveryStatus

_DETAILS_CHARACTERS_MAX = 160


async def list_jobs(target: Target, as_json: bool) -> None:
    """`holdover list`"""
    async with target.client() as client:
        jobs = await client.list_jobs()
    if as_json:
        write_json([plain(job) for job in jobs])
        return
    rows = [
        (
            job.job_id,
            state_name(job.state),
            f"{job.subtasks_finished}/{job.subtasks_total}",
            human_time(job.submitted_wall_ms),
            _why(job),
        )
        for job in jobs
    ]
    write_table(("JOB", "STATE", "SUBTASKS", "SUBMITTED", ""), rows, "no jobs")


async def show(target: Target, job_id: str, subtasks: bool, as_json: bool) -> None:
    """`holdover show`"""
    async with target.client() as client:
        description = await client.describe(job_id, subtasks=subtasks)
    job = description.status
    if as_json:
        found = {"subtasks": [plain(s) for s in description.subtasks]} if subtasks else {}
        write_json({**plain(job), **found})
        return
    typer.echo(f"{job.job_id}  {job.name}  {state_name(job.state)}  {_why(job)}".rstrip())
    for entry in job.history:
        moment, state = human_time(entry.wall_ms), state_name(entry.state)
        typer.echo(f"  {moment}  {state}  (epoch {entry.leader_epoch})")
    if job.recovery.mode:
        typer.echo(f"  {_recovery_line(job.recovery)}")
    rows = [
        (
            vertex.vertex_id,
            vertex.name,
            f"{finished_subtasks(vertex)}/{vertex.parallelism or '?'}",
            vertex.rows_in,
            vertex.rows_out,
            human_bytes(vertex.bytes_out),
        )
        for vertex in job.vertices
    ]
    write_table(("VERTEX", "NAME", "FINISHED", "ROWS IN", "ROWS OUT", "BYTES"), rows, "no vertices")
    if subtasks:
        state_enum = ExecutionState.DESCRIPTOR
        cells = [
            (
                f"{s.attempt.vertex_id}[{s.attempt.subtask}]",
                s.attempt.attempt,
                enum_name(state_enum, s.state),
                s.worker_id,
                human_bytes(s.bytes_out),
                s.duration_ms,
            )
            for s in description.subtasks
        ]
        columns = ("SUBTASK", "ATTEMPT", "STATE", "TASKMANAGER", "BYTES", "MS")
        write_table(columns, cells, "no subtasks are known")
    if job.failure.traceback:
        typer.echo(job.failure.traceback.rstrip())


async def cancel(target: Target, job_id: str, as_json: bool) -> None:
    """`holdover cancel`"""
    async with target.client() as client:
        state = state_name(await client.cancel(job_id))
    if as_json:
        write_json({"job_id": job_id, "state": state})
    else:
        typer.echo(f"{job_id} {state}")


async def retry(target: Target, job_id: str, as_json: bool) -> None:
    """`holdover retry`"""
    async with target.client() as client:
        await client.retry(job_id)
    if as_json:
        write_json({"job_id": job_id, "retried": True})
    else:
        typer.echo(f"{job_id} is taken up again")


async def result_files(target: Target, job_id: str, as_json: bool) -> None:
    """`holdover result --files`"""
    async with target.client() as client:
        files = await client.results(job_id)
    if as_json:
        write_json([plain(file) for file in files])
        return
    rows = [(file.path, file.rows, human_bytes(file.bytes)) for file in files]
    write_table(("FILE", "ROWS", "BYTES"), rows, "no output files")


async def result_rows(target: Target, job_id: str, limit: int | None, as_json: bool) -> None:
    """`holdover result`"""
    async with target.client() as client:
        files = await client.results(job_id)
        table = await client.result_table(job_id, limit)
    rows = table.to_pylist()
    rows_total = sum(file.rows for file in files)
    if as_json:
        write_json({"columns": table.column_names, "rows": rows, "rows_total": rows_total})
        return
    cells = [[row[name] for name in table.column_names] for row in rows]
    write_table(table.column_names, cells, "no rows")
    if rows_total > len(rows):
        typer.echo(f"{len(rows)} of {rows_total} rows; --limit 0 shows all")


async def taskmanagers(target: Target, as_json: bool) -> None:
    """`holdover taskmanagers`"""
    async with target.client() as client:
        found = await client.taskmanagers()
    if as_json:
        write_json([plain(taskmanager) for taskmanager in found])
        return
    rows = [
        (
            tm.resource_id,
            tm.address,
            f"{tm.slots - tm.slots_free}/{tm.slots}",
            f"{tm.heartbeat_age_ms / 1000:.1f} s",
            tm.partitions,
            human_bytes(tm.partition_bytes),
            human_bytes(tm.disk_free_bytes),
        )
        for tm in found
    ]
    columns = ("TASKMANAGER", "ADDRESS", "SLOTS", "HEARTBEAT", "PARTITIONS", "BYTES", "DISK FREE")
    write_table(columns, rows, "no TaskManager is registered")


async def shuffle_services(target: Target, as_json: bool) -> None:
    """The registered shuffle services and what they hold."""
    async with target.client() as client:
        found = await client.shuffle_services()
    if as_json:
        write_json([plain(service) for service in found])
        return
    rows = [
        (
            service.resource_id,
            service.address,
            "leaving" if service.draining else "open",
            f"{service.heartbeat_age_ms / 1000:.1f} s",
            service.open_puts,
            service.partitions,
            human_bytes(service.partition_bytes),
            human_bytes(service.room_bytes),
        )
        for service in found
    ]
    held = ("PARTITIONS", "BYTES", "ROOM")
    columns = ("SHUFFLE SERVICE", "ADDRESS", "STATE", "HEARTBEAT", "WRITERS", *held)
    write_table(columns, rows, "no shuffle service is registered")


async def recovery(target: Target, job_id: str, as_json: bool) -> None:
    """`holdover recovery`"""
    async with target.client() as client:
        reports = await client.recovery_reports(job_id)
    if as_json:
        write_json([plain(report) for report in reports])
        return
    if not reports:
        typer.echo("no leader had to recover this job")
    for position, report in enumerate(reports):
        if position:
            typer.echo()
        for line in report_lines(report):
            typer.echo(line)


async def events(target: Target, job_id: str, from_sequence: int, as_json: bool) -> None:
    """`holdover events`"""
    async with target.client() as client, aclosing(client.events(job_id, from_sequence)) as records:
        async for record in records:
            if as_json:
                write_json(plain(record))
            else:
                typer.echo(event_line(record))


def event_line(record: JobEventRecord) -> str:
    """One record for people."""
    kind = record.event.WhichOneof("kind") or "unknown to this version"
    event = plain(record.event).get(kind, {})
    details = ", ".join(_details(event))
    if len(details) > _DETAILS_CHARACTERS_MAX:
        details = details[:_DETAILS_CHARACTERS_MAX] + " ..."
    moment = human_time(record.wall_ms)
    return (
        f"{record.sequence:>7}  {moment}  epoch {record.leader_epoch}  {kind}  {details}".rstrip()
    )


def _recovery_line(recovery: RecoveryStatus) -> str:
    """How well the job's events are being recorded."""
    told = [f"recovery: {enum_name(RecoveryMode.DESCRIPTOR, recovery.mode)}", recovery.reason]
    if recovery.mode != RecoveryMode.RECOVERY_MODE_DISABLED:
        mean_ms = recovery.flush_ms_total / recovery.flushes if recovery.flushes else 0
        told += [
            f"{recovery.events_appended} events",
            f"durable up to {recovery.durable_sequence} of {recovery.last_sequence}",
            f"{human_bytes(recovery.written_bytes)} written",
            f"{human_bytes(recovery.buffered_bytes)} buffered",
            f"{recovery.flushes} flushes of {mean_ms:.0f} ms",
            f"{recovery.flush_failures} failed" if recovery.flush_failures else "",
        ]
    return ", ".join(text for text in told if text)


def _details(value: dict[str, Any], prefix: str = "") -> list[str]:
    """`key value` for everything that is set, nested names joined by dots."""
    found: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict):
            found.extend(_details(item, f"{prefix}{key}."))
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            found.append(f"{prefix}{key} ({len(item)})")
        elif item not in (None, "", 0, [], False):
            found.append(f"{prefix}{key} {item}")
    return found


def _why(job: JobStatus) -> str:
    """The failure, or what the job waits for."""
    return job.failure.message or job.waiting
