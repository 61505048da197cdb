"""A small simulated cluster without a job, and faults made to it by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from simulator.cluster import Node, SimulatedCluster
from simulator.fault_kinds import FaultModel
from simulator.faults import FaultInjector, MadeFault
from simulator.record import RunRecord
from simulator.recorder import RunRecorder
from simulator.run_settings import cluster_settings
from simulator.scenario import ClusterSpec, JobSpec, Scenario, StageSpec
from simulator.world.disk import ProcessDisk
from simulator.world.process import Process
from simulator.world.world import World

#: By then every process of a scene serves, and TaskManagers are registered.
READY_S = 5.0
#: A moment in which nothing but what happens at once can happen.
SOON_S = 0.000_1
OPTIONS = {
    "heartbeat.interval": "200 ms",
    "heartbeat.timeout": "1 s",
    "taskmanager.registration.max-backoff": "500 ms",
}


class Scene:
    """A running cluster: two JobManagers, three TaskManagers, unless it is told otherwise."""

    def __init__(self, **cluster: Any) -> None:
        spec = ClusterSpec.model_validate(
            {"taskmanagers": 3, "jobmanagers": 2, "lease_ttl": 1.0, **cluster}
        )
        job = JobSpec(stages=(StageSpec(name="map", parallelism=1),))
        scenario = Scenario(cluster=spec, jobs=(job,), options=OPTIONS)
        self.world = World(seed=1)
        self.cluster = SimulatedCluster(self.world, cluster_settings(scenario, OPTIONS))
        #: Jobs that a client was to cancel.
        self.cancelled: list[str] = []
        self._recorder = RunRecorder("scene", "simulated", 1)
        self.injector = FaultInjector(self.cluster, scenario, self._recorder, self.cancelled.append)

    @property
    def now_s(self) -> float:
        return self.world.now_s

    def node(self, name: str) -> Node:
        return self.cluster.node(name)

    def make(self, kind: type[FaultModel], **fields: Any) -> MadeFault:
        """Make a fault now; `victims` and durations as in a file."""
        return self.injector.make(kind.model_validate({"at": 0.0, **fields}))

    def lives(self, name: str) -> int:
        """How many lives a node has begun."""
        process = self.node(name).process
        return 0 if process is None else process.life + 1

    def registered(self, name: str) -> bool:
        """Whether a TaskManager is registered."""
        taskmanager = self.node(name).taskmanager
        executor = taskmanager.executor if taskmanager is not None else None
        return executor is not None and executor.connection.current is not None

    def process_on(self, host: str) -> Process:
        """A process of the test on one of the hosts."""
        return self.world.process(self.world.host(host), f"test on {host}")

    def disk_on(self, host: str) -> ProcessDisk:
        """The disk as a process of that host sees it."""
        return ProcessDisk(self.world, self.process_on(host))

    async def until(self, condition: Callable[[], object], within_s: float = 60.0) -> float:
        """Wait for a condition, looked at a hundred times a second; returns the time."""
        deadline_s = self.now_s + within_s
        while not condition():
            assert self.now_s < deadline_s, f"not within {within_s} s"
            await asyncio.sleep(0.01)
        return self.now_s

    async def transfer_s(self, source: str, target: str, n_bytes: int = 1000) -> float:
        """How long bytes take from one host to the other."""
        began_s = self.now_s
        ends = self.process_on(source), self.process_on(target)
        await self.world.network.transfer(*ends, n_bytes)
        for process in ends:
            process.end()
        return self.now_s - began_s

    def passes(self, source: str, target: str) -> bool:
        """Whether packets get from one host to the other."""
        links, hosts = self.world.network.links, self.world.hosts
        return not links.blocked(links.port(hosts[source]), links.port(hosts[target]))


def play(
    plot: Callable[[Scene], Coroutine[Any, Any, None]], *, ready: bool = True, **cluster: Any
) -> RunRecord:
    """Run a cluster and, once it serves, the plot; nothing may fail that nobody catches."""
    scene = Scene(**cluster)

    async def whole() -> None:
        scene.cluster.start()
        if ready:
            await asyncio.sleep(READY_S)
        await plot(scene)

    try:
        scene.world.run(whole())
        assert scene.world.failures == []
        return scene._recorder.finish(scene.now_s)
    finally:
        scene.world.close()
