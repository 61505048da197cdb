"""Builds the record of a run from what is seen of it, in the order in which it is seen.

MODEL: nothing is simulated here. Both worlds tell the same recorder what happened: the services'
own log events (which are the same in both), the starts and ends of processes and attempts, the
faults, and what a client learns of a job. What follows from these, such as the fate of an attempt
whose end nobody saw, or the measures, is computed in `finish`. Pure: no clock, no files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from google.protobuf.json_format import MessageToDict

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import JobState
from holdover.v1.jobmanager_pb2 import JobStatus, RecoveryReport
from simulator.measures import SubtaskKey, measured, subtask_key
from simulator.record import (
    AttemptEnd,
    AttemptRecord,
    EpochRecord,
    FaultRecord,
    Finding,
    HeldRecord,
    JobRecord,
    RunRecord,
    UnmadeFault,
    VertexRecord,
    WorkerRecord,
)

#: Faults after which a JobManager gives no sign of life, whether its process exists or not.
_ENDS_OF_A_LEADER: Final = frozenset({"crash", "stop", "power-loss", "pause"})
_STATE_PREFIX: Final = "JOB_STATE_"


class RunRecorder:
    """Collects one run. All times are seconds since its start."""

    def __init__(
        self,
        scenario: str,
        world: Literal["simulated", "real"],
        seed: int,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`options`: those that differ from the scenario's own, such as swept ones."""
        self._record = RunRecord(scenario, world, seed, options=dict(options or {}))
        self._jobs: dict[str, JobRecord] = {}
        self._workers: dict[str, WorkerRecord] = {}
        self._epochs: dict[int, EpochRecord] = {}
        self._attempts: dict[AttemptKey, AttemptRecord] = {}
        #: When each worker learned that its leader was lost; all its tasks are stopped then.
        self._leader_lost: dict[str, list[float]] = {}
        self._handlers: dict[str, Callable[[float, str, Mapping[str, str]], None]] = {
            "leadership won": self._leadership_won,
            "jobmanager leads": self._jobmanager_leads,
            "leadership given up": self._leadership_over,
            "leadership lost: a newer leader exists": self._leadership_over,
            "job submitted": self._job_submitted,
            "job state": self._job_state,
            "job ended": self._job_ended,
            "registered": self._registered,
            "connection to the JobManager ended": self._connection_ended,
            "JobManager lost": self._jobmanager_lost,
        }

    # ------------------------------------------------------------------ what is told

    def log_line(self, at_s: float, process: str, event: str, fields: Mapping[str, object]) -> None:
        """A process has logged an event (`holdover.runtime.log`). Those that tell nothing about
        the run's course are passed over.

        Args:
            at_s: when.
            process: a worker's resource id, or a JobManager's name.
            event: the constant text.
            fields: as logged; values as text or as they were.
        """
        handler = self._handlers.get(event)
        if handler is not None:
            handler(at_s, process, {key: str(value) for key, value in fields.items()})

    def worker_started(self, at_s: float, worker: str, *, rack: str = "", slots: int = 0) -> None:
        """A worker's process began."""
        record = self._worker(worker)
        record.rack = rack or record.rack
        record.slots = slots or record.slots
        self._end_life(record, at_s)
        record.lives.append((at_s, None))

    def worker_ended(self, at_s: float, worker: str) -> None:
        """A worker's process is no more; so are the attempts that ran there."""
        record = self._worker(worker)
        self._end_life(record, at_s)
        self._end_connection(record, at_s)

    def jobmanager_ended(self, at_s: float, jobmanager: str) -> None:
        """A JobManager's process is no more."""
        for epoch in self._epochs.values():
            if epoch.jobmanager == jobmanager:
                _end_epoch(epoch, at_s)

    def attempt_started(self, at_s: float, worker: str, key: AttemptKey, slot: int = -1) -> None:
        """An attempt runs in a task process; a slot of -1 is not known."""
        if key not in self._attempts:
            self._attempts[key] = AttemptRecord(
                key.job_id, key.vertex_id, key.subtask, key.attempt, key.epoch, worker, slot, at_s
            )

    def attempt_ended(
        self, at_s: float, key: AttemptKey, end: AttemptEnd, n_bytes: int = 0
    ) -> None:
        """An attempt's end, and the bytes of the partitions that it left. The first word holds."""
        attempt = self._attempts.get(key)
        if attempt is not None and attempt.ended_s is None:
            attempt.ended_s, attempt.end, attempt.bytes = at_s, end, n_bytes

    def fault(self, at_s: float, kind: str, victims: Iterable[str], detail: str = "") -> int:
        """A fault is made; the number is for `healed`."""
        self._record.faults.append(FaultRecord(kind, at_s, list(victims), detail))
        return len(self._record.faults) - 1

    def unmade(self, kind: str, when: str) -> None:
        """The moment of a fault has never come."""
        self._record.unmade.append(UnmadeFault(kind, when))

    def healed(self, at_s: float, number: int) -> None:
        """A fault is over."""
        fault = self._record.faults[number]
        if fault.until_s is None:
            fault.until_s = at_s

    def job_submitted(self, at_s: float, job_id: str, name: str) -> None:
        """A client begins to submit a job."""
        self._job(job_id, at_s).name = name

    def job_not_submitted(self, job_id: str, reason: str) -> None:
        """Its client has given up; the cluster may have the job all the same."""
        self._job(job_id, 0.0).failure = f"not submitted: {reason}"

    def job_ended(self, at_s: float, job_id: str, state: str) -> None:
        """A job has ended by then, in this state, whether a JobManager has said so or not."""
        job = self._job(job_id, at_s)
        if job.ended_s is None:
            job.ended_s, job.state = at_s, state.removeprefix(_STATE_PREFIX)

    def job(self, status: JobStatus, recoveries: Iterable[RecoveryReport] = ()) -> None:
        """What a client knows of a job, last of all when the run is over."""
        job = self._job(status.job_id, 0.0)
        job.name = status.name or job.name
        job.state = JobState.Name(status.state).removeprefix(_STATE_PREFIX)
        job.failure = status.failure.message
        job.vertices = [
            VertexRecord(vertex.vertex_id, vertex.name, vertex.parallelism)
            for vertex in status.vertices
        ]
        job.recoveries = [
            MessageToDict(report, preserving_proto_field_name=True) for report in recoveries
        ]

    def held(self, at_s: float, partitions: int, n_bytes: int) -> None:
        """What all workers hold now; told again only when it has changed."""
        last = self._record.held[-1] if self._record.held else None
        if last is None or (last.partitions, last.bytes) != (partitions, n_bytes):
            self._record.held.append(HeldRecord(at_s, partitions, n_bytes))

    def finding(self, at_s: float, invariant: str, text: str) -> None:
        """Something did not hold."""
        self._record.findings.append(Finding(invariant, at_s, text))

    # ------------------------------------------------------------------ the end

    def finish(
        self, duration_s: float, *, digest: str = "", events: int = 0, wall_s: float = 0.0
    ) -> RunRecord:
        """The run is over after `duration_s`; the recorder is not used after this."""
        record = self._record
        record.duration_s, record.digest, record.events = duration_s, digest, events
        record.wall_s = wall_s
        record.jobs = list(self._jobs.values())
        record.workers = [self._workers[worker] for worker in sorted(self._workers, key=_natural)]
        record.epochs = [self._epochs[epoch] for epoch in sorted(self._epochs)]
        record.attempts = sorted(
            self._attempts.values(), key=lambda a: (a.started_s, a.job_id, a.vertex_id, a.subtask)
        )
        self._end_silent_leaders()
        self._end_unseen_attempts()
        _choose_kept(record.attempts)
        _choose_slots(record.attempts)
        record.measures = measured(record)
        return record

    def _end_silent_leaders(self) -> None:
        """A leader has ended at the latest when the next one leads; if a fault had silenced it
        before, then with that."""
        epochs = self._record.epochs
        for epoch, following in itertools.pairwise(epochs):
            silenced = [
                fault.at_s
                for fault in self._record.faults
                if fault.kind in _ENDS_OF_A_LEADER
                and epoch.jobmanager in fault.victims
                and epoch.from_s <= fault.at_s <= following.from_s
            ]
            last_s = min(silenced, default=following.from_s)
            if epoch.until_s is None or epoch.until_s > last_s:
                epoch.until_s = last_s
                epoch.reconciling = [
                    (job, from_s, last_s if until_s is None else min(until_s, last_s))
                    for job, from_s, until_s in epoch.reconciling
                    if from_s <= last_s  # what it did when it woke was nobody's wait any more
                ]

    def _end_unseen_attempts(self) -> None:
        """An attempt that nobody saw end was lost with its worker, stopped when that lost its
        leader, or stopped at the end of its job; whichever came first."""
        for attempt in self._attempts.values():
            if attempt.ended_s is not None:
                continue
            lives = self._worker(attempt.worker).lives
            job = self._jobs.get(attempt.job_id)
            ends: list[tuple[float, AttemptEnd]] = [
                (until_s, "lost") for _, until_s in lives if until_s is not None
            ]
            ends += [(at_s, "canceled") for at_s in self._leader_lost.get(attempt.worker, ())]
            if job is not None and job.ended_s is not None:
                ends.append((job.ended_s, "canceled"))
            ends = [end for end in ends if end[0] >= attempt.started_s]
            if ends:
                attempt.ended_s, attempt.end = min(ends, key=lambda end: end[0])

    # ------------------------------------------------------------------ log events of JobManagers

    def _leadership_won(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        epoch = int(fields["epoch"])
        self._epochs.setdefault(epoch, EpochRecord(epoch, process, at_s))

    def _jobmanager_leads(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        self._leadership_won(at_s, process, fields)
        self._epochs[int(fields["epoch"])].ready_s = at_s

    def _leadership_over(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        epoch = self._epochs.get(int(fields["epoch"]))
        if epoch is not None:
            _end_epoch(epoch, at_s)

    def _job_submitted(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        self._job(fields["job"], at_s).name = fields["name"]

    def _job_state(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        job_id, state = fields["job"], fields["state"]
        job = self._job(job_id, at_s)
        if job.ended_s is None:
            job.state = state
        epoch = self._epochs.get(int(fields["epoch"]))
        if epoch is None:
            return
        for index, (waiting, from_s, until_s) in enumerate(epoch.reconciling):
            if waiting == job_id and until_s is None:
                epoch.reconciling[index] = (waiting, from_s, at_s)
        if state == "RECONCILING":
            epoch.reconciling.append((job_id, at_s, None))

    def _job_ended(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        self.job_ended(at_s, fields["job"], fields["state"])

    # ------------------------------------------------------------------ log events of workers

    def _registered(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        worker = self._worker(process)
        self._end_connection(worker, at_s)
        worker.connections.append((int(fields["leader_epoch"]), at_s, None))

    def _connection_ended(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        self._end_connection(self._worker(process), at_s)

    def _jobmanager_lost(self, at_s: float, process: str, fields: Mapping[str, str]) -> None:
        self._leader_lost.setdefault(process, []).append(at_s)

    # ------------------------------------------------------------------ records

    def _job(self, job_id: str, at_s: float) -> JobRecord:
        if job_id not in self._jobs:
            self._jobs[job_id] = JobRecord(job_id, job_id, at_s)
        return self._jobs[job_id]

    def _worker(self, worker: str) -> WorkerRecord:
        if worker not in self._workers:
            self._workers[worker] = WorkerRecord(worker, "", 0)
        return self._workers[worker]

    @staticmethod
    def _end_life(worker: WorkerRecord, at_s: float) -> None:
        if worker.lives and worker.lives[-1][1] is None:
            worker.lives[-1] = (worker.lives[-1][0], at_s)

    @staticmethod
    def _end_connection(worker: WorkerRecord, at_s: float) -> None:
        if worker.connections and worker.connections[-1][2] is None:
            epoch, from_s, _ = worker.connections[-1]
            worker.connections[-1] = (epoch, from_s, at_s)


def _end_epoch(epoch: EpochRecord, at_s: float) -> None:
    if epoch.until_s is None:
        epoch.until_s = at_s
        epoch.reconciling = [
            (job_id, from_s, at_s if until_s is None else until_s)
            for job_id, from_s, until_s in epoch.reconciling
        ]


def _choose_kept(attempts: Iterable[AttemptRecord]) -> None:
    """Of each subtask the work that finished last is the one that is kept: where it finished more
    than once, the earlier work was not there when it was needed."""
    last: dict[SubtaskKey, AttemptRecord] = {}
    for attempt in attempts:
        attempt.kept = False
        if attempt.end == "finished":
            before = last.get(subtask_key(attempt))
            if before is None or (before.ended_s or 0.0) <= (attempt.ended_s or 0.0):
                last[subtask_key(attempt)] = attempt
    for attempt in last.values():
        attempt.kept = True


def _choose_slots(attempts: Iterable[AttemptRecord]) -> None:
    """Attempts of unknown slot get the lowest of their worker that is free, for the eye."""
    free_from_s: dict[str, list[float]] = {}
    for attempt in attempts:
        if attempt.slot >= 0:
            continue
        slots = free_from_s.setdefault(attempt.worker, [])
        until_s = float("inf") if attempt.ended_s is None else attempt.ended_s
        for slot, free_s in enumerate(slots):
            if free_s <= attempt.started_s:
                attempt.slot, slots[slot] = slot, until_s
                break
        else:
            attempt.slot = len(slots)
            slots.append(until_s)


def _natural(name: str) -> tuple[int, str]:
    """`tm-2` comes before `tm-10`."""
    return len(name), name
