"""Makes a scenario's faults happen to a simulated cluster, and heals them.

MODEL: the victims of a fault are chosen at its moment. One that lasts is healed after its time, or
by `heal_all`. Conditions ("when the stage is half finished") are looked at after every step of a
leader; a state that a job had only for a moment counts. A fault whose condition never comes true
is not made, which the record tells, and the run goes on without it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jobmanager.scheduler.execution_graph import ExecutionGraph
from simulator import fault_kinds as kinds
from simulator.cluster import LEADER_HOST, SimulatedCluster
from simulator.fault_effects import SHARED_STORAGE, Ending, FaultEffects, Heal
from simulator.moments import Moments
from simulator.recorder import RunRecorder
from simulator.scenario import Scenario
from simulator.victims import Candidates, choose


@dataclass(frozen=True, slots=True)
class MadeFault:
    """A fault that was made.

    `over` is set when it has ended, whatever ended it; at once where nothing will but healing.
    """

    number: int
    over: asyncio.Event


@dataclass(frozen=True, slots=True)
class _Lasting:
    """A fault that can be undone."""

    kind: str
    undo: Heal
    over: asyncio.Event
    #: Whether it acts until it is undone. What is dead for ever acts no more, and a wish never.
    acts: bool


class FaultInjector:
    """Applies all faults of one scenario. `run` ends when the last one has been made and, unless
    it lasts until it is healed, is over."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        scenario: Scenario,
        recorder: RunRecorder,
        cancel_job: Callable[[str], None],
    ) -> None:
        """`cancel_job`: a client begins to ask for the cancellation of that job."""
        self._cluster = cluster
        self._world = cluster.world
        self._scenario = scenario
        self._recorder = recorder
        self._random = self._world.random("faults")
        self._job_names = [job.name for job in scenario.jobs]
        self._effects = FaultEffects(cluster, self._job_names, self._random, cancel_job)
        #: Told of what happens in the run.
        self.moments = Moments()
        cluster.on_step.append(
            lambda _node, _master, _signal, decision: self.moments.decided(decision)
        )
        self._made = {fault.id: asyncio.Event() for fault in scenario.faults if fault.id}
        #: Which steps there had been when each of these was made for the first time.
        self._steps_before: dict[str, Mapping[str, int]] = {}
        #: Faults of the scenario that were not made yet, by their place.
        self._unmade: dict[int, kinds.FaultModel] = dict(enumerate(scenario.faults))
        self._lasting: dict[int, _Lasting] = {}
        #: By job and stage.
        self._vertex_ids: dict[tuple[str, str], str] = {}
        #: When the last fault began or ended to act, None before the first.
        self.changed_s: float | None = None

    @property
    def active(self) -> int:
        """Faults that act on anything now, those included whose victims will be started again."""
        return sum(fault.acts for fault in self._lasting.values())

    @property
    def logs_cut(self) -> Mapping[str, None]:
        """Jobs whose event logs have lost bytes that were synced."""
        return self._effects.logs_cut

    def disk_changed_s(self, name: str) -> float:
        """When a fault last struck, or ceased to strike, the disk of a machine; 0 for never."""
        return self._effects.disks_changed_s.get(name, 0.0)

    def note_lost_log(self, job_id: str) -> None:
        """A job's event log was damaged by other means than a fault of the scenario."""
        self._effects.logs_cut[job_id] = None

    async def run(self) -> None:
        """Wait for each fault's moment, make it, and wait for its end."""
        await asyncio.gather(
            *(self._run_one(place, fault) for place, fault in enumerate(self._scenario.faults))
        )

    def tell_unmade(self) -> None:
        """Record the faults of the scenario that were never made."""
        for fault in self._unmade.values():
            self._recorder.unmade(fault.kind, _moment(fault))

    def make(self, fault: kinds.FaultModel) -> MadeFault:
        """Make a fault now, whenever it says that it happens."""
        over = asyncio.Event()
        groups = [choose(victims, self._candidates(), self._random) for victims in fault.roles()]
        names = [name for group in groups for name in group]
        detail = _detail(fault)
        self._world.trace.note("world", f"fault {fault.kind}", ",".join(names))
        number = self._recorder.fault(self._world.now_s, fault.kind, names, detail)
        self.changed_s = self._world.now_s
        undo = self._effects.apply(fault, groups) if all(groups) else None  # else nobody fits
        if undo is None:
            over.set()
            return MadeFault(number, over)
        lasts_s = (
            self._effects.restart_after_s(fault, names)
            if isinstance(fault, Ending)
            else _lasts_s(fault)
        )
        # Who is asked to leave is disturbed by nothing, and must come to its end.
        gone = isinstance(fault, Ending) and math.isinf(lasts_s)
        acts = not gone and not isinstance(fault, kinds.Drain)
        self._lasting[number] = _Lasting(fault.kind, undo, over, acts)
        if math.isinf(lasts_s):
            over.set()
        else:
            loop = self._world.loop
            loop.call_later(lasts_s, self._heal, number, context=loop.world_process.context)
        return MadeFault(number, over)

    def heal(self, made: MadeFault) -> None:
        """End a fault before its time; no-op when it is over."""
        self._heal(made.number)

    def heal_all(self) -> None:
        """End every fault that still acts, start every node, and from now on start again whatever
        ends by itself."""
        self._cluster.healed = True
        for number in list(self._lasting):
            self._heal(number)
        self._cluster.start()

    def _heal(self, number: int) -> None:
        lasting = self._lasting.pop(number, None)
        if lasting is None:
            return
        self._world.trace.note("world", f"healed {lasting.kind}")
        self._recorder.healed(self._world.now_s, number)
        self.changed_s = self._world.now_s
        lasting.undo()
        lasting.over.set()

    # ------------------------------------------------------------------ when

    async def _run_one(self, place: int, fault: kinds.FaultModel) -> None:
        if fault.at_s is not None:
            await asyncio.sleep(max(0.0, fault.at_s - self._world.now_s))
        elif fault.when is not None:
            await self._until(fault.when)
            await asyncio.sleep(fault.when.after_s)
        ends: list[MadeFault] = []
        for count in range(fault.repeat):
            if count and fault.every_s is not None:
                await asyncio.sleep(fault.every_s)
            self._unmade.pop(place, None)
            if fault.id is not None:
                self._steps_before.setdefault(fault.id, self.moments.so_far())
            ends.append(self.make(fault))
            if fault.id is not None:
                self._made[fault.id].set()
        for made in ends:
            await made.over.wait()

    async def _until(self, when: kinds.When) -> None:
        if isinstance(when, kinds.FaultMade):
            await self._made[when.fault].wait()
            return
        if isinstance(when, kinds.StepReached):
            before: Mapping[str, int] = {}
            if when.since is not None:
                await self._made[when.since].wait()
                before = self._steps_before[when.since]
            await self.moments.beyond(when.step, before.get(when.step, 0))
            return
        await self._cluster.until(lambda: self._holds(when))

    def _holds(self, when: kinds.StageFinished | kinds.JobIs | kinds.JobsAre) -> bool:
        cluster = self._cluster
        match when:
            case kinds.StageFinished(stage=stage, finished=part, of=of):
                return any(self.finished_part(job, stage) >= part for job in self._of(of))
            case kinds.JobIs(job=state, of=of):
                return any(cluster.was_in(job, state) for job in self._of(of))
            case kinds.JobsAre(jobs=state):
                return all(cluster.job_states.get(job) == state for job in self._job_names)

    def _of(self, job: str | None) -> list[str]:
        return self._job_names if job is None else [job]

    def finished_part(self, job_id: str, stage: str) -> float:
        """Part of a stage's subtasks that are finished, as the leader knows; -1 while the stage is
        not there (yet). A stage is an operator of its vertex: the last one is chained to a sink.
        """
        master = self._cluster.job_master(job_id)
        if master is None:
            return -1.0
        graph = master.scheduler.graph
        found = graph.vertices.get(self._vertex_id(graph, stage))
        return found.finished_count / found.parallelism if found and found.parallelism else -1.0

    def _vertex_id(self, graph: ExecutionGraph, stage: str) -> str:
        """The vertex that a stage is part of; empty where the job has no such stage."""
        known = self._vertex_ids.get((graph.job_id, stage))
        if known is None:
            chains = [
                vertex.vertex_id
                for vertex in graph.job.vertices
                if any(operator.name == stage for operator in vertex.operators)
            ]
            known = self._vertex_ids[graph.job_id, stage] = chains[0] if chains else ""
        return known

    # ------------------------------------------------------------------ who

    def _candidates(self) -> Candidates:
        leader = self._cluster.leader()
        holders = [
            node.name
            for node in self._cluster.taskmanagers
            if node.taskmanager is not None and node.taskmanager.finished.inventory()
        ]
        return Candidates(
            leader.name if leader is not None else None,
            [node.name for node in self._cluster.jobmanagers],
            [node.name for node in self._cluster.taskmanagers],
            holders,
            self._scenario.cluster.racks,
            LEADER_HOST if self._cluster.leader_service is not None else "",
            SHARED_STORAGE,
            [node.name for node in self._cluster.shuffle_services],
            [
                node.name
                for node in self._cluster.shuffle_services
                if node.finished is not None and node.finished.inventory()
            ],
        )


def _lasts_s(fault: kinds.FaultModel) -> float:
    """For how long it acts; infinite for until all is healed."""
    lasts_s: float | None = getattr(fault, "for_s", None)
    return math.inf if lasts_s is None else lasts_s


def _moment(fault: kinds.FaultModel) -> str:
    """When it was to happen, for a reader."""
    if fault.when is None:
        return f"at {fault.at_s} s"
    said = fault.when.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    return ", ".join(f"{name} {value}" for name, value in said.items())


def _detail(fault: kinds.FaultModel) -> str:
    """What was said of a fault beyond its kind, moment and victims, for a reader."""
    apart = {"id", "at_s", "when", "victims", "repeat", "every_s"}
    said = fault.model_dump(mode="json", exclude=apart, exclude_defaults=True, by_alias=True)
    told = []
    for name, value in said.items():
        text = " and ".join(value) if isinstance(value, list) else str(value)
        if name == "restart_after" and value == "never":
            told.append("not started again")
        elif name != "kind":
            told.append(name.replace("_", " ") + ("" if value is True else f" {text}"))
    return ", ".join(told)
