"""One run of a scenario on local processes, from their start to the record of it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdover.cli.real_checks import Problem, check_leftovers, check_output
from holdover.cli.real_cluster import RealCluster
from holdover.cli.real_faults import Progress, RealFaults
from holdover.cli.real_record import Chronicle
from holdover.client import Client, is_terminal, state_name
from holdover.v1.common_pb2 import JobState
from holdover.v1.job_pb2 import JobGraph
from holdover.v1.jobmanager_pb2 import JobStatus, RecoveryReport
from simulator.record import FaultRecord, RunRecord
from simulator.recorder import RunRecorder
from simulator.scenario import JobSpec, Scenario
from simulator.workloads import build_graph

PROGRESS = "after healing the job ends"
_HELD_LOOK_S = 0.25
#: How long a client may take to tell what became of a job, once it has ended.
_DESCRIBE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class _Told:
    """What the cluster says of a job at the end."""

    status: JobStatus
    reports: list[RecoveryReport]


class RealRun:
    """Runs a scenario once. See `run`."""

    def __init__(
        self, scenario: Scenario, seed: int, directory: Path, say: Callable[[str], None]
    ) -> None:
        """Nothing is started yet.

        Args:
            scenario: one that `check_runnable` accepts.
            seed: of the workloads' draws and of the choice of victims.
            directory: new and empty; holds everything that the run leaves.
            say: is told what happens, for people.
        """
        self._scenario = scenario
        self._seed = seed
        self._directory = directory
        self._say = say
        self._ledger = directory / "ledger"
        self._chronicle = Chronicle()
        self._progress = Progress()
        self._cluster = RealCluster(
            scenario, directory / "cluster", self._chronicle, self._progress.log_line
        )
        self._faults = RealFaults(scenario, seed, self._cluster, self._progress, say)
        self._zero_wall_s = self._end_wall_s = time.time()
        self._told: dict[str, _Told] = {}
        self._problems: list[tuple[float, Problem]] = []

    async def run(self) -> RunRecord:
        """Start processes, submit the jobs, make the faults, and check what came of it.

        Whatever happens, all processes have ended when this returns. The run's zero is set by the
        moment when all processes were ready: so long after zero as the scenario lets them start.

        Raises:
            LocalClusterError: the processes do not start.
        """
        began_s = time.monotonic()
        spec = self._scenario.cluster
        try:
            await self._cluster.start()
            services_s = spec.shuffle_service_start_s if spec.shuffle_services else 0.0
            start_s = max(spec.jobmanager_start_s, spec.taskmanager_start_s, services_s)
            self._zero_wall_s = time.time() - start_s
            services = f" and {n} shuffle services" if (n := spec.shuffle_services) else ""
            self._say(
                f"{spec.taskmanagers} TaskManagers with {spec.slots} slots{services} are ready"
            )
            await self._at_work()
        finally:
            await self._cluster.stop()
        return self._record(time.monotonic() - began_s)

    async def _at_work(self) -> None:
        """Everything between the start and the stop of the processes."""
        beside = (
            self._cluster.follow_logs(),
            self._faults.run(self._zero_wall_s),
            self._watch_held(),
        )
        async with self._cluster.client() as client:
            await self._first_of(self._jobs(client), *beside)

    async def _first_of(
        self, main: Coroutine[Any, Any, None], *beside: Coroutine[Any, Any, None]
    ) -> None:
        """Run `main` to its end, and the others beside it; the first error of any ends all."""
        work = asyncio.create_task(main)
        pending = {work, *(asyncio.create_task(each) for each in beside)}
        tasks = list(pending)
        try:
            while not work.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ jobs

    async def _jobs(self, client: Client) -> None:
        jobs = self._scenario.jobs
        graphs = {job.name: self._graph(job) for job in jobs}
        deadline_s = self._zero_wall_s + self._scenario.duration_max_s - time.time()
        running = {
            asyncio.create_task(self._job(client, job, graphs[job.name])): job for job in jobs
        }
        try:
            done, late = await asyncio.wait(list(running), timeout=max(0.0, deadline_s))
            for task in done:
                task.result()
            for task in late:
                name = running[task].name
                self._problem(PROGRESS, f"job {name} has not ended in time")
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self._end_wall_s = time.time()
        await self._describe(client)
        await self._check(graphs)

    async def _job(self, client: Client, job: JobSpec, graph: JobGraph) -> None:
        """Submit a job when it is due, and follow it to its end."""
        due_wall_s = self._zero_wall_s + job.submit_at_s
        await asyncio.sleep(due_wall_s - time.time())
        self._chronicle.note(
            due_wall_s, lambda recorder, at_s: recorder.job_submitted(at_s, job.name, job.name)
        )
        await client.submit(graph)
        self._say(f"job {job.name} is submitted")
        async with aclosing(client.watch(job.name)) as statuses:
            async for status in statuses:
                self._progress.status(status)
                if is_terminal(status) or status.state == JobState.JOB_STATE_PARKED:
                    self._say(f"job {job.name} is {state_name(status.state)}")
                    return

    def _graph(self, job: JobSpec) -> JobGraph:
        return build_graph(
            job,
            seed=self._seed,
            output_directory=str(self._directory / "output" / job.name),
            ledger_path=str(self._ledger),
        )

    # ------------------------------------------------------------------ looking

    async def _watch_held(self) -> None:
        """Look at what workers hold on their disks, for ever."""
        while True:
            wall_s = time.time()
            partitions, n_bytes = await asyncio.to_thread(self._held)
            self._note_held(wall_s, partitions, n_bytes)
            await asyncio.sleep(_HELD_LOOK_S)

    def _note_held(self, wall_s: float, partitions: int, n_bytes: int) -> None:
        self._chronicle.note(
            wall_s, lambda recorder, at_s: recorder.held(at_s, partitions, n_bytes)
        )

    def _held(self) -> tuple[int, int]:
        sizes = [
            size
            for name in self._cluster.living(self._cluster.workers)
            for _, size in self._cluster.partitions(name)
        ]
        return len(sizes), sum(sizes)

    async def _describe(self, client: Client) -> None:
        for job in self._scenario.jobs:
            try:
                async with asyncio.timeout(_DESCRIBE_TIMEOUT_S):
                    described = await client.describe(job.name)
                    reports = await client.recovery_reports(job.name)
            except TimeoutError:
                self._problem(PROGRESS, f"nobody can say what became of job {job.name}")
                continue
            self._told[job.name] = _Told(described.status, reports)

    async def _check(self, graphs: dict[str, JobGraph]) -> None:
        ended = [told.status for told in self._told.values() if is_terminal(told.status)]
        for status in ended:
            if status.state == JobState.JOB_STATE_FINISHED:
                graph = graphs[status.job_id]
                decided = {vertex.vertex_id: vertex.parallelism for vertex in status.vertices}
                for problem in await asyncio.to_thread(check_output, graph, decided):
                    self._problems.append((time.time(), problem))
            else:
                state = state_name(status.state)
                why = status.failure.message
                self._problem(PROGRESS, f"job {status.job_id} is {state}: {why}")
        for problem in await check_leftovers(self._cluster, [job.job_id for job in ended]):
            self._problems.append((time.time(), problem))

    def _problem(self, invariant: str, text: str) -> None:
        self._problems.append((time.time(), Problem(invariant, text)))

    # ------------------------------------------------------------------ the record

    def _record(self, wall_s: float) -> RunRecord:
        zero_s, end_s = self._zero_wall_s, self._end_wall_s
        recorder = RunRecorder(self._scenario.name, "real", self._seed)
        for fault in self._faults.made:
            number = recorder.fault(fault.at_s - zero_s, fault.kind, fault.victims, fault.detail)
            over_s = fault.until_s or self._restarted_s(fault)
            if over_s is not None:
                recorder.healed(over_s - zero_s, number)
        self._chronicle.note_ledger(self._ledger)
        self._chronicle.tell(recorder, zero_s, end_s)
        for told in self._told.values():
            recorder.job(told.status, told.reports)
        for error in self._cluster.failures():
            self._problem("the run itself", repr(error))
        for found_s, problem in self._problems:
            recorder.finding(found_s - zero_s, problem.invariant, problem.text)
        return recorder.finish(end_s - zero_s, wall_s=wall_s)

    def _restarted_s(self, fault: FaultRecord) -> float | None:
        """When the first victim of a fault was started again (wall clock)."""
        restarts_s = (
            wall_s
            for name, wall_s in self._cluster.restarts
            if name in fault.victims and wall_s > fault.at_s
        )
        return next(restarts_s, None) if fault.kind in ("crash", "stop") else None
