"""A run as the page reads it: a small JSON head and flat columns of numbers, compressed.

MODEL. Rows are TaskManagers, grouped by rack, in the order in which a person would list them.
Attempts are sorted by row, slot and start, so that the page finds a row's attempts without an
index. Times are whole ticks of `tick_s`. The same record makes the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.record import AttemptRecord, HeldRecord, RunRecord, WorkerRecord

#: What became of an attempt; the page knows them by their place here.
FATES = ("kept", "repeated", "rerun", "canceled", "lost", "failed", "running")
#: A time that did not come.
NEVER = 0xFFFF_FFFF
#: Points of the curves of what is held; a step between two of them keeps its highest value.
HELD_POINTS_MAX = 4_000
TICK_MIN_S = 1e-4

_Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Order:
    """The rows of a run."""

    workers: list[WorkerRecord]
    row_of: dict[str, int]


def packed_run(record: RunRecord, fates: Sequence[str], story: Sequence[str]) -> str:
    """The run with the fates of its attempts and the sentences about it, for `readRun` of the page:
    base64 of gzip of the head's length (4 bytes, little endian), the head, and the columns, each
    at a multiple of 8 bytes.
    """
    order = _row_order(record)
    tick_s = max(TICK_MIN_S, _last_s(record) / (NEVER - 1))
    columns = {
        **_attempt_columns(record, fates, order, tick_s),
        **_worker_columns(order, tick_s),
        **_held_columns(record.held, tick_s),
    }
    head = json.dumps(_head(record, order, tick_s, story, columns), separators=(",", ":")).encode()
    head += b" " * (-(len(head) + 4) % 8)
    body = b"".join(_aligned(column.tobytes()) for column in columns.values())
    data = len(head).to_bytes(4, "little") + head + body
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")


def attempt_fates(attempts: Iterable[AttemptRecord]) -> list[str]:
    """What became of each attempt, one of FATES, in the given order.

    "kept": its result was used. "repeated": the same, but an earlier attempt of its subtask had
    begun. "rerun": it finished in vain, its subtask ran again. The others are how it ended.
    """
    listed = list(attempts)
    first: dict[tuple[str, str, int], AttemptRecord] = {}
    for attempt in sorted(listed, key=attrgetter("started_s", "attempt")):
        first.setdefault((attempt.job_id, attempt.vertex_id, attempt.subtask), attempt)
    fates: list[str] = []
    for attempt in listed:
        if attempt.end != "finished":
            fates.append(attempt.end)
        elif not attempt.kept:
            fates.append("rerun")
        elif first[attempt.job_id, attempt.vertex_id, attempt.subtask] is attempt:
            fates.append("kept")
        else:
            fates.append("repeated")
    return fates


def natural_key(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Sorts "tm-2" before "tm-10"."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts)


def _row_order(record: RunRecord) -> _Order:
    """Rows by rack and name; a worker that only attempts speak of has a row too."""
    workers = {worker.worker: worker for worker in record.workers}
    for attempt in record.attempts:
        if attempt.worker not in workers:
            workers[attempt.worker] = WorkerRecord(attempt.worker, "", attempt.slot + 1)
        elif workers[attempt.worker].slots <= attempt.slot:
            known = workers[attempt.worker]
            workers[attempt.worker] = WorkerRecord(
                known.worker, known.rack, attempt.slot + 1, known.lives, known.connections
            )
    ordered = sorted(workers.values(), key=lambda w: (natural_key(w.rack), natural_key(w.worker)))
    return _Order(ordered, {worker.worker: row for row, worker in enumerate(ordered)})


def _last_s(record: RunRecord) -> float:
    """The end of the run, or of whatever goes on after it."""
    ends = [record.duration_s]
    ends += [a.started_s if a.ended_s is None else a.ended_s for a in record.attempts]
    ends += [fault.until_s or fault.at_s for fault in record.faults]
    return max(ends)


def _ticks(times_s: Iterable[float | None], tick_s: float) -> npt.NDArray[np.uint32]:
    """Times in ticks; NEVER for those that did not come."""
    seconds = np.array([np.nan if t is None else t for t in times_s], dtype="<f8")
    ticks = np.clip(np.rint(seconds / tick_s), 0, NEVER - 1)
    return np.where(np.isnan(seconds), NEVER, ticks).astype("<u4")


def _attempt_columns(
    record: RunRecord, fates: Sequence[str], order: _Order, tick_s: float
) -> _Columns:
    attempts = record.attempts
    number_of = {fate: i for i, fate in enumerate(FATES)}
    vertex_of = {key: i for i, key in enumerate(_vertex_keys(record))}
    columns: _Columns = {
        "row": np.array([order.row_of[a.worker] for a in attempts], dtype="<u4"),
        "slot": np.array([a.slot for a in attempts], dtype="<u2"),
        "start": _ticks((a.started_s for a in attempts), tick_s),
        "end": _ticks((a.ended_s for a in attempts), tick_s),
        "fate": np.array([number_of[fate] for fate in fates], dtype="u1"),
        "vertex": np.array([vertex_of[a.job_id, a.vertex_id] for a in attempts], dtype="<u2"),
        "subtask": np.array([a.subtask for a in attempts], dtype="<u4"),
        "attempt": np.array([a.attempt for a in attempts], dtype="<u4"),
        "epoch": np.array([a.epoch for a in attempts], dtype="<u4"),
        "bytes": np.array([a.bytes for a in attempts], dtype="<f8"),
    }
    by_row = np.lexsort([columns[key] for key in ("attempt", "start", "slot", "row")])
    return {name: column[by_row] for name, column in columns.items()}


def _vertex_keys(record: RunRecord) -> list[tuple[str, str]]:
    """Every vertex that is known or of which an attempt was seen, once, in order."""
    keys = {(job.job_id, v.vertex_id): None for job in record.jobs for v in job.vertices}
    keys.update({(a.job_id, a.vertex_id): None for a in record.attempts})
    return list(keys)


def _worker_columns(order: _Order, tick_s: float) -> _Columns:
    lives = [(row, *life) for row, w in enumerate(order.workers) for life in w.lives]
    links = [(row, *link) for row, w in enumerate(order.workers) for link in w.connections]
    return {
        "slots": np.array([w.slots for w in order.workers], dtype="<u2"),
        "life_row": np.array([life[0] for life in lives], dtype="<u4"),
        "life_from": _ticks((life[1] for life in lives), tick_s),
        "life_until": _ticks((life[2] for life in lives), tick_s),
        "link_row": np.array([link[0] for link in links], dtype="<u4"),
        "link_epoch": np.array([link[1] for link in links], dtype="<u4"),
        "link_from": _ticks((link[2] for link in links), tick_s),
        "link_until": _ticks((link[3] for link in links), tick_s),
    }


def _held_columns(held: Sequence[HeldRecord], tick_s: float) -> _Columns:
    stride = max(1, -(-len(held) // HELD_POINTS_MAX))
    groups = [held[i : i + stride] for i in range(0, len(held), stride)]
    return {
        "held_at": _ticks((group[0].at_s for group in groups), tick_s),
        "held_partitions": np.array([max(h.partitions for h in g) for g in groups], dtype="<f8"),
        "held_bytes": np.array([max(h.bytes for h in g) for g in groups], dtype="<f8"),
    }


def _head(
    record: RunRecord, order: _Order, tick_s: float, story: Sequence[str], columns: _Columns
) -> dict[str, Any]:
    parallelism = {
        (job.job_id, v.vertex_id): (v.name, v.parallelism)
        for job in record.jobs
        for v in job.vertices
    }
    racks = list(dict.fromkeys(worker.rack for worker in order.workers))
    return {
        "tick_s": tick_s,
        "duration_s": _last_s(record),
        "story": list(story),
        "fates": FATES,
        "racks": racks,
        "workers": [w.worker for w in order.workers],
        "worker_racks": [racks.index(w.rack) for w in order.workers],
        "jobs": [
            {
                "id": job.job_id,
                "name": job.name,
                "submitted_s": job.submitted_s,
                "ended_s": job.ended_s,
                "state": job.state,
                "failure": job.failure,
                "recoveries": job.recoveries,
            }
            for job in record.jobs
        ],
        "vertices": [
            [job_id, vertex_id, *parallelism.get((job_id, vertex_id), (vertex_id, 0))]
            for job_id, vertex_id in _vertex_keys(record)
        ],
        "epochs": [
            [e.epoch, e.jobmanager, e.from_s, e.ready_s, e.until_s, e.reconciling]
            for e in record.epochs
        ],
        "faults": [[f.kind, f.at_s, f.until_s, f.victims, f.detail] for f in record.faults],
        "findings": [[f.invariant, f.at_s, f.text] for f in record.findings],
        "digest": record.digest,
        "events": record.events,
        "wall_s": record.wall_s,
        "columns": _layout(columns),
    }


def _layout(columns: _Columns) -> list[list[Any]]:
    """Name, type, offset from the end of the head and length of each column."""
    placed = []
    offset = 0
    for name, column in columns.items():
        placed.append([name, f"{column.dtype.kind}{column.dtype.itemsize}", offset, len(column)])
        offset += len(_aligned(column.tobytes()))
    return placed


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
