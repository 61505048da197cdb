"""Swarm: the seed draws cluster, jobs, options and faults.

MODEL. A drawn run is small and short (some 10 to 60 virtual seconds of work), so that thousands of
them can be run; what it lacks in size it has in variety. Each swarm run leaves some kinds of fault
out, and gives the others wildly different weights: a run with nothing but paused TaskManagers
finds other bugs than one that does a little of everything. Restarts of jobs are not bounded, so
that every job has to finish, whatever the faults were, once all is healed.

Drawn numbers depend on the seed alone, and a drawn scenario can be written out as a file.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from simulator.scenario import Scenario
from simulator.swarm_double import DoubleFaultDraw
from simulator.swarm_external import ExternalFaultDraw, draw_services
from simulator.swarm_faults import FaultDraw, between, rounded

#: Names of swarms.
SWARM = "swarm"
SWARM_DOUBLE = "swarm-double"
SWARM_EXTERNAL = "swarm-external"
SWARMS = (SWARM, SWARM_DOUBLE, SWARM_EXTERNAL)

_FAULT_DRAWS = {
    SWARM: FaultDraw,
    SWARM_DOUBLE: DoubleFaultDraw,
    SWARM_EXTERNAL: ExternalFaultDraw,
}

#: Drawn jobs are cut down to about this much work on the slots of their cluster.
WORK_S_MAX = 30.0
#: What is to meet with several faults has at least this much.
_WORK_S_MIN = 10.0
#: By then a run is healed; what it still has to do after that is bounded too.
DURATION_S_MAX = 150.0
_RESTARTS = "1000000"
#: Earlier seeds stay what they were when they were run.
_MORE_FROM_SEED = 20_000

_Fields = dict[str, Any]


def draw_scenario(seed: int, swarm: str = SWARM) -> Scenario:
    """The scenario that the seed stands for; equal seeds give equal scenarios.

    With SWARM_DOUBLE faults are aimed at the recovery from others, clients cancel jobs, and sources
    hand out splits (`simulator.swarm_double`). With SWARM_EXTERNAL output goes to shuffle services,
    which suffer faults as TaskManagers do (`simulator.swarm_external`).
    """
    chance = random.Random(f"{seed}/{swarm}")
    double = swarm == SWARM_DOUBLE
    cluster = _draw_cluster(chance)
    if double and chance.random() < 0.4:
        cluster["jobmanagers"] = 2  # so that there is a successor, where a leader only stands still
    slots = cluster["taskmanagers"] * cluster["slots"]
    jobs = [_draw_job(chance, number, slots) for number in range(1, 1 + _skewed(chance, 1, 3))]
    work_s = _shorten(jobs, slots)
    if double:
        work_s = _lengthen(jobs, work_s)
        _draw_splits(chance, jobs)
    if seed >= _MORE_FROM_SEED:
        _draw_more(random.Random(f"{seed}/{swarm}/more"), jobs)
    begins_s = max(job.submit_at_s for job in jobs)
    stages = {job.name: [stage.fields["name"] for stage in job.stages] for job in jobs}
    options = _draw_options(chance)
    if swarm == SWARM_EXTERNAL:
        cluster |= draw_services(chance)
        options["shuffle.mode"] = _usually(chance, 0.9, "external", "taskmanager")
    kind = _FAULT_DRAWS[swarm]
    draw = kind(chance, cluster, stages, begins_s + work_s + 3.0)
    return Scenario.model_validate(
        {
            "name": swarm,
            "description": f"drawn from seed {seed}",
            "seed": seed,
            "cluster": cluster,
            "jobs": [_job_fields(job) for job in jobs],
            "options": options,
            "faults": draw.faults(),
            "network": _draw_network(chance),
            "duration_max": DURATION_S_MAX,
        }
    )


def _skewed(chance: random.Random, low: int, high: int) -> int:
    """Mostly near `low`."""
    return low + int((high - low + 1) * chance.random() ** 2)


def _seconds(chance: random.Random, low: float, high: float) -> str:
    return f"{between(chance, low, high)} s"


# ------------------------------------------------------------------ cluster


def _draw_cluster(chance: random.Random) -> _Fields:
    taskmanagers = chance.randint(1, 12)
    return {
        "taskmanagers": taskmanagers,
        "slots": chance.randint(1, 4),
        "racks": chance.randint(1, min(3, taskmanagers)),
        "jobmanagers": chance.choice((1, 1, 1, 2, 2, 3)),
        "leader": chance.choice(("service", "service", "file")),
        "lease_ttl": between(chance, 1.0, 6.0),
        "jobmanager_start": between(chance, 0.1, 1.5),
        "taskmanager_start": between(chance, 0.1, 3.0),
        "jobmanager_restart": between(chance, 0.2, 5.0),
        "taskmanager_restart": ("never" if chance.random() < 0.2 else between(chance, 0.2, 8.0)),
    }


def _draw_network(chance: random.Random) -> _Fields:
    if chance.random() < 0.6:
        return {}
    return {
        "latency": f"uniform(100 us, {chance.choice(('1 ms', '5 ms', '50 ms'))})",
        "bandwidth": chance.choice(("10 mb", "100 mb", "1 gb")),
        "loss": chance.choice((0.0, 0.0, 0.001, 0.02)),
    }


# ------------------------------------------------------------------ jobs


@dataclass(slots=True)
class _Stage:
    """A stage in the making. `parallelism` None is adaptive; `width` is what it may become."""

    fields: _Fields
    parallelism: int | None
    width: int
    mean_s: float
    spread: str


@dataclass(slots=True)
class _DrawnJob:
    """A job in the making."""

    name: str
    submit_at_s: float
    stages: list[_Stage]


def _draw_job(chance: random.Random, number: int, slots: int) -> _DrawnJob:
    width_max = max(2, min(16, 2 * slots))
    stages: list[_Stage] = []
    broadcast_left = 1
    for position in range(1 + _skewed(chance, 0, 4)):
        names = [stage.fields["name"] for stage in stages]
        inputs: list[str] = []
        if names and chance.random() < 0.9:
            inputs = [names[-1]] if chance.random() < 0.7 else sorted({*names[-1:], names[0]})
        exchange = chance.choice(("hash", "hash", "rebalance", "forward", "broadcast"))
        if exchange == "broadcast" and not (inputs and broadcast_left):
            exchange = "hash"
        if exchange == "forward" and len(inputs) != 1:
            exchange = "rebalance"
        broadcast_left -= exchange == "broadcast"
        parallelism: int | None = chance.randint(1, width_max)
        if exchange == "broadcast":
            # Every subtask passes all rows on: their number must stay small, and be known.
            parallelism = chance.randint(1, 4)
        elif exchange == "forward" or (inputs and chance.random() < 0.4):
            parallelism = None
        width = parallelism or (
            next(s.width for s in stages if s.fields["name"] == inputs[0])
            if exchange == "forward"
            else width_max
        )
        stages.append(
            _Stage(
                _stage_fields(chance, f"s{position}", inputs, exchange, parallelism),
                parallelism,
                width,
                between(chance, 0.05, 8.0),
                chance.choice(("constant", "uniform", "exponential", "lognormal")),
            )
        )
    submit_at_s = 0.0 if number == 1 else rounded(chance.uniform(0.0, 10.0))
    return _DrawnJob(f"job-{number}", submit_at_s, stages)


def _stage_fields(
    chance: random.Random, name: str, inputs: list[str], exchange: str, parallelism: int | None
) -> _Fields:
    return {
        "name": name,
        "inputs": inputs,
        "exchange": exchange,
        "parallelism": parallelism,
        "rows": chance.randint(0, 6),
        "output_bytes": chance.choice(
            ("1 kb", "uniform(1 kb, 64 kb)", "exponential(1 mb)", "lognormal(1 mb, 1)", "8 mb")
        ),
        "failure_probability": chance.choice((0.0, 0.0, 0.0, 0.02, 0.2)),
        "indeterminate": chance.random() < 0.08,
    }


def _draw_splits(chance: random.Random, jobs: list[_DrawnJob]) -> None:
    """Half of the sources hand their rows out in splits."""
    for job in jobs:
        for stage in job.stages:
            if not stage.fields["inputs"]:
                stage.fields["splits"] = chance.random() < 0.5


def _draw_more(chance: random.Random, jobs: list[_DrawnJob]) -> None:
    """Sources with splits in every swarm, and rows whose order another attempt may change."""
    _draw_splits(chance, jobs)
    for job in jobs:
        for stage in job.stages:
            drawn = chance.random() < 0.2
            stage.fields["unordered"] = drawn and not stage.fields["indeterminate"]


def _shorten(jobs: list[_DrawnJob], slots: int) -> float:
    """Make all stages shorter if the jobs would take too long; returns how long they may take."""
    work_s = 0.0
    for job in jobs:
        for stage in job.stages:
            work_s += stage.mean_s * max(1.0, stage.width / slots)
    factor = min(1.0, WORK_S_MAX / work_s)
    for job in jobs:
        for stage in job.stages:
            stage.mean_s = max(0.01, rounded(stage.mean_s * factor))
    return work_s * factor


def _lengthen(jobs: list[_DrawnJob], work_s: float) -> float:
    """Make all stages longer if the jobs are over before anything can happen to them; returns how
    long they may take."""
    factor = max(1.0, _WORK_S_MIN / work_s)
    for job in jobs:
        for stage in job.stages:
            stage.mean_s = rounded(stage.mean_s * factor)
    return work_s * factor


def _job_fields(job: _DrawnJob) -> _Fields:
    stages = []
    for stage in job.stages:
        mean_s = stage.mean_s
        seconds = {
            "constant": f"{mean_s} s",
            "uniform": f"uniform(0 s, {rounded(2 * mean_s)} s)",
            "exponential": f"exponential({mean_s} s)",
            "lognormal": f"lognormal({mean_s} s, 0.5)",
        }[stage.spread]
        stages.append({**stage.fields, "seconds": seconds})
    return {"name": job.name, "submit_at": job.submit_at_s, "stages": stages}


# ------------------------------------------------------------------ options


def _draw_options(chance: random.Random) -> dict[str, str]:
    """Options that shape recovery, each now and then at an end of its range."""
    heartbeat_s = between(chance, 0.5, 2.0)
    wait_s = between(chance, 0.5, 12.0)
    buffer = chance.choice(("1 b", "300 b", "4 kb", "1 mb"))
    return {
        "heartbeat.interval": f"{heartbeat_s} s",
        "heartbeat.timeout": f"{rounded(heartbeat_s * chance.uniform(2.0, 6.0))} s",
        "heartbeat.rpc-failure-threshold": chance.choice(("-1", "1", "2", "2", "5")),
        "rpc.call-timeout": _seconds(chance, 1.0, 10.0),
        "taskmanager.registration.timeout": _seconds(chance, 1.05 * wait_s, 5 * wait_s),
        "taskmanager.registration.max-backoff": _seconds(chance, 0.2, 3.0),
        "taskmanager.registration.call-timeout": _seconds(chance, 1.0, 10.0),
        "task.cancellation.timeout": _seconds(chance, 0.2, 3.0),
        "execution.batch.job-recovery.previous-worker.recovery.timeout": f"{wait_s} s",
        "execution.batch.job-recovery.adoption-timeout": chance.choice(
            ("0 s", "500 ms", "2 s", "2 s", "8 s")
        ),
        "execution.batch.job-recovery.enabled": _usually(chance, 0.95, "true", "false"),
        "execution.batch.job-recovery.schedule-while-waiting": _usually(
            chance, 0.7, "true", "false"
        ),
        "jobmanager.partition.release-during-job-execution": _usually(chance, 0.8, "true", "false"),
        "job-event.store.write-buffer.size": buffer,
        "job-event.store.write-buffer.flush-interval": _seconds(chance, 0.02, 4.0),
        "job-event.store.segment-size": (
            segment := chance.choice(("4 kb", "4 kb", "64 kb", "64 mb"))
        ),
        "job-event.store.compaction-size": segment,
        "execution.batch.adaptive.auto-parallelism.max-parallelism": str(chance.randint(2, 8)),
        "execution.batch.adaptive.auto-parallelism.avg-data-volume-per-task": chance.choice(
            ("10 kb", "1 mb", "16 mb")
        ),
        "restart-strategy.type": chance.choice(("fixed-delay", "exponential-delay")),
        "restart-strategy.fixed-delay.attempts": _RESTARTS,
        "restart-strategy.fixed-delay.delay": _seconds(chance, 0.05, 2.0),
        "restart-strategy.exponential-delay.attempts": _RESTARTS,
        "restart-strategy.exponential-delay.initial-backoff": "200 ms",
        "restart-strategy.exponential-delay.max-backoff": _seconds(chance, 1.0, 5.0),
        "slot.request.timeout": "1 h",
        "shuffle.fetch.retry-timeout": chance.choice(("0 s", "1 s", "5 s", "30 s")),
    }


def _usually(chance: random.Random, probability: float, usual: str, other: str) -> str:
    return usual if chance.random() < probability else other
