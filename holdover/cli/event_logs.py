"""`holdover events verify|dump`: event logs in a directory of this machine."""

from __future__ import annotations

from typing import Any

import typer

from holdover.cli.answers import event_line
from holdover.cli.command_line import write_json
from holdover.cli.plain import plain
from holdover.errors import StorageError
from holdover.runtime import Disk
from holdover.runtime.real_disk import LocalDisk
from jobmanager.event_store.inspection import (
    DumpedDefect,
    DumpedRecord,
    DumpedSegment,
    DumpItem,
    VerifiedLog,
    dump_log,
    find_logs,
    verify_log,
)


async def verify(directory: str, as_json: bool) -> bool:
    """Write what each log says; whether all of them can be replayed."""
    disk = LocalDisk()
    sound = True
    for log in await _logs(disk, directory):
        verified = await verify_log(disk, log)
        sound = sound and verified.is_sound
        if as_json:
            write_json(_verified(verified))
            continue
        for finding in verified.findings:
            typer.echo(str(finding))
        typer.echo(f"{log}: {_summary(verified)}")
    return sound


async def dump(directory: str, as_json: bool) -> bool:
    """Write what each log holds; whether none of it is damaged."""
    disk = LocalDisk()
    damaged = False

    def write(item: DumpItem) -> None:
        nonlocal damaged
        damaged = damaged or (isinstance(item, DumpedDefect) and item.is_damage)
        if as_json:
            write_json(_dumped(item))
        else:
            typer.echo(_line(item))

    for log in await _logs(disk, directory):
        await dump_log(disk, log, write)
    return not damaged


async def _logs(disk: Disk, directory: str) -> list[str]:
    found = await find_logs(disk, directory)
    if not found:
        raise StorageError(
            directory,
            "no event log is here: give the directory of an event log (it holds files like"
            " 0000000000000001-000000.log), of a job, or high-availability.storageDir",
        )
    return found


def _summary(log: VerifiedLog) -> str:
    if log.replayed is None:
        return "it cannot be replayed"
    seen = log.replayed
    begin = "from a snapshot on, " if seen.began_with_snapshot else ""
    return (
        f"sound, {begin}{seen.events} events up to record {seen.last_sequence} of epoch"
        f" {seen.last_epoch} in {seen.segments} segments"
    )


def _verified(log: VerifiedLog) -> dict[str, Any]:
    seen = log.replayed
    return {
        "directory": log.directory,
        "sound": log.is_sound,
        "segments": seen.segments if seen else None,
        "events": seen.events if seen else None,
        "last_sequence": seen.last_sequence if seen else None,
        "last_epoch": seen.last_epoch if seen else None,
        "findings": [
            {"severity": one.severity.value, "path": one.path, "offset": one.offset}
            | {"text": one.text}
            for one in log.findings
        ],
    }


def _line(item: DumpItem) -> str:
    match item:
        case DumpedSegment(path, size_bytes, None):
            return f"{path}: {size_bytes} bytes"
        case DumpedSegment(path, size_bytes, header):
            assert header is not None
            told = f"{path}: {size_bytes} bytes, job {header.job_id}"
            told += f", from record {header.first_sequence}, replayed {header.replayed_sequence}"
            return told + (", begins with a snapshot" if header.is_snapshot else "")
        case DumpedRecord(_, offset, record):
            return f"{offset:>9} {event_line(record)}"
        case DumpedDefect(path, offset, reason, _):
            return f"{offset:>9} NO RECORD in {path}: {reason}"


def _dumped(item: DumpItem) -> dict[str, Any]:
    match item:
        case DumpedSegment(path, size_bytes, header):
            told: dict[str, Any] = {"kind": "segment", "path": path, "bytes": size_bytes}
            if header is not None:
                told |= {
                    "job_id": header.job_id,
                    "first_sequence": header.first_sequence,
                    "replayed_sequence": header.replayed_sequence,
                    "durable_sequence": header.durable_sequence,
                    "is_snapshot": header.is_snapshot,
                }
            return told
        case DumpedRecord(path, offset, record):
            return {"kind": "record", "path": path, "offset": offset, "record": plain(record)}
        case DumpedDefect(path, offset, reason, is_damage):
            told = {"kind": "defect", "path": path, "offset": offset, "reason": reason}
            return told | {"is_damage": is_damage}
