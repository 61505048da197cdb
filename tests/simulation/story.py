"""Stories: a scenario whose faults are made by a test, step by step, in virtual time.

A test writes what happens as a coroutine and hands it to `tell`, which runs the whole simulated
cluster with its job around it, checks all invariants throughout, and returns the record:

    async def plot(story: Story) -> None:
        await story.stage_finished("map", 0.5)
        await story.kill("jm-1").over.wait()
        ...

    record = tell(scenario, plot)

Nodes are called as in the cluster: `jm-1`, `tm-2`. A wait for a condition looks a hundred times a
second of the world; what happens meanwhile has its exact time in the record and in `logged`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from logging import LogRecord
from typing import Any

from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.job_pb2 import JobGraph
from jobmanager.job_store import JobStore
from simulator import fault_kinds as kinds
from simulator.cluster import JOBS_DIRECTORY, LOCAL_DIRECTORY, Node
from simulator.faults import MadeFault
from simulator.invariants.stored import archived, as_it_is, files_below
from simulator.quantities import Constant
from simulator.record import AttemptRecord, RunRecord
from simulator.scenario import ClusterSpec, JobSpec, NetworkSpec, Scenario, StageSpec
from simulator.simulate import SimulatedRun
from simulator.world.medium import finish
from simulator.world.process import Process
from simulator.world.world import current_process_name
from taskmanager.task_executor import TaskExecutor

LOOK_INTERVAL_S = 0.01
#: Between two heartbeats of a TaskManager, where a scenario says so.
HEARTBEAT_S = 1.0
_FOR_EVER_S = 1e6
#: Between the operators in a vertex's name.
CHAINED = " -> "
WAIT = "execution.batch.job-recovery.previous-worker.recovery.timeout"


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A line that a service has logged."""

    at_s: float
    process: str
    event: str
    fields: Mapping[str, object]


class _ToldRun(SimulatedRun):
    """A run that keeps what its services log."""

    def __init__(self, scenario: Scenario, seed: int, trace_lines_max: int) -> None:
        self.log: list[LogEvent] = []
        super().__init__(scenario, seed, {}, trace_lines_max, checked=True)

    def log_line(self, line: LogRecord) -> None:
        fields: Mapping[str, object] = getattr(line, "holdover_fields", {})
        process = current_process_name()
        self.log.append(LogEvent(self.world.now_s, process, line.getMessage(), fields))
        super().log_line(line)


