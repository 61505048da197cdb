"""What is known of one run of a scenario: the form that both worlds fill in, and that is drawn.

Times are seconds since the start of the run. A record is plain data: it travels between processes
and into files as JSON (`to_json`, `from_json`).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

AttemptEnd = Literal["finished", "failed", "canceled", "lost", "running"]


@dataclass(slots=True)
class AttemptRecord:
    """One attempt of one subtask, as the worker saw it. `ended_s` is None while it runs."""

    job_id: str
    vertex_id: str
    subtask: int
    attempt: int
    epoch: int
    worker: str
    slot: int
    started_s: float
    ended_s: float | None = None
    #: "lost": its worker (or task process) died under it.
    end: AttemptEnd = "running"
    bytes: int = 0
    #: Whether its output was read, or committed, by what made the job's result.
    kept: bool = True


@dataclass(slots=True)
class VertexRecord:
    """A vertex of a job; `parallelism` is 0 when it was never decided."""

    vertex_id: str
    name: str
    parallelism: int


@dataclass(slots=True)
class JobRecord:
    """A job. `state` is the last that is known ("FINISHED", "RUNNING", ...)."""

    job_id: str
    name: str
    submitted_s: float
    ended_s: float | None = None
    state: str = "CREATED"
    failure: str = ""
    vertices: list[VertexRecord] = field(default_factory=list)
    #: Reports of its recoveries, as JSON objects of the proto message RecoveryReport.
    recoveries: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class EpochRecord:
    """A leadership. Between `from_s` and `ready_s` it loads jobs; None where it did not happen."""

    epoch: int
    jobmanager: str
    from_s: float
    ready_s: float | None = None
    until_s: float | None = None
    #: (job id, from, until) of each time in RECONCILING: the wait for workers.
    reconciling: list[tuple[str, float, float | None]] = field(default_factory=list)


@dataclass(slots=True)
class WorkerRecord:
    """A worker: when its process ran, and when it was registered with which epoch."""

    worker: str
    rack: str
    slots: int
    #: (from, until) of each life.
    lives: list[tuple[float, float | None]] = field(default_factory=list)
    #: (epoch, from, until) of each connection to a leader.
    connections: list[tuple[int, float, float | None]] = field(default_factory=list)


@dataclass(slots=True)
class FaultRecord:
    """A fault that was made. `until_s` when it was healed, if it was."""

    kind: str
    at_s: float
    victims: list[str]
    detail: str = ""
    until_s: float | None = None


@dataclass(slots=True)
class UnmadeFault:
    """A fault whose moment never came; `when` as the scenario says it."""

    kind: str
    when: str


@dataclass(slots=True)
class HeldRecord:
    """What all workers held at one moment."""

    at_s: float
    partitions: int
    bytes: int


@dataclass(slots=True)
class Finding:
    """An invariant that did not hold."""

    invariant: str
    at_s: float
    text: str


@dataclass(slots=True)
class Measures:
    """What a user weighs. Times in seconds; None where there was nothing to measure."""

    #: Task seconds that were spent on attempts whose result was not used.
    work_rerun_s: float = 0.0
    subtasks_rerun: int = 0
    #: Subtasks whose finished work was done again.
    finished_rerun: int = 0
    #: From a leader's death to the first deployment under the next, the longest of the run.
    recovery_s: float | None = None
    #: From the submission to the end, the longest of all jobs.
    finish_s: float | None = None
    partitions_held_max: int = 0
    bytes_retained_max: int = 0


@dataclass(slots=True)
class RunRecord:
    """One run."""

    scenario: str
    world: Literal["simulated", "real"]
    seed: int
    duration_s: float = 0.0
    #: Swept options of this run.
    options: dict[str, str] = field(default_factory=dict)
    jobs: list[JobRecord] = field(default_factory=list)
    attempts: list[AttemptRecord] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    workers: list[WorkerRecord] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    unmade: list[UnmadeFault] = field(default_factory=list)
    held: list[HeldRecord] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    measures: Measures = field(default_factory=Measures)
    #: Digest of the trace, and how many events it covers; empty in the real world.
    digest: str = ""
    events: int = 0
    #: Seconds of real time that the run took.
    wall_s: float = 0.0
    #: The newest lines of the trace, when they were asked for.
    trace: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """The reverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        for name, kind in _LISTS.items():
            fields[name] = [kind(**entry) for entry in fields[name]]
        for job in fields["jobs"]:
            job.vertices = [VertexRecord(**vertex) for vertex in job.vertices]
        for epoch in fields["epochs"]:
            epoch.reconciling = [tuple(entry) for entry in epoch.reconciling]
        for worker in fields["workers"]:
            worker.lives = [tuple(entry) for entry in worker.lives]
            worker.connections = [tuple(entry) for entry in worker.connections]
        fields["measures"] = Measures(**fields["measures"])
        return cls(**fields)


_LISTS: dict[str, Any] = {
    "jobs": JobRecord,
    "attempts": AttemptRecord,
    "epochs": EpochRecord,
    "workers": WorkerRecord,
    "faults": FaultRecord,
    "unmade": UnmadeFault,
    "held": HeldRecord,
    "findings": Finding,
}
