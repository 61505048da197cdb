"""Runs that never happened, of any size, for tests of what is drawn: a cluster whose work is
scheduled greedily, whose JobManager dies, and which may lose racks with it. Equal arguments make
equal records.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from simulator.record import (
    AttemptRecord,
    EpochRecord,
    FaultRecord,
    Finding,
    HeldRecord,
    JobRecord,
    Measures,
    RunRecord,
    VertexRecord,
    WorkerRecord,
)

JOB_ID = "7c0f3a51b2d94e7c8a1f00d2"
START_S = 1.5
NOTICE_S = 0.4
LEADERLESS_S = 2.6
WAIT_S = 3.4

#: (when it is free, worker, slot)
_Place = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """What is run. `racks_lost` racks die with the JobManager and stay away."""

    taskmanagers: int
    slots: int = 4
    racks: int = 4
    subtasks: int = 60
    racks_lost: int = 0
    crash: bool = True
    task_s: float = 6.0


@dataclass(slots=True)
class _Run:
    shape: Shape
    chance: random.Random
    record: RunRecord
    crash_s: float
    #: (vertex, subtask) to its newest attempt.
    newest: dict[tuple[str, int], AttemptRecord] = field(default_factory=dict)
    dead: frozenset[int] = frozenset()
    resumed: bool = False

    @property
    def resume_s(self) -> float:
        return self.crash_s + LEADERLESS_S + WAIT_S


def synthetic_run(
    shape: Shape,
    seed: int = 1,
    *,
    world: str = "simulated",
    scenario: str = "jobmanager-crash",
    options: dict[str, str] | None = None,
    findings: int = 0,
) -> RunRecord:
    """A run of one job of three vertices, with one crash of the leader in its second half."""
    chance = random.Random(seed)
    record = RunRecord(scenario, "real" if world == "real" else "simulated", seed)
    record.options = dict(options or {})
    vertices = [
        VertexRecord("v-source", "read orders", shape.subtasks * 5 // 10),
        VertexRecord("v-join", "join lineitem", shape.subtasks * 4 // 10),
        VertexRecord("v-sink", "write result", max(1, shape.subtasks // 10)),
    ]
    waves = shape.subtasks / (shape.taskmanagers * shape.slots)
    crash_s = START_S + shape.task_s * (0.62 * max(waves, 1) + 0.4)
    run = _Run(shape, chance, record, crash_s if shape.crash else float("inf"))
    if shape.crash:
        run.dead = frozenset(
            i for i in range(shape.taskmanagers) if i % shape.racks < shape.racks_lost
        )
    free = [(START_S, i, s) for i in range(shape.taskmanagers) for s in range(shape.slots)]
    heapq.heapify(free)
    ready_s = START_S
    for vertex in vertices:
        ready_s = _run_vertex(run, vertex, free, ready_s)
    record.duration_s = ready_s + 1.0
    _tell_the_rest(run, vertices, ready_s, findings)
    return record


def _run_vertex(run: _Run, vertex: VertexRecord, free: list[_Place], ready_s: float) -> float:
    """Schedule all of a vertex from `ready_s`; returns when its last subtask finished."""
    todo = deque(range(vertex.parallelism))
    latest_s = ready_s
    cut: list[int] = []
    while todo or cut:
        if not todo:
            ready_s = ready_s if run.resumed else _resume(run, free)
            todo.extend(cut)
            cut.clear()
        subtask = todo.popleft()
        at_s, worker, slot = heapq.heappop(free)
        at_s = max(at_s, ready_s)
        if at_s >= run.crash_s - 0.05 and not run.resumed:
            heapq.heappush(free, (at_s, worker, slot))
            todo.appendleft(subtask)
            ready_s = _resume(run, free)
            continue
        end_s = at_s + run.shape.task_s * run.chance.lognormvariate(0.0, 0.35)
        if at_s < run.crash_s < end_s:
            _cut_short(run, vertex, subtask, (at_s, worker, slot))
            cut.append(subtask)
            heapq.heappush(free, (run.resume_s, worker, slot))
            continue
        _attempt(run, vertex, subtask, (at_s, worker, slot), end_s, "finished")
        heapq.heappush(free, (end_s, worker, slot))
        latest_s = max(latest_s, end_s)
    return latest_s


def _resume(run: _Run, free: list[_Place]) -> float:
    """The wait is over: what finished on dead workers runs again first; returns when it has."""
    run.resumed = True
    free[:] = [(max(s, run.resume_s), w, slot) for s, w, slot in free if w not in run.dead]
    heapq.heapify(free)
    lost = [
        attempt
        for attempt in run.record.attempts
        if attempt.end == "finished" and _number(attempt.worker) in run.dead
    ]
    ready_s = run.resume_s
    for old in lost:
        old.kept = False
        vertex = VertexRecord(old.vertex_id, "", 0)
        at_s, worker, slot = heapq.heappop(free)
        end_s = at_s + run.shape.task_s * run.chance.lognormvariate(0.0, 0.35)
        _attempt(run, vertex, old.subtask, (at_s, worker, slot), end_s, "finished")
        heapq.heappush(free, (end_s, worker, slot))
        ready_s = max(ready_s, end_s)
    return ready_s


def _cut_short(run: _Run, vertex: VertexRecord, subtask: int, place: _Place) -> None:
    if place[1] in run.dead:
        _attempt(run, vertex, subtask, place, run.crash_s, "lost")
    else:
        ended_s = run.crash_s + NOTICE_S * run.chance.uniform(0.5, 1.5)
        _attempt(run, vertex, subtask, place, ended_s, "canceled")


def _attempt(
    run: _Run,
    vertex: VertexRecord,
    subtask: int,
    place: _Place,
    ended_s: float,
    end: Any,
) -> None:
    at_s, worker, slot = place
    before = run.newest.get((vertex.vertex_id, subtask))
    finished = end == "finished"
    attempt = AttemptRecord(
        job_id=JOB_ID,
        vertex_id=vertex.vertex_id,
        subtask=subtask,
        attempt=0 if before is None else before.attempt + 1,
        epoch=1 if at_s < run.crash_s else 2,
        worker=_name(worker),
        slot=slot,
        started_s=round(at_s, 4),
        ended_s=round(ended_s, 4),
        end=end,
        bytes=run.chance.randrange(4 << 20, 64 << 20) if finished else 0,
        kept=finished,
    )
    run.newest[vertex.vertex_id, subtask] = attempt
    run.record.attempts.append(attempt)


def _name(worker: int) -> str:
    return f"taskmanager-{worker + 1}"


def _number(worker: str) -> int:
    return int(worker.removeprefix("taskmanager-")) - 1


def _tell_the_rest(run: _Run, vertices: list[VertexRecord], end_s: float, findings: int) -> None:
    record = run.record
    record.jobs = [
        JobRecord(JOB_ID, "revenue by nation", 1.0, end_s + 0.2, "FINISHED", vertices=vertices)
    ]
    led_s = run.crash_s + LEADERLESS_S
    record.epochs = [EpochRecord(1, "jobmanager-1", 0.4, 0.5, None)]
    if run.shape.crash:
        record.epochs[0].until_s = run.crash_s
        wait = (JOB_ID, led_s + 0.3, run.resume_s)
        record.epochs.append(EpochRecord(2, "jobmanager-2", led_s, led_s + 0.3, None, [wait]))
        record.faults = [FaultRecord("crash", run.crash_s, ["jobmanager-1"], "leader, SIGKILL")]
        if run.dead:
            racks = ", ".join(f"rack {i + 1}" for i in range(run.shape.racks_lost))
            victims = [_name(i) for i in sorted(run.dead)]
            record.faults.append(FaultRecord("power-loss", run.crash_s, victims, racks))
        record.jobs[0].recoveries = [_report(run, vertices)]
    record.workers = [_worker(run, i) for i in range(run.shape.taskmanagers)]
    record.held = _held(run, end_s)
    record.findings = [
        Finding("finished work is kept", run.crash_s + 4.0 + i, f"read orders/{i} ran again")
        for i in range(findings)
    ]
    vain = [a for a in record.attempts if not a.kept]
    starts = [a.started_s for a in record.attempts if a.started_s > run.crash_s]
    record.measures = Measures(
        work_rerun_s=sum((a.ended_s or 0.0) - a.started_s for a in vain),
        subtasks_rerun=len({(a.vertex_id, a.subtask) for a in vain}),
        finished_rerun=sum(a.end == "finished" for a in vain),
        recovery_s=min(starts) - run.crash_s if starts else None,
        finish_s=end_s - 0.8,
        partitions_held_max=max(h.partitions for h in record.held),
        bytes_retained_max=max(h.bytes for h in record.held),
    )
    record.digest, record.events, record.wall_s = f"{record.seed:016x}", len(vain) * 97, 1.25


def _worker(run: _Run, i: int) -> WorkerRecord:
    rack = f"rack-{i % run.shape.racks + 1}"
    worker = WorkerRecord(_name(i), rack, run.shape.slots, [(0.3, None)], [(1, 0.9, None)])
    if run.shape.crash:
        lost_s = run.crash_s + NOTICE_S * run.chance.uniform(0.2, 1.0)
        worker.connections = [(1, 0.9, lost_s)]
        if i in run.dead:
            worker.lives = [(0.3, run.crash_s)]
            worker.connections = [(1, 0.9, run.crash_s)]
        else:
            back_s = run.crash_s + LEADERLESS_S + run.chance.uniform(0.4, WAIT_S)
            worker.connections.append((2, back_s, None))
    return worker


def _held(run: _Run, end_s: float) -> list[HeldRecord]:
    changes = [(a.ended_s or 0.0, 1, a.bytes) for a in run.record.attempts if a.end == "finished"]
    changes += [
        (run.crash_s, -1, -a.bytes)
        for a in run.record.attempts
        if a.end == "finished" and not a.kept
    ]
    held = [HeldRecord(0.0, 0, 0)]
    for at_s, partitions, n_bytes in sorted(changes):
        held.append(HeldRecord(at_s, held[-1].partitions + partitions, held[-1].bytes + n_bytes))
    held.append(HeldRecord(end_s + 0.4, 0, 0))
    return held


def _report(run: _Run, vertices: list[VertexRecord]) -> dict[str, Any]:
    """As `google.protobuf.json_format` writes a RecoveryReport, names preserved."""
    durations = {"start": 500, "lead": 2100, "replay": 300, "wait": 3100, "reconcile": 12}
    told = []
    for vertex in vertices:
        before = [
            a
            for a in run.record.attempts
            if a.vertex_id == vertex.vertex_id and a.started_s < run.crash_s
        ]
        kept = sum(a.kept for a in before)
        reset = sum(a.end == "finished" and not a.kept for a in before)
        entry: dict[str, Any] = {"vertex_id": vertex.vertex_id, "name": vertex.name, "kept": kept}
        if reset:
            entry["resets"] = [{"reason": "RESET_REASON_PARTITION_MISSING", "subtasks": reset}]
        entry["unfinished"] = vertex.parallelism - kept - reset
        told.append(entry)
    workers = [
        {"worker_id": _name(i), "kind": "WORKER_RETURN_KIND_MISSING", "after_ms": "-1"}
        if i in run.dead
        else {
            "worker_id": _name(i),
            "kind": "WORKER_RETURN_KIND_IN_TIME",
            "after_ms": str(400 + i % 2900),
            "partitions_offered": 4,
            "partitions_accepted": 4,
        }
        for i in range(run.shape.taskmanagers)
    ]
    return {
        "leader_epoch": "2",
        "phases": [{"name": n, "duration_ms": str(ms)} for n, ms in durations.items()],
        "early_end": not run.dead,
        "workers": workers,
        "vertices": told,
        "bytes_kept": str(sum(a.bytes for a in run.record.attempts if a.kept)),
        "first_deployment_ms": "6020",
        "events_replayed": str(len(run.record.attempts) // 2),
        "complete": True,
    }
