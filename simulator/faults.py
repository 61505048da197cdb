"""Makes a scenario's faults happen to a simulated cluster, and heals them.

MODEL: a fault happens at a moment of the world, between two callbacks of any process; its victims
are chosen then. One that lasts is healed after its time, or by `heal_all`. Conditions ("when the
stage is half finished") are looked at after every step of a leader.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator import fault_kinds as kinds
from simulator.cluster import JOBS_DIRECTORY, LOCAL_DIRECTORY, Node, SimulatedCluster
from simulator.damage import cut_event_logs, lose_partitions
from simulator.recorder import RunRecorder
from simulator.scenario import Scenario
from simulator.victims import Candidates, choose
from simulator.world import disk_faults
from simulator.world.process import Host

Heal = Callable[[], None]
DiskFault = kinds.SlowDisk | kinds.DiskFull | kinds.DiskError | kinds.DiskHang


@dataclass(frozen=True, slots=True)
class MadeFault:
    """A fault that was made: `over` is set when it has ended, at once if it lasts for ever."""

    number: int
    over: asyncio.Event


class FaultInjector:
    """Applies all faults of one scenario. `run` ends when the last one has been made and, unless
    it lasts for ever, is over."""

    def __init__(
        self, cluster: SimulatedCluster, scenario: Scenario, recorder: RunRecorder
    ) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._scenario = scenario
        self._recorder = recorder
        self._random = self._world.random("faults")
        self._made = {fault.id: asyncio.Event() for fault in scenario.faults if fault.id}
        self._lasting: dict[int, tuple[str, Heal]] = {}
        #: Faults that act on anything now, and restarts that are due.
        self.active = 0
        #: Jobs whose event logs have lost bytes that were synced.
        self.logs_cut: dict[str, None] = {}
        #: When the last fault began or ended to act, None before the first.
        self.changed_s: float | None = None

    async def run(self) -> None:
        """Wait for each fault's moment, make it, and wait for its end."""
        await asyncio.gather(*(self._run_one(fault) for fault in self._scenario.faults))

    def make(self, fault: kinds.FaultModel) -> MadeFault:
        """Make a fault now, whenever it says that it happens."""
        over = asyncio.Event()
        groups = [choose(victims, self._candidates(), self._random) for victims in fault.roles()]
        names = [name for group in groups for name in group]
        detail = _detail(fault)
        self._world.trace.note("world", f"fault {fault.kind}", ",".join(names))
        number = self._recorder.fault(self._world.now_s, fault.kind, names, detail)
        self.changed_s = self._world.now_s
        if fault.roles() and not names:
            over.set()  # nobody fits: it happens to nobody
            return MadeFault(number, over)
        heal = self._apply(fault, groups)
        lasts_s = _lasts_s(fault)
        if isinstance(fault, kinds.Crash | kinds.Stop | kinds.PowerLoss | kinds.CutLog):
            lasts_s = self._restart_after_s(fault, self._nodes(names))
        if heal is None:
            over.set()
            return MadeFault(number, over)
        self.active += 1
        self._lasting[number] = (fault.kind, heal)
        if lasts_s is None or math.isinf(lasts_s):
            over.set()
        else:
            self._after(lasts_s, lambda: self._end_of(number, over))
        return MadeFault(number, over)

    def heal(self, made: MadeFault) -> None:
        """End a fault before its time; no-op when it is over."""
        self._heal(made.number)

    def heal_all(self) -> None:
        """End every fault that still acts, and start every node."""
        for number in list(self._lasting):
            self._heal(number)
        for node in self._cluster.nodes():
            if node.process is not None:
                node.process.resume()
            self._cluster.start_node(node)

    # ------------------------------------------------------------------ when

    async def _run_one(self, fault: kinds.FaultModel) -> None:
        if fault.at_s is not None:
            await asyncio.sleep(max(0.0, fault.at_s - self._world.now_s))
        elif fault.when is not None:
            await self._until(fault.when)
            await asyncio.sleep(fault.when.after_s)
        ends: list[MadeFault] = []
        for count in range(fault.repeat):
            if count and fault.every_s is not None:
                await asyncio.sleep(fault.every_s)
            ends.append(self.make(fault))
            if fault.id is not None:
                self._made[fault.id].set()
        for made in ends:
            await made.over.wait()

    async def _until(self, when: kinds.When) -> None:
        if isinstance(when, kinds.FaultMade):
            await self._made[when.fault].wait()
            return
        while not self._holds(when):
            await self._cluster.next_step()

    def _holds(self, when: kinds.When) -> bool:
        jobs = [job.name for job in self._scenario.jobs]
        if isinstance(when, kinds.StageFinished):
            return any(self.finished_part(j, when.stage) >= when.finished for j in self._of(when))
        if isinstance(when, kinds.JobIs):
            return any(self._cluster.job_states.get(job) == when.job for job in self._of(when))
        if isinstance(when, kinds.JobsAre):
            return all(self._cluster.job_states.get(job) == when.jobs for job in jobs)
        return False

    def _of(self, when: kinds.StageFinished | kinds.JobIs) -> list[str]:
        return [job.name for job in self._scenario.jobs if when.of in (None, job.name)]

    def finished_part(self, job_id: str, stage: str) -> float:
        """Part of a stage's subtasks that are finished, as the leader knows; -1 while the stage is
        not there (yet). A stage is an operator of its vertex: the last one is chained to a sink.
        """
        master = self._cluster.job_master(job_id)
        if master is None:
            return -1.0
        for vertex in master.scheduler.graph.vertices.values():
            chained = any(operator.name == stage for operator in vertex.vertex.operators)
            if chained and vertex.parallelism:
                return vertex.finished_count / vertex.parallelism
        return -1.0

    # ------------------------------------------------------------------ making and healing

    def _end_of(self, number: int, over: asyncio.Event) -> None:
        self._heal(number)
        over.set()

    def _heal(self, number: int) -> None:
        lasting = self._lasting.pop(number, None)
        if lasting is None:
            return
        kind, heal = lasting
        self._world.trace.note("world", f"healed {kind}")
        self._recorder.healed(self._world.now_s, number)
        self.active -= 1
        self.changed_s = self._world.now_s
        heal()

    def _after(self, delay_s: float, callback: Callable[[], object]) -> None:
        loop = self._world.loop
        loop.call_later(delay_s, callback, context=loop.world_process.context)

    def _restart_after_s(
        self,
        fault: kinds.Crash | kinds.Stop | kinds.PowerLoss | kinds.CutLog,
        nodes: Sequence[Node],
    ) -> float:
        if fault.restart_after_s is not None:
            return fault.restart_after_s
        cluster = self._scenario.cluster
        jobmanagers = any(node.role == "jobmanager" for node in nodes)
        return cluster.jobmanager_restart_s if jobmanagers else cluster.taskmanager_restart_s

    def _apply(self, fault: kinds.FaultModel, groups: list[list[str]]) -> Heal | None:
        """Make the fault; what ends it, None when it is over at once."""
        nodes = self._nodes(groups[0] if groups else [])
        hosts = [self._world.host(name) for name in (groups[0] if groups else [])]
        network = self._world.network
        match fault:
            case kinds.Crash():
                return self._end(nodes, self._cluster.kill_node)
            case kinds.Stop():
                return self._end(nodes, self._cluster.stop_node)
            case kinds.PowerLoss():
                return self._end(nodes, self._cluster.power_loss)
            case kinds.CutLog():
                jobs = self._jobs_to_cut()
                heal = self._end(nodes, self._cluster.kill_node)
                self._cut_logs(jobs, fault.bytes_max)
                return heal
            case kinds.Pause():
                return self._pause(nodes)
            case kinds.Cut():
                token = network.cut(
                    hosts, [self._world.host(name) for name in groups[1]], both=not fault.one_way
                )
                return lambda: network.heal(token)
            case kinds.SlowLink():
                slow = network.slow(hosts, fault.factor, fault.latency_s)
                return lambda: network.heal(slow)
            case kinds.LosePackets():
                lossy = network.lose(hosts, fault.probability)
                return lambda: network.heal(lossy)
            case kinds.LeaderServiceDown():
                others = [host for host in self._world.hosts.values() if host.name != LEADER_HOST]
                down = network.cut([self._world.host(LEADER_HOST)], others, both=True)
                return lambda: network.heal(down)
            case kinds.AddressChange():
                for host in hosts:
                    network.change_address(host)
                return None
            case kinds.ClockJump():
                for host in hosts:
                    host.wall_offset_ms += round(fault.by_s * 1000)
                return None
            case kinds.ClockDrift():
                return self._drift(hosts, fault.rate)
            case kinds.KillTask():
                self._kill_tasks(nodes, fault)
                return None
            case kinds.LosePartitions():
                self._lose_partitions(nodes, fault.part)
                return None
            case kinds.SlowDisk() | kinds.DiskFull() | kinds.DiskError() | kinds.DiskHang():
                return self._damage_disks(fault, groups[0])
        raise ValueError(f"no such fault: {fault.kind!r}")

    def _end(self, nodes: Sequence[Node], end: Callable[[Node], None]) -> Heal:
        """End processes; what heals starts them again."""
        for node in nodes:
            node.kept_down = True
            end(node)

        def start_again() -> None:
            for node in nodes:
                node.kept_down = False
                if node.alive:  # it takes its time to end in an orderly way
                    assert node.process is not None
                    node.process.on_end(functools.partial(self._start_soon, node))
                else:
                    self._cluster.start_node(node)

        return start_again

    def _start_soon(self, node: Node) -> None:
        self._after(0.0, lambda: None if node.kept_down else self._cluster.start_node(node))

    def _pause(self, nodes: Sequence[Node]) -> Heal:
        processes = [node.process for node in nodes if node.process is not None]
        for process in processes:
            process.pause()

        def go_on() -> None:
            for process in processes:
                process.resume()

        return go_on

    def _drift(self, hosts: Sequence[Host], rate: float) -> Heal:
        for host in hosts:
            host.set_clock_rate(rate, self._world.now_s)

        def keep_time() -> None:
            for host in hosts:
                host.set_clock_rate(1.0, self._world.now_s)

        return keep_time

    def _kill_tasks(self, nodes: Sequence[Node], fault: kinds.KillTask) -> None:
        for node in nodes:
            if node.process is None:
                continue
            tasks = [p for p in node.host.living() if p is not node.process]
            if fault.tasks == "one" and tasks:
                tasks = [tasks[self._random.randrange(len(tasks))]]
            for task in tasks:
                self._world.kill(task)

    def _damage_disks(self, fault: DiskFault, names: Sequence[str]) -> Heal:
        storages = self._world.storages
        damaged = [
            storages.shared if name == SHARED_STORAGE else storages.of(self._world.host(name))
            for name in names
        ]
        tokens = [_begin(fault, storage.faults) for storage in damaged]

        def repair() -> None:
            for storage, token in zip(damaged, tokens, strict=True):
                storage.faults.heal(token)

        return repair

    def _lose_partitions(self, nodes: Sequence[Node], part: float) -> None:
        for node in nodes:
            storage = self._world.storages.of(node.host)
            directory = f"{LOCAL_DIRECTORY}/{node.name}/shuffle"
            lose_partitions(storage, directory, part, self._random)

    def _jobs_to_cut(self) -> list[str]:
        """Those whose output is not being published: that it may be is durable first, and a log
        that forgets it has broken its promise."""
        return [
            job.name
            for job in self._scenario.jobs
            if (master := self._cluster.job_master(job.name)) is not None and not master.committing
        ]

    def _cut_logs(self, job_ids: Sequence[str], bytes_max: int | None) -> None:
        shared = self._world.storages.shared
        cut = cut_event_logs(shared, JOBS_DIRECTORY, job_ids, bytes_max, self._random)
        self.logs_cut.update(dict.fromkeys(cut))

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
            LEADER_HOST if self._scenario.cluster.leader == "service" else "",
            SHARED_STORAGE,
        )

    def _nodes(self, names: Sequence[str]) -> list[Node]:
        return [node for node in self._cluster.nodes() if node.name in names]


#: Host of the leader service, and the name by which scenarios know the shared storage.
LEADER_HOST = "leader-service"
SHARED_STORAGE = "shared-storage"


def _begin(
    fault: DiskFault, disk: disk_faults.DiskFaults
) -> disk_faults.DiskFault | list[disk_faults.DiskFault]:
    match fault:
        case kinds.SlowDisk():
            return disk.slow(fault.factor)
        case kinds.DiskFull():
            return disk.fill(fault.left_bytes)
        case kinds.DiskError():
            return disk.break_operation(fault.on)
        case kinds.DiskHang():
            return disk.hang()


def _lasts_s(fault: kinds.FaultModel) -> float | None:
    """For how long it acts; None for ever, or until all is healed."""
    lasts_s: float | None = getattr(fault, "for_s", None)
    return lasts_s


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
