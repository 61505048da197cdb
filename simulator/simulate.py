"""One run of a scenario in the simulated world.

A run has two phases. In the first the scenario's jobs run and its faults happen; it ends when all
jobs have ended or `duration_max` is over. Then everything is healed, jobs that were parked are
retried, and every job must end, and leave nothing behind, within a bound. Invariants are checked
throughout.

MODEL: one client submits all jobs, each in its time. Where it finds no leader for so long that it
gives up (`client.failover-timeout`), the cluster may have the job or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import cast

from holdover.client import Client
from holdover.errors import ClusterError, HoldoverError
from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import JOB_STATE_PARKED, FinishedExecution, JobState
from holdover.v1.taskmanager_pb2 import TaskDeployment
from simulator.cluster import Node, SimulatedCluster, shuffle_directory
from simulator.cluster_view import SimulatedClusterView, leader_view
from simulator.expected_failures import failures_allowed
from simulator.faults import FaultInjector
from simulator.invariants import Invariants
from simulator.invariants.stored import archived, as_it_is
from simulator.invariants.view import ErrorLogged, SubmittedJob
from simulator.record import AttemptEnd, RunRecord
from simulator.recorder import RunRecorder
from simulator.run_settings import (
    cluster_settings,
    disk_settings,
    link_settings,
    patience_s,
    settling_max_s,
)
from simulator.scenario import JobSpec, Scenario
from simulator.scenario_file import stored_graph
from simulator.workloads import build_graph, other_work
from simulator.world.process import Process
from simulator.world.world import World, current_process_name

OUTPUT_DIRECTORY = "/shared/output"
#: How often a run looks at the whole cluster: after so many seconds of the world, at least.
_LOOK_INTERVAL_S = 0.5
#: How often an operator looks for parked jobs after healing.
_OPERATOR_INTERVAL_S = 5.0
#: How long a client asks for what it wants to know after the run.
_LAST_QUESTIONS_S = 60.0
#: What a JobManager logs of a job, and the state that it has the job in from then on.
_STATES_LOGGED = {
    "job submitted": "CREATED",
    "job parked": "PARKED",
    "job cannot be loaded": "PARKED",
    "job cannot be recovered": "PARKED",
}


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
        self._trace_lines_max = trace_lines_max
        self._options = {**scenario.options, **swept}
        self._patience_s = patience_s(scenario, self._options)
        self.world = World(
            seed,
            links=link_settings(scenario),
            disks=disk_settings(scenario),
            keep_trace_lines_max=trace_lines_max,
        )
        self.recorder = RunRecorder(scenario.name, "simulated", seed, swept)
        self.cluster = SimulatedCluster(self.world, cluster_settings(scenario, self._options))
        self.injector = FaultInjector(self.cluster, scenario, self.recorder, self._begin_cancelling)
        self.view = SimulatedClusterView(self.cluster, self.injector, self._patience_s)
        self.invariants = Invariants(self.view, self.world.random("invariants"))
        self._ended = dict.fromkeys((job.name for job in scenario.jobs), False)
        self._all_ended = asyncio.Event()
        #: Jobs whose client has given up.
        self._given_up: dict[str, None] = {}
        #: Process of the one client, and the client.
        self._client: tuple[Process, Client] | None = None
        self._watch()

    # ------------------------------------------------------------------ the run

    async def main(self) -> None:
        """Both phases."""
        self.cluster.start()
        client_process, client = self._client = self.cluster.client()
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
        self.injector.tell_unmade()
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
        allowed = failures_allowed(self.scenario, job, self._options, self._patience_s)
        submitted = SubmittedJob(job.name, graph, acknowledged=False, failures_allowed=allowed)
        self.view.add_job(submitted)
        self.recorder.job_submitted(self.world.now_s, job.name, job.name)
        try:
            await client.submit(graph)
        except ClusterError as error:
            if not self.scenario.faults:
                raise
            self.world.trace.note("client", "gives up", job.name)
            self.recorder.job_not_submitted(job.name, str(error))
            self._given_up[job.name] = None
            self._look_for_ends()
            return
        self.view.change_job(job.name, acknowledged=True)

    def _begin_cancelling(self, job_id: str) -> None:
        assert self._client is not None, "no fault is made before the run"
        process, client = self._client
        process.spawn(self._cancel(client, job_id))

    async def _cancel(self, client: Client, job_id: str) -> None:
        """What a client does who wants a job to end. It may come before the job, or too late."""
        if job_id not in self.view.jobs:
            return
        self.view.change_job(job_id, cancel_requested=True)
        try:
            await client.cancel(job_id)
        except HoldoverError as error:
            self.world.trace.note("client", f"cannot cancel {job_id}", type(error).__name__)
            return
        self.view.change_job(job_id, cancel_acknowledged=True)

    async def _look_now_and_then(self) -> None:
        """Check invariants and count what is held, as often as a large cluster can bear."""
        interval_s = max(_LOOK_INTERVAL_S, self.scenario.cluster.taskmanagers / 1_000)
        while True:
            await asyncio.sleep(interval_s)
            self._look()

    def _look(self) -> None:
        partitions = n_bytes = 0
        for node in (*self.cluster.taskmanagers, *self.cluster.shuffle_services):
            finished = node.finished
            if finished is not None:
                partitions += finished.partitions
                n_bytes += finished.bytes
        self.recorder.held(self.world.now_s, partitions, n_bytes)
        self._look_for_ends()
        if self._checked:
            self.invariants.check()

    def _look_for_ends(self) -> None:
        """A leader that dies as soon as a job's end is stored never says so. A job whose client
        has given up is over when no leader has it."""
        for job_id, over in self._ended.items():
            if over:
                continue
            end = archived(self.view, job_id)
            if end is not None:
                self.recorder.job_ended(self.world.now_s, job_id, JobState.Name(end.status.state))
                self._job_has_ended(job_id)
            elif job_id in self._given_up and job_id not in self.cluster.job_states:
                self._job_has_ended(job_id)

    def _job_has_ended(self, job_id: str) -> None:
        self._ended[job_id] = True
        if all(self._ended.values()):
            self._all_ended.set()

    async def _settle(self) -> None:
        """After healing: wait until nothing is wrong any more, or time is over."""
        deadline_s = self.world.now_s + settling_max_s(self.scenario, self._options)
        while self.world.now_s < deadline_s:
            if self._all_ended.is_set() and not self.invariants.at_end():
                return
            await asyncio.sleep(_LOOK_INTERVAL_S)
        self.invariants.end()

    async def _retry_parked_jobs(self, client: Client) -> None:
        """What an operator does once the cluster is well again."""
        while True:
            try:
                jobs = await client.list_jobs()
            except HoldoverError:
                jobs = []
            for status in jobs:
                if status.state == JOB_STATE_PARKED:
                    await self._retry(client, status.job_id)
            await asyncio.sleep(_OPERATOR_INTERVAL_S)

    async def _retry(self, client: Client, job_id: str) -> None:
        try:
            await client.retry(job_id)
        except HoldoverError as error:
            self.world.trace.note("world", f"cannot retry {job_id} yet", type(error).__name__)

    async def _ask_for_jobs(self, client: Client) -> None:
        try:
            async with asyncio.timeout(_LAST_QUESTIONS_S):
                for job in self.scenario.jobs:
                    await self._ask_for_job(client, job.name)
        except TimeoutError:
            self.world.trace.note("world", "nobody answers")

    async def _ask_for_job(self, client: Client, job_id: str) -> None:
        try:
            description = await client.describe(job_id)
            reports = await client.recovery_reports(job_id)
        except HoldoverError as error:
            self.world.trace.note("world", f"no answer about {job_id}", type(error).__name__)
            return
        self.recorder.job(description.status, reports)

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
        record.trace = trace.lines[-self._trace_lines_max :] if self._trace_lines_max else []
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
        if node.role in ("taskmanager", "shuffle-service") and self._checked:
            disk = as_it_is(self.world.storages.of(node.host))
            directory = shuffle_directory(node.name)
            self.invariants.worker_starts(node.name, disk, directory)

    def _died(self, node: Node) -> None:
        if node.role == "taskmanager":
            self.recorder.worker_ended(self.world.now_s, node.name)
            return
        if node.role == "shuffle-service":
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
        self.injector.moments.log_line(event, fields)
        text = " ".join(f"{key}={value}" for key, value in fields.items())
        self.world.trace.note(process, f"log {line.levelname} {event}", text)
        if event == "job ended":
            self._job_has_ended(str(fields["job"]))
        elif event in ("taskmanager ready", "shuffle service ready") and self._checked:
            worker = self.view.worker(str(fields["resource_id"]))
            if worker is not None:
                self.invariants.worker_ready(worker)
        elif event in _STATES_LOGGED:
            self.cluster.note_job_state(str(fields["job"]), _STATES_LOGGED[event])
        if line.levelno >= logging.ERROR and self._checked:
            exception = line.exc_info[1] if line.exc_info else None
            text = "" if exception is None else repr(exception)
            self.invariants.error_logged(ErrorLogged(process, now_s, event, fields, text))


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


def _life(node: Node) -> str:
    return f"{node.name}#{node.process.life if node.process is not None else 0}"