class Story:
    """What a plot can see and do. See the module."""

    def __init__(self, run: _ToldRun) -> None:
        self._run = run
        self.world = run.world
        self.cluster = run.cluster
        self.job = run.scenario.jobs[0].name
        self._busy_until_s: dict[Process, float] = {}

    # ------------------------------------------------------------------ time

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.world.now_s

    async def until(
        self, condition: Callable[[], object], what: str, within_s: float = 120.0
    ) -> float:
        """Wait for a condition and return the time; raises AssertionError when it never holds."""
        deadline_s = self.now_s + within_s
        while not condition():
            if self.now_s > deadline_s:
                told = "\n".join(str(line) for line in self._run.log[-20:])
                raise AssertionError(f"{what}: not within {within_s} s; logged last:\n{told}")
            await asyncio.sleep(LOOK_INTERVAL_S)
        return self.now_s

    async def at(self, at_s: float) -> None:
        """Wait for a moment of the world."""
        assert at_s >= self.now_s, f"{at_s} s is over, it is {self.now_s} s"
        await asyncio.sleep(at_s - self.now_s)

    async def stage_finished(self, stage: str, part: float = 1.0, job: str = "") -> float:
        """Wait until the leader knows that this part of a stage's subtasks is finished."""
        return await self.until(
            lambda: self.finished_part(stage, job) >= part, f"{part:.0%} of {stage} is finished"
        )

    async def job_is(self, state: str, job: str = "", within_s: float = 600.0) -> float:
        """Wait until the leader has a job in a state."""
        states, job = self.cluster.job_states, job or self.job
        return await self.until(
            lambda: states.get(job) == state and self.cluster.job_master(job) is not None,
            f"{job} is {state}",
            within_s,
        )

    async def registered(self, name: str, epoch: int, within_s: float = 120.0) -> float:
        """Wait until a TaskManager is registered with the leader of an epoch."""
        return await self.until(
            lambda: self.epoch_of(name) == epoch, f"{name} registers with epoch {epoch}", within_s
        )

    # ------------------------------------------------------------------ what is done

    def kill(self, victim: str, restart_after_s: float | None = None) -> MadeFault:
        """SIGKILL; started again after that time, or when it is healed."""
        after = "never" if restart_after_s is None else restart_after_s
        return self.make(kinds.Crash, victims=_role(victim), restart_after=after)

    def stop(self, victim: str, restart_after_s: float | None = None) -> MadeFault:
        """SIGTERM."""
        after = "never" if restart_after_s is None else restart_after_s
        return self.make(kinds.Stop, victims=_role(victim), restart_after=after)

    def power_loss(self, victim: str) -> MadeFault:
        """The host goes dark and forgets what was not synced; on again when it is healed."""
        return self.make(kinds.PowerLoss, victims=_role(victim), restart_after="never")

    def pause(self, victim: str) -> MadeFault:
        """SIGSTOP, until it is healed."""
        return self.make(kinds.Pause, victims=_role(victim), for_s=_FOR_EVER_S)

    def cut(self, one: str, other: str, *, one_way: bool = False) -> MadeFault:
        """Nothing passes between the two (from the first to the second), until it is healed."""
        return self.make(kinds.Cut, between=(_role(one), _role(other)), one_way=one_way)

    def jump(self, victim: str, by_s: float) -> MadeFault:
        """Set a host's wall clock forward, or back."""
        return self.make(kinds.ClockJump, victims=_role(victim), by_s=by_s)

    def computes(self, victim: str, for_s: float) -> None:
        """The process of a node is busy for so long, after what it is busy with already: nothing
        else of it runs meanwhile."""
        process = self.cluster.node(victim).process
        assert process is not None
        loop = self.world.loop
        until_s = max(self.now_s, self._busy_until_s.get(process, 0.0)) + for_s
        self._busy_until_s[process] = until_s

        def go_on() -> None:
            if self._busy_until_s[process] <= until_s:
                process.resume()

        process.pause()
        loop.call_at(until_s, go_on, context=loop.world_process.context)

    def cancel(self, job: str = "") -> None:
        """A client asks for the cancellation of a job."""
        self.make(kinds.CancelJob, job=job or self.job)

    def cancel_is_acknowledged(self, job: str = "") -> bool:
        """Whether it was told that the job is being cancelled."""
        return self._run.view.jobs[job or self.job].cancel_acknowledged

    def may_fail(self, message_part: str, job: str = "") -> None:
        """What the plot does may end a job with this failure."""
        self._run.view.change_job(job or self.job, failures_allowed=(message_part,))

    def remove_log(self) -> None:
        """The first job's event log vanishes, with the directory that holds it."""
        shared = self.world.storages.shared
        finish(
            shared.remove_tree_steps(JobStore(shared, JOBS_DIRECTORY).events_directory(self.job))
        )
        self._run.injector.note_lost_log(self.job)

    def heal(self, made: MadeFault) -> None:
        """End a fault: what was killed starts, what was paused goes on, what was cut connects."""
        self._run.injector.heal(made)

    def make(self, kind: type[kinds.FaultModel], **fields: Any) -> MadeFault:
        """Make any fault now; fields as in `fault_kinds`."""
        return self._run.injector.make(kind.model_validate({"at_s": self.now_s, **fields}))

    # ------------------------------------------------------------------ what is seen

    def finished_part(self, stage: str, job: str = "") -> float:
        """Part of a stage's subtasks that are finished, as the leader knows; -1 without one."""
        return self._run.injector.finished_part(job or self.job, stage)

    def graph(self) -> JobGraph:
        """The first job, as it was submitted."""
        return self._run.view.jobs[self.job].graph

    def leader(self) -> Node:
        """Who leads."""
        node = self.cluster.leader()
        assert node is not None, "nobody leads"
        return node

    def has_ended(self, job: str = "") -> bool:
        """Whether the end of a job is on the shared storage."""
        return archived(self._run.view, job or self.job) is not None

    def executor(self, name: str) -> TaskExecutor:
        """The living TaskExecutor of a TaskManager."""
        taskmanager = self.cluster.node(name).taskmanager
        assert taskmanager is not None, f"{name} does not live"
        assert taskmanager.executor is not None, f"{name} is not there yet"
        return taskmanager.executor

    def tasks(self, name: str) -> list[AttemptKey]:
        """The attempts in the slots of a TaskManager."""
        taskmanager = self.cluster.node(name).taskmanager
        executor = taskmanager.executor if taskmanager is not None else None
        return list(executor.occupants) if executor is not None else []

    def epoch_of(self, name: str) -> int | None:
        """The epoch that a TaskManager or a shuffle service is registered with."""
        node = self.cluster.node(name)
        of = node.taskmanager.executor if node.taskmanager is not None else None
        service = node.shuffle_service.service if node.shuffle_service is not None else None
        worker = of if of is not None else service
        current = worker.connection.current if worker is not None else None
        return current.epoch if current is not None else None

    def held(self, name: str) -> list[FinishedExecution]:
        """What a TaskManager would offer now."""
        finished = self.cluster.node(name).finished
        return finished.inventory() if finished is not None else []

    def files(self, name: str) -> list[str]:
        """Files of partitions on the disk of a TaskManager, whether it lives or not."""
        disk = as_it_is(self.world.storages.of(self.cluster.node(name).host))
        return list(files_below(disk, f"{LOCAL_DIRECTORY}/{name}/shuffle"))

    def logged(self, event: str, process: str = "", since_s: float = 0.0) -> list[LogEvent]:
        """Lines of that event, of one process or of all, in order."""
        return [
            line
            for line in self._run.log
            if line.event == event and process in ("", line.process) and line.at_s >= since_s
        ]


