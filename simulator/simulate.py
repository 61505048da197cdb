"""One run of a scenario in the simulated world.

A run has two phases. In the first the scenario's jobs run and its faults happen; it ends when all
jobs have ended or `duration_max` is over. Then everything is healed, and every job must end, and
leave nothing behind, within a bound. Invariants are checked throughout.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import cast

from holdover import config as options
from holdover.client import Client
from holdover.config import Configuration
from holdover.coordination.file_leader import FileLeaderService
from holdover.coordination.leader import LeaderService
from holdover.errors import HoldoverError
from holdover.ids import AttemptKey
from holdover.runtime import Runtime
from holdover.v1 import common_pb2
from holdover.v1.common_pb2 import FinishedExecution
from holdover.v1.taskmanager_pb2 import TaskDeployment
from simulator.cluster import JOBS_DIRECTORY, ClusterSettings, Node, SimulatedCluster
from simulator.cluster_view import SimulatedClusterView, leader_view
from simulator.faults import LEADER_HOST, FaultInjector
from simulator.invariants import Invariants
from simulator.invariants.stored import archived
from simulator.invariants.view import ErrorLogged, SubmittedJob
from simulator.quantities import Constant, Distribution, Exponential, Lognormal, Uniform
from simulator.record import AttemptEnd, RunRecord
from simulator.recorder import RunRecorder
from simulator.scenario import JobSpec, Scenario
from simulator.scenario_file import stored_graph
from simulator.workloads import build_graph, other_work
from simulator.world.leader_service import SimulatedLeaderService
from simulator.world.links import LinkSettings
from simulator.world.storages import DiskSettings
from simulator.world.world import World, current_process_name

OUTPUT_DIRECTORY = "/shared/output"
#: How often a run looks at the whole cluster: after so many seconds of the world, at least.
_LOOK_INTERVAL_S = 0.5
_LOOKS_MAX = 400
#: Beyond what the options say: silence on a connection is found by then.
_KEEPALIVE_S = 40.0
#: How often an operator looks for parked jobs after healing.
_OPERATOR_INTERVAL_S = 5.0
#: How long a client asks for what it wants to know after the run.
_LAST_QUESTIONS_S = 60.0


def run_scenario(
    scenario: Scenario,
    seed: int,
    *,
    options: Mapping[str, str] | None = None,
    trace_lines_max: int = 0,
    checked: bool = True,
) -> RunRecord:
    """Run a scenario once; a function of the arguments alone, but for `wall_s`.

    Args:
        scenario: what happens.
        seed: decides whatever the scenario leaves open.
        options: of the cluster, over those of the scenario.
        trace_lines_max: the newest lines of the trace that the record keeps.
        checked: whether invariants are checked throughout, or at the end only.
    """
    run = SimulatedRun(scenario, seed, dict(options or {}), trace_lines_max, checked=checked)
    with run.logs_captured():
        try:
            run.world.run(run.main())
            record = run.finish()
        finally:
            run.world.close()
    return record


class SimulatedRun:
    """Everything of one run. `main` is the world's own coroutine."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        swept: Mapping[str, str],
        trace_lines_max: int,
        *,
        checked: bool,
    ) -> None:
        self.scenario = scenario
        self._checked = checked
        self._options = {**scenario.options, **swept}
        self._config = Configuration.of(self._options)
        self.world = World(
            seed,
            links=_link_settings(scenario),
            disks=_disk_settings(scenario),
            keep_trace_lines_max=trace_lines_max,
        )
        self.recorder = RunRecorder(scenario.name, "simulated", seed, swept)
        self._leader_service = self._start_leader_service()
        self.cluster = SimulatedCluster(self.world, self._settings(), self._leader_service_of)
        self.injector = FaultInjector(self.cluster, scenario, self.recorder)
        self.view = SimulatedClusterView(self.cluster, self.injector, self._patience_s())
        self.invariants = Invariants(self.view, self.world.random("invariants"))
        self._ended = dict.fromkeys((job.name for job in scenario.jobs), False)
        self._all_ended = asyncio.Event()
        self._watch()

    # ------------------------------------------------------------------ the run

    async def main(self) -> None:
        """Both phases."""
        self.cluster.start()
        client_process, client = self.cluster.client()
        for job in self.scenario.jobs:
            client_process.spawn(self._submit(client, job))
        loop = asyncio.get_running_loop()
        injecting = loop.create_task(self.injector.run())
        looking = loop.create_task(self._look_now_and_then())
        try:
            async with asyncio.timeout(self.scenario.duration_max_s):
                await self._all_ended.wait()
        except TimeoutError:
            self.world.trace.note("world", "time is over")
        injecting.cancel()
        await asyncio.wait([injecting])
        if not injecting.cancelled():
            injecting.result()
        self.injector.heal_all()
        retrying = client_process.spawn(self._retry_parked_jobs(client))
        await self._settle()
        retrying.cancel()
        looking.cancel()
        await asyncio.wait([looking])
        if not looking.cancelled():
            looking.result()
        await client_process.spawn(self._ask_for_jobs(client))

    async def _submit(self, client: Client, job: JobSpec) -> None:
        await asyncio.sleep(job.submit_at_s)
        graph = build_graph(
            job,
            seed=self.world.seed,
            output_directory=f"{OUTPUT_DIRECTORY}/{job.name}",
            stored=stored_graph(job),
        )
        self.world.task_model.others[job.name] = other_work(job)
        submitted = SubmittedJob(
            job.name, graph, acknowledged=False, failures_allowed=failures_allowed(job)
        )
        self.view.add_job(submitted)
        self.recorder.job_submitted(self.world.now_s, job.name, job.name)
        await client.submit(graph)
        self.view.add_job(SubmittedJob(job.name, graph, failures_allowed=failures_allowed(job)))

    async def _look_now_and_then(self) -> None:
        """Check invariants and count what is held, as often as a large cluster can bear."""
        interval_s = max(_LOOK_INTERVAL_S, self.scenario.cluster.taskmanagers / 1_000)
        while True:
            await asyncio.sleep(interval_s)
            self._look()

    def _look(self) -> None:
        partitions = n_bytes = 0
        for node in self.cluster.taskmanagers:
            if node.taskmanager is not None:
                for execution in node.taskmanager.finished.inventory():
                    partitions += len(execution.partitions)
                    n_bytes += sum(partition.data_bytes for partition in execution.partitions)
        self.recorder.held(self.world.now_s, partitions, n_bytes)
        # A leader that dies as soon as a job's end is stored never says so.
        for job_id, ended in self._ended.items():
            if not ended and archived(self.view, job_id) is not None:
                self._job_has_ended(job_id)
        if self._checked:
            self.invariants.check()

    def _job_has_ended(self, job_id: str) -> None:
        self._ended[job_id] = True
        if all(self._ended.values()):
            self._all_ended.set()

    async def _settle(self) -> None:
        """After healing: wait until nothing is wrong any more, or time is over."""
        deadline_s = self.world.now_s + self._settling_max_s()
        while self.world.now_s < deadline_s:
            if self._all_ended.is_set() and not self.invariants.at_end():
                return
            await asyncio.sleep(_LOOK_INTERVAL_S)
        self.invariants.end()

    async def _retry_parked_jobs(self, client: Client) -> None:
        """What an operator does once the cluster is well again."""
        while True:
            try:
                for status in await client.list_jobs():
                    if status.state == common_pb2.JOB_STATE_PARKED:
                        await client.retry(status.job_id)
            except HoldoverError as error:
                self.world.trace.note("world", "cannot retry a job yet", type(error).__name__)
            await asyncio.sleep(_OPERATOR_INTERVAL_S)

    async def _ask_for_jobs(self, client: Client) -> None:
        try:
            async with asyncio.timeout(_LAST_QUESTIONS_S):
                for job in self.scenario.jobs:
                    description = await client.describe(job.name)
                    reports = await client.recovery_reports(job.name)
                    self.recorder.job(description.status, reports)
        except (HoldoverError, TimeoutError) as error:
            self.world.trace.note("world", "nobody answers", type(error).__name__)

    def finish(self) -> RunRecord:
        """The record, once `main` has ended."""
        for failure in self.world.failures:
            self.invariants.uncaught(failure.process, failure.text)
        for finding in self.invariants.findings:
            self.recorder.finding(finding.at_s, finding.invariant, finding.text)
        trace = self.world.trace
        record = self.recorder.finish(
            self.world.now_s,
            digest=trace.digest,
            events=self.world.loop.callbacks,
            wall_s=self.world.elapsed_real_s(),
        )
        record.trace = trace.lines
        return record

    # ------------------------------------------------------------------ what is told

    def _watch(self) -> None:
        self.world.observers.append(_Recording(self.recorder, self.world))
        if self._checked:
            self.world.observers.append(self.invariants)
            self.cluster.on_step.append(
                lambda node, master, signal, decision: self.invariants.steps_of(_life(node))(
                    master, signal, decision
                )
            )
        self.cluster.on_start.append(self._started)
        self.cluster.on_death.append(self._died)

    def _started(self, node: Node) -> None:
        if node.role == "taskmanager":
            slots, rack = self.scenario.cluster.slots, node.host.rack
            self.recorder.worker_started(self.world.now_s, node.name, rack=rack, slots=slots)

    def _died(self, node: Node) -> None:
        if node.role == "taskmanager":
            self.recorder.worker_ended(self.world.now_s, node.name)
            return
        self.recorder.jobmanager_ended(self.world.now_s, node.name)
        leader = leader_view(node)
        if leader is not None and self._checked:
            self.invariants.leader_ends(leader)

    @contextmanager
    def logs_captured(self) -> Generator[None, None, None]:
        """The services' log goes to the record, the trace and the invariants."""
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        root.handlers[:] = [_LogCapture(self)]
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)

    def log_line(self, line: logging.LogRecord) -> None:
        """A service has logged."""
        process, event, now_s = current_process_name(), line.getMessage(), self.world.now_s
        fields: Mapping[str, object] = getattr(line, "holdover_fields", {})
        self.recorder.log_line(now_s, process, event, fields)
        text = " ".join(f"{key}={value}" for key, value in fields.items())
        self.world.trace.note(process, f"log {line.levelname} {event}", text)
        if event == "job ended":
            self._job_has_ended(str(fields["job"]))
        if line.levelno >= logging.ERROR and self._checked:
            exception = line.exc_info[1] if line.exc_info else None
            text = "" if exception is None else repr(exception)
            self.invariants.error_logged(ErrorLogged(process, now_s, event, fields, text))

    # ------------------------------------------------------------------ settings

    def _settings(self) -> ClusterSettings:
        spec = self.scenario.cluster
        return ClusterSettings(
            spec.taskmanagers,
            spec.slots,
            spec.racks,
            spec.jobmanagers,
            spec.jobmanager_start_s,
            spec.taskmanager_start_s,
            None if math.isinf(spec.jobmanager_restart_s) else spec.jobmanager_restart_s,
            None if math.isinf(spec.taskmanager_restart_s) else spec.taskmanager_restart_s,
            self._options,
        )

    def _start_leader_service(self) -> SimulatedLeaderService | None:
        spec = self.scenario.cluster
        if spec.leader == "file":
            return None
        host = self.world.host(LEADER_HOST)
        service = SimulatedLeaderService(self.world, host, lease_ttl_s=spec.lease_ttl_s)
        service.start()
        return service

    def _leader_service_of(self, runtime: Runtime) -> LeaderService:
        if self._leader_service is None:
            return FileLeaderService(runtime, JOBS_DIRECTORY)
        return self._leader_service.client(runtime)

    def _patience_s(self) -> float:
        """How long after a fault its effects may show."""
        get = self._config.get
        return (
            get(options.HEARTBEAT_TIMEOUT)
            + get(options.RPC_CALL_TIMEOUT)
            + get(options.BATCH_JOB_RECOVERY_PREVIOUS_WORKER_RECOVERY_TIMEOUT)
            + get(options.SHUFFLE_FETCH_RETRY_TIMEOUT)
            + self.scenario.cluster.lease_ttl_s
            + _KEEPALIVE_S
        )

    def _settling_max_s(self) -> float:
        """Within which a healed cluster ends its jobs, if it ever does."""
        slots = self.scenario.cluster.taskmanagers * self.scenario.cluster.slots
        work_s = sum(
            _largest(stage.seconds) * (stage.parallelism or 128)
            for job in self.scenario.jobs
            for stage in job.stages
        )
        registration_s = self._config.get(options.TASKMANAGER_REGISTRATION_TIMEOUT)
        return 4 * self._patience_s() + registration_s + 10 * work_s / slots + 120.0


