"""Faults of a scenario, made to local processes when their triggers say so."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdover.cli.real_cluster import DATA_SUFFIX, RealCluster
from holdover.cli.real_record import LogLine
from holdover.client import state_name
from holdover.errors import HoldoverError
from holdover.v1.common_pb2 import ExecutionState
from holdover.v1.jobmanager_pb2 import JobStatus
from simulator.fault_kinds import (
    Crash,
    Drain,
    Fault,
    FaultMade,
    JobIs,
    JobsAre,
    LosePartitions,
    Pause,
    StageFinished,
    StepReached,
    Stop,
    Victims,
)
from simulator.record import FaultRecord
from simulator.scenario import Scenario
from simulator.victims import Candidates, choose

PROCESSES_MAX = 24
SLOTS_MAX = 96
_NOT_HERE = ("leader-service", "shared-storage")
_CHAINED = " -> "


class ScenarioRefused(HoldoverError):
    """The scenario cannot be run by local processes; the message says why and what to do."""


def check_runnable(scenario: Scenario) -> None:
    """Raises ScenarioRefused, naming everything that this machine cannot do."""
    reasons = []
    for position, fault in enumerate(scenario.faults):
        if isinstance(fault.when, StepReached):
            reasons.append(f"faults[{position}]: a step is seen in a simulated cluster only")
        if not fault.real:
            reasons.append(f"faults[{position}]: {fault.kind} cannot be done to local processes")
        reasons += [
            f"faults[{position}]: there is no {victims} here"
            for victims in fault.roles()
            if victims.role in _NOT_HERE
        ]
    spec = scenario.cluster
    processes = spec.taskmanagers + spec.jobmanagers + spec.shuffle_services
    slots = spec.taskmanagers * spec.slots
    if processes > PROCESSES_MAX:
        reasons.append(f"{processes} processes are too many for one machine: {PROCESSES_MAX}")
    if slots > SLOTS_MAX:
        reasons.append(f"{slots} slots are too many for one machine: {SLOTS_MAX}")
    for job in scenario.jobs:
        if job.graph is not None:
            reasons.append(
                f"job {job.name}: a stored JobGraph has inputs and outputs of its own; submit it"
                " with `holdover submit`"
            )
    if reasons:
        raise ScenarioRefused(
            f"scenario {scenario.name!r} cannot be run on this machine: {'; '.join(reasons)};"
            " `holdover simulate` can do all that"
        )


class Progress:
    """How far the jobs are, for faults that wait for it."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._seen: set[tuple[str, str]] = set()
        self._stages: dict[tuple[str, str], float] = {}
        self._faults: set[str] = set()
        self._changed = asyncio.Event()

    def log_line(self, process: str, line: LogLine) -> None:
        """A process has logged an event."""
        state = {
            "job submitted": "CREATED",
            "job parked": "PARKED",
            "job state": line.fields.get("state", ""),
        }.get(line.event)
        if state is not None:
            job = line.fields["job"]
            self._states[job] = state
            self._seen.add((job, state))
            self._pulse()

    def status(self, status: JobStatus) -> None:
        """What a client hears of a job."""
        finished = ExecutionState.EXECUTION_STATE_FINISHED
        for vertex in status.vertices:
            if vertex.parallelism:
                part = vertex.state_counts[finished] / vertex.parallelism
                for stage in vertex.name.split(_CHAINED):
                    before = self._stages.get((status.job_id, stage), 0.0)
                    self._stages[status.job_id, stage] = max(part, before)
        self._states[status.job_id] = state_name(status.state)
        self._pulse()

    def fault_made(self, fault_id: str | None) -> None:
        """A fault was made for the first time."""
        if fault_id is not None:
            self._faults.add(fault_id)
            self._pulse()

    async def until(self, fault: Fault, job_names: list[str]) -> None:
        """Wait for the event that a fault waits for; `after` is not waited."""
        while not self._is_due(fault, job_names):
            await self._changed.wait()

    def _is_due(self, fault: Fault, job_names: list[str]) -> bool:
        match fault.when:
            case StageFinished(stage=stage, finished=part, of=of):
                jobs = job_names if of is None else [of]
                return any(self._stages.get((job, stage), 0.0) >= part for job in jobs)
            case JobIs(job=state, of=of):
                jobs = job_names if of is None else [of]
                return any((job, state) in self._seen for job in jobs)
            case JobsAre(jobs=state):
                return all(self._states.get(job) == state for job in job_names)
            case FaultMade(fault=fault_id):
                return fault_id in self._faults
            case StepReached():
                raise AssertionError("a scenario with steps was refused")
            case None:
                return True

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class RealFaults:
    """Makes the faults of a scenario.

    Attributes:
        scenario: whose faults.
        seed: decides about victims where their role leaves a choice.
        cluster: the processes.
        progress: what triggers wait for.
        say: told of each fault.
        made: the faults so far, with wall clock seconds.
    """

    scenario: Scenario
    seed: int
    cluster: RealCluster
    progress: Progress
    say: Callable[[str], None]
    made: list[FaultRecord] = field(default_factory=list)

    async def run(self, zero_wall_s: float) -> None:
        """Make all faults, each when it is due; the run began at `zero_wall_s`."""
        async with asyncio.TaskGroup() as group:
            for position, fault in enumerate(self.scenario.faults):
                group.create_task(self._run_one(fault, position, zero_wall_s))

    async def _run_one(self, fault: Fault, position: int, zero_wall_s: float) -> None:
        chance = random.Random(f"{self.seed} fault {position}")  # the same victims for a seed
        if fault.at_s is not None:
            await asyncio.sleep(zero_wall_s + fault.at_s - time.time())
        if fault.when is not None:
            await self.progress.until(fault, [job.name for job in self.scenario.jobs])
            await asyncio.sleep(fault.when.after_s)
        await self._make(fault, chance)
        self.progress.fault_made(fault.id)
        for _ in range(fault.repeat - 1):
            await asyncio.sleep(fault.every_s or 0.0)
            await self._make(fault, chance)

    async def _make(self, fault: Fault, chance: random.Random) -> None:
        assert isinstance(fault, Crash | Stop | Pause | LosePartitions | Drain), (
            "others were refused"
        )
        victims = self._victims(fault.victims, chance)
        record = FaultRecord(fault.kind, time.time(), victims)
        self.made.append(record)
        self.say(f"{fault.kind} of {', '.join(victims) or 'nobody: no ' + str(fault.victims)}")
        match fault:
            case Crash(restart_after_s=restart_s):
                for name in victims:
                    self.cluster.signal(name, signal.SIGKILL, restart_s)
            case Stop(restart_after_s=restart_s):
                for name in victims:
                    self.cluster.signal(name, signal.SIGTERM, restart_s)
            case Pause(for_s=for_s):
                for name in victims:
                    self.cluster.pause(name)
                await asyncio.sleep(for_s)
                for name in victims:
                    self.cluster.resume(name)
                record.until_s = time.time()
            case LosePartitions(part=part):
                lost = sum(self._lose_partitions(name, part, chance) for name in victims)
                record.detail = f"{lost} partitions"
            case Drain():
                heard = await asyncio.gather(*map(self.cluster.drain, victims))
                deaf = [name for name, told in zip(victims, heard, strict=True) if not told]
                if deaf:
                    record.detail = f"not heard by {', '.join(deaf)}"

    def _lose_partitions(self, name: str, part: float, chance: random.Random) -> int:
        held = [index for index, _ in self.cluster.partitions(name)]
        lost = chance.sample(held, min(len(held), max(1, round(part * len(held)))))
        for index in lost:
            index.unlink(missing_ok=True)
            index.with_suffix(DATA_SUFFIX).unlink(missing_ok=True)
        return len(lost)

    def _victims(self, victims: Victims, chance: random.Random) -> list[str]:
        cluster = self.cluster
        living = cluster.living(cluster.taskmanagers)
        services = cluster.living(cluster.shuffle_services)
        candidates = Candidates(
            leader=cluster.leader(),
            jobmanagers=cluster.jobmanagers,
            # A number counts all that were ever started, chance chooses among those that live.
            taskmanagers=living if victims.number is None else cluster.taskmanagers,
            holders=[name for name in living if cluster.partitions(name)],
            racks=self.scenario.cluster.racks,
            shuffle_services=services if victims.number is None else cluster.shuffle_services,
            shuffle_holders=[name for name in services if cluster.partitions(name)],
        )
        return choose(victims, candidates, chance)