def tell(
    scenario: Scenario,
    plot: Callable[[Story], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    trace_lines_max: int = 0,
    ends: Sequence[str] | None = None,
) -> RunRecord:
    """Run a scenario while the plot happens. Every job must finish, or end in these states, and no
    invariant break."""
    run = _ToldRun(scenario, seed, trace_lines_max)

    async def whole() -> None:
        running = asyncio.get_running_loop().create_task(run.main())
        await plot(Story(run))
        await running

    with run.logs_captured():
        try:
            run.world.run(whole())
            record = run.finish()
        finally:
            run.world.close()
    assert record.findings == [], "\n".join(finding.text for finding in record.findings)
    expected = list(ends or ["FINISHED"] * len(record.jobs))
    assert [job.state for job in record.jobs] == expected, record.jobs
    return record


def two_stages(
    maps: int,
    *,
    taskmanagers: int = 3,
    slots: int = 2,
    map_s: float = 1.0,
    reduces: int = 2,
    reduce_s: float = 60.0,
    options: Mapping[str, str] | None = None,
    network: NetworkSpec | None = None,
    faults: tuple[kinds.Fault, ...] = (),
    **cluster: Any,
) -> Scenario:
    """A job `map` -> `reduce`. The second stage takes so long that a plot can happen in it."""
    stages = (
        StageSpec(name="map", parallelism=maps, seconds=Constant(map_s)),
        StageSpec(name="reduce", parallelism=reduces, seconds=Constant(reduce_s)),
    )
    return Scenario(
        name="story",
        cluster=ClusterSpec(taskmanagers=taskmanagers, slots=slots, **cluster),
        jobs=(JobSpec(name="job", stages=stages),),
        options={WAIT: "30 s", **(options or {})},
        network=network or NetworkSpec(),
        faults=faults,
    )


def three_jobs(
    names: tuple[str, ...], options: Mapping[str, str] | None = None, **cluster: Any
) -> Scenario:
    """Jobs `map` -> `reduce` at the same time. One of the name "failed" fails when its last stage
    has begun."""
    maps = StageSpec(name="map", parallelism=3, seconds=Constant(1.0))
    jobs = tuple(
        JobSpec(
            name=name,
            stages=(
                maps,
                StageSpec(
                    name="reduce",
                    parallelism=2,
                    seconds=Constant(20.0),
                    failure_probability=1.0 if name == "failed" else 0.0,
                ),
            ),
            options={"restart-strategy.type": "none"} if name == "failed" else {},
        )
        for name in names
    )
    return Scenario(
        name="story",
        cluster=ClusterSpec(taskmanagers=3, slots=6, **cluster),
        jobs=jobs,
        options={
            "heartbeat.interval": f"{HEARTBEAT_S:.0f} s",
            "heartbeat.timeout": "5 s",
            **(options or {}),
        },
    )


def attempts_of(record: RunRecord, stage: str, job: str = "job") -> list[AttemptRecord]:
    """All attempts of a stage, in order of their start."""
    [told] = [each for each in record.jobs if each.job_id == job]
    ids = [v.vertex_id for v in told.vertices if stage in v.name.split(CHAINED)]
    return [a for a in record.attempts if a.job_id == job and a.vertex_id in ids]


def runs_of(record: RunRecord, stage: str, job: str = "job") -> dict[int, int]:
    """How often each subtask of a stage was started, as task processes saw it."""
    counts: dict[int, int] = {}
    for attempt in attempts_of(record, stage, job):
        counts[attempt.subtask] = counts.get(attempt.subtask, 0) + 1
    return dict(sorted(counts.items()))


def wait_of(record: RunRecord, epoch: int, job: str = "job") -> tuple[float, float]:
    """When the recovery of a job by a leader began to wait for workers, and when it stopped."""
    [told] = [each for each in record.epochs if each.epoch == epoch]
    [(_, from_s, until_s)] = [each for each in told.reconciling if each[0] == job]
    assert until_s is not None, "it waits still"
    return from_s, until_s


def ready_of(record: RunRecord, epoch: int) -> float:
    """When a leader could take registrations."""
    [ready_s] = [each.ready_s for each in record.epochs if each.epoch == epoch]
    assert ready_s is not None, f"epoch {epoch} was never ready"
    return ready_s


def registered_of(record: RunRecord, name: str, epoch: int) -> float:
    """When a TaskManager was registered with an epoch, the first time."""
    [worker] = [each for each in record.workers if each.worker == name]
    return next(from_s for of, from_s, _ in worker.connections if of == epoch)


def _role(name: str) -> str:
    """`tm-2` is `taskmanager:2` to a fault, `ss-1` is `shuffle:1`; a role is what it is."""
    kind, _, number = name.partition("-")
    if number.isdecimal():
        roles = {"tm": "taskmanager", "jm": "jobmanager", "ss": "shuffle"}
        return f"{roles[kind]}:{number}"
    return name