class _Recording:
    """Tells the recorder of attempts. An `Observer`."""

    sees_reads = False

    def __init__(self, recorder: RunRecorder, world: World) -> None:
        self._recorder = recorder
        self._world = world

    def attempt_started(self, worker: str, deployment: TaskDeployment, at_s: float) -> None:
        key = AttemptKey.from_proto(deployment.attempt)
        self._recorder.attempt_started(at_s, worker, key, deployment.slot)

    def attempt_ended(
        self, worker: str, key: AttemptKey, end: str, execution: FinishedExecution | None
    ) -> None:
        partitions = execution.partitions if execution is not None else ()
        n_bytes = sum(partition.data_bytes for partition in partitions)
        self._recorder.attempt_ended(self._world.now_s, key, cast(AttemptEnd, end), n_bytes)

    def partitions_read(self, reads: object) -> None:
        """Of no interest to a record."""


class _LogCapture(logging.Handler):
    def __init__(self, run: SimulatedRun) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        self._run.log_line(record)


def failures_allowed(job: JobSpec) -> tuple[str, ...]:
    """Parts of the messages with which a job of this scenario may fail."""
    return ()


def _range(distribution: Distribution) -> tuple[float, float]:
    """Least and greatest value; of a distribution without an end, what is seen of it."""
    match distribution:
        case Constant(value):
            return value, value
        case Uniform(minimum, maximum):
            return minimum, maximum
        case Exponential(mean):
            return 0.0, 8 * mean
        case Lognormal(median, sigma):
            return median * math.exp(-3 * sigma), median * math.exp(3 * sigma)


def _draw(distribution: Distribution) -> Callable[[random.Random], float] | None:
    """Draws from what is not uniform."""
    match distribution:
        case Exponential(mean) if mean > 0:
            return lambda chance: chance.expovariate(1 / mean)
        case Lognormal(median, sigma) if median > 0:
            return lambda chance: chance.lognormvariate(math.log(median), sigma)
    return None


def _largest(distribution: Distribution) -> float:
    return _range(distribution)[1]


def _life(node: Node) -> str:
    return f"{node.name}#{node.process.life if node.process is not None else 0}"


def _link_settings(scenario: Scenario) -> LinkSettings:
    network = scenario.network
    return LinkSettings(
        latency_s=_range(network.latency_s),
        latency_draw=_draw(network.latency_s),
        bytes_per_s=network.bandwidth_bytes_per_s,
        loss=network.loss,
        message_cost_s=network.message_cost_s,
    )


def _disk_settings(scenario: Scenario) -> DiskSettings:
    disk = scenario.disk
    return DiskSettings(
        latency_s=disk.operation_s,
        sync_latency_s=disk.sync_s,
        bytes_per_s=disk.bandwidth_bytes_per_s,
        capacity_bytes=disk.capacity_bytes,
    )
