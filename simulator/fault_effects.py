"""What each kind of fault does to a simulated cluster, and what undoes it.

MODEL: a fault acts at one moment, between two callbacks of any process. Faults of one kind that
overlap add up: who is kept dead or paused by two of them lives and goes on when the last is over;
a clock that two let drift runs at the product of their rates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from simulator import fault_kinds as kinds
from simulator.cluster import (
    JOBS_DIRECTORY,
    LEADER_HOST,
    Node,
    SimulatedCluster,
    shuffle_directory,
)
from simulator.damage import cut_event_logs, lose_partitions
from simulator.world import disk_faults
from simulator.world.process import Host, Process

Heal = Callable[[], None]
DiskFault = kinds.SlowDisk | kinds.DiskFull | kinds.DiskError | kinds.DiskHang
Ending = kinds.Crash | kinds.Stop | kinds.PowerLoss | kinds.CutLog

#: The name by which scenarios know the storage that all share.
SHARED_STORAGE = "shared-storage"


class FaultEffects:
    """See the module."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        jobs: Sequence[str],
        source: random.Random,
        cancel_job: Callable[[str], None],
    ) -> None:
        """`jobs`: all that there may be. `source` draws what the faults leave open."""
        self._cancel_job = cancel_job
        self._cluster = cluster
        self._jobs = jobs
        self._world = cluster.world
        self._random = source
        self._pauses: dict[Process, int] = {}
        self._rates: dict[Host, list[float]] = {}
        #: Jobs whose event logs have lost bytes that were synced.
        self.logs_cut: dict[str, None] = {}
        #: When a fault last struck, or ceased to strike, the disk of a machine.
        self.disks_changed_s: dict[str, float] = {}

    def restart_after_s(self, fault: Ending, names: Sequence[str]) -> float:
        """Until who has ended by this fault is started again; infinite for never. Without a word
        in the fault, a leader service comes back as a JobManager does."""
        if fault.restart_after_s is not None:
            return fault.restart_after_s
        settings = self._cluster.settings
        roles = dict.fromkeys(self._cluster.node(name).role for name in names)
        delay_s = settings.jobmanager_restart_s
        if list(roles) == ["taskmanager"]:
            delay_s = settings.taskmanager_restart_s
        elif list(roles) == ["shuffle-service"]:
            delay_s = settings.shuffle_service_restart_s
        return math.inf if delay_s is None else delay_s

    def apply(self, fault: kinds.FaultModel, groups: Sequence[Sequence[str]]) -> Heal | None:
        """Make the fault to those groups of victims; what undoes it, None when nothing can."""
        match fault:
            case kinds.SlowDisk() | kinds.DiskFull() | kinds.DiskError() | kinds.DiskHang():
                return self._damage_disks(fault, groups[0])
            case kinds.Cut():
                return self._cut(groups[0], groups[1], both=not fault.one_way)
            case kinds.CancelJob(job=job_id):
                self._cancel_job(job_id)
                return None
            case kinds.LeaderServiceDown():
                others = [name for name in self._world.hosts if name != LEADER_HOST]
                return self._cut([LEADER_HOST], others, both=True)
        return self._apply_to_nodes(fault, [self._cluster.node(name) for name in groups[0]])

    def _apply_to_nodes(self, fault: kinds.FaultModel, nodes: Sequence[Node]) -> Heal | None:
        hosts = [node.host for node in nodes]
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
            case kinds.SlowLink():
                slow = network.slow(hosts, fault.factor, fault.latency_s)
                return lambda: network.heal(slow)
            case kinds.LosePackets():
                lossy = network.lose(hosts, fault.probability)
                return lambda: network.heal(lossy)
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
            case kinds.Drain():
                for node in nodes:
                    self._cluster.drain_node(node)
                return lambda: self._end_drains(nodes)
        raise ValueError(f"no such fault: {fault.kind!r}")

    def _end(self, nodes: Sequence[Node], end: Callable[[Node], None]) -> Heal:
        for node in nodes:
            self._cluster.hold_down(node, end)

        def start_again() -> None:
            for node in nodes:
                self._cluster.release(node)

        return start_again

    def _end_drains(self, nodes: Sequence[Node]) -> None:
        """Who is not gone yet is started anew, and forgets that it was to leave."""
        for node in nodes:
            service = node.shuffle_service.service if node.shuffle_service is not None else None
            if service is not None and service.draining:
                self._cluster.stop_node(node)

    def _pause(self, nodes: Sequence[Node]) -> Heal:
        processes = [node.process for node in nodes if node.process is not None]
        for process in processes:
            self._pauses[process] = self._pauses.get(process, 0) + 1
            process.pause()

        def go_on() -> None:
            for process in processes:
                self._pauses[process] -= 1
                if not self._pauses[process]:
                    del self._pauses[process]
                    process.resume()

        return go_on

    def _cut(self, one: Sequence[str], other: Sequence[str], *, both: bool) -> Heal:
        world = self._world
        sources, targets = ([world.host(name) for name in names] for names in (one, other))
        token = world.network.cut(sources, targets, both=both)
        return lambda: world.network.heal(token)

    def _drift(self, hosts: Sequence[Host], rate: float) -> Heal:
        for host in hosts:
            self._rates.setdefault(host, []).append(rate)
            self._set_rate(host)

        def keep_time() -> None:
            for host in hosts:
                self._rates[host].remove(rate)
                self._set_rate(host)

        return keep_time

    def _set_rate(self, host: Host) -> None:
        host.set_clock_rate(math.prod(self._rates[host]), self._world.now_s)

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
        self._note_disks(names)

        def repair() -> None:
            self._note_disks(names)
            for storage, token in zip(damaged, tokens, strict=True):
                storage.faults.heal(token)

        return repair

    def _lose_partitions(self, nodes: Sequence[Node], part: float) -> None:
        for node in nodes:
            storage = self._world.storages.of(node.host)
            lose_partitions(storage, shuffle_directory(node.name), part, self._random)
        self._note_disks([node.name for node in nodes])

    def _note_disks(self, names: Sequence[str]) -> None:
        self.disks_changed_s.update(dict.fromkeys(names, self._world.now_s))

    def _jobs_to_cut(self) -> list[str]:
        """Those whose output is not being published: that it may be is durable first, and a log
        that forgets it has broken its promise."""
        return [
            job
            for job in self._jobs
            if (master := self._cluster.job_master(job)) is not None and not master.committing
        ]

    def _cut_logs(self, job_ids: Sequence[str], bytes_max: int | None) -> None:
        shared = self._world.storages.shared
        cut = cut_event_logs(shared, JOBS_DIRECTORY, job_ids, bytes_max, self._random)
        self.logs_cut.update(dict.fromkeys(cut))


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
