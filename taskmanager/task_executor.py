"""What a TaskManager does: run attempts in slots, hold what they finished, follow leaders.

All state changes on the event loop. Whoever waits does it in the objects around: `AttemptRuns` for
task processes, `JobManagerConnection` and `JobManagerCalls` for the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from holdover import config as options
from holdover.config import Configuration
from holdover.coordination.job_leader import JobLeaderState
from holdover.coordination.jobmanager_connection import JobManagerConnection
from holdover.coordination.leader import LeaderRetrieval
from holdover.coordination.leader_finder import LeaderFinder
from holdover.coordination.registration import Inventory, RegistrationAnswer
from holdover.ids import AttemptKey
from holdover.runtime import Runtime, TaskProcessPool
from holdover.runtime.log import Log
from holdover.runtime.loop_lag import LoopLagMonitor
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.v1.taskmanager_pb2 import (
    ExecutionReport,
    HeartbeatRequest,
    RegisterHeader,
    TaskDeployment,
)
from shuffle.deletions import Deletions
from shuffle.held_jobs import HeldJobs
from shuffle.partition_store import PartitionStore
from taskmanager.attempt_runs import AttemptRun, AttemptRuns, CancelReason, RunEnd
from taskmanager.execution_report import end_report, finished_report, running_report
from taskmanager.job_graphs import JobGraphs
from taskmanager.jobmanager_calls import JobManagerCalls
from taskmanager.report_queue import ReportQueue
from taskmanager.slot_table import SlotRefused, SlotTable
from taskmanager.working_directory import WorkingDirectory

#: Reports that may wait; beyond it no attempt is taken. A leader that answers empties it at once.
REPORTS_MAX = 10_000
#: Attempts that ended without a result and are remembered, so that a repeated deployment of one
#: does not run it again.
_ENDED_MAX = 4_096
#: Attempts that one heartbeat asks about, so that it stays small (P53).
_OLDEST_ASKED_MAX = 256
#: Its lag matters from a second on, which this finds at a fifth of the usual number of timers: a
#: machine, or a simulation, may have very many TaskManagers.
_LAG_INTERVAL_S = 0.5
_LAG_WARN_ABOVE_S = 0.5

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this TaskManager is: a stable name, this run of the process, and where it serves."""

    resource_id: str
    incarnation: str
    data_address: str
    slots: int


class TaskExecutor:
    """See the module. Implements `ExecutorCalls` for the service, `JobManagerListener` for the
    connection, `JobOwner` for what it holds of jobs."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        identity: Identity,
        directory: WorkingDirectory,
        pool: TaskProcessPool,
        finished: PartitionStore,
        supervisor: Supervisor,
        retrieval: LeaderRetrieval | None,
    ) -> None:
        self._disk = runtime.disk
        self._identity = identity
        self._directory = directory
        self._finished = finished
        self._supervisor = supervisor
        self._call_timeout_s = configuration.get(options.RPC_CALL_TIMEOUT)
        self._address = ""
        self._slots = SlotTable(identity.slots)
        self._jobs = HeldJobs(
            self,
            finished,
            runtime.clock,
            supervisor,
            configuration.get(options.TASKMANAGER_REGISTRATION_TIMEOUT),
        )
        self._reports = ReportQueue(REPORTS_MAX)
        #: Whether it is about to end.
        self.leaving = False
        self._ended: dict[AttemptKey, None] = {}
        self._offered_as_running: dict[AttemptKey, None] = {}
        self._lag = LoopLagMonitor(_LAG_INTERVAL_S, _LAG_WARN_ABOVE_S)
        self._disk_free_bytes = 0
        self._disk_told = asyncio.Event()
        self._finished_bytes_max = configuration.get(
            options.TASKMANAGER_RETAINED_PARTITIONS_MAX_BYTES
        )
        #: How many of the oldest attempts were asked about already, in this round.
        self._oldest_asked = 0
        address = configuration.get(options.JOBMANAGER_RPC_ADDRESS)
        port = configuration.get(options.JOBMANAGER_RPC_PORT)
        self.connection = JobManagerConnection(
            runtime,
            configuration,
            identity.resource_id,
            LeaderFinder(f"{address}:{port}" if port else "", retrieval),
            self,
            retrieval,
        )
        self._calls = JobManagerCalls(self.connection, identity.resource_id, self._call_timeout_s)
        self._graphs = JobGraphs(
            runtime.disk, directory.graphs, configuration, self._calls.fetch_job_graph
        )
        self._runs = AttemptRuns(
            pool=pool,
            graphs=self._graphs,
            disk=runtime.disk,
            directory=directory,
            data_address=identity.data_address,
            supervisor=supervisor,
            splits=self._calls,
            cancellation_timeout_s=configuration.get(options.TASK_CANCELLATION_TIMEOUT),
            on_running=self._on_running,
            on_end=self._on_end,
        )
        self._deletions = Deletions(runtime.disk, directory.shuffle)

    @property
    def occupants(self) -> list[AttemptKey]:
        """The attempts in slots."""
        return self._slots.occupants()

    @property
    def jobs(self) -> list[str]:
        """Jobs of which anything is known here, those that are just being released included."""
        return list(dict.fromkeys((*self._jobs.ids, *self._jobs.being_released)))

    @property
    def reports_waiting(self) -> int:
        """Reports that no leader has taken yet."""
        return len(self._reports)

    @property
    def deletions_waiting(self) -> int:
        """Partitions that are served no longer and not yet deleted."""
        return len(self._deletions)

    def take_up_found(self) -> None:
        """Before `start`: keep what was found on the disk, as after the loss of a leader."""
        for job_id in self._finished.jobs:
            self._graphs.note_recovery_enabled(job_id)
            self._jobs.keep(job_id)

    def start(self, address: str) -> None:
        """Begin to look for a leader; `address` is host:port of the service in front of this."""
        self._address = address
        run = self._supervisor.run
        run("loop lag", self._lag.run)
        run("disk space", self._watch_disk, RestartPolicy())
        run("connection", self.connection.run, RestartPolicy())
        run("leader record", self.connection.watch_leader, RestartPolicy())
        run("reports", lambda: self._calls.report(self._reports), RestartPolicy())
        run("deletions", self._deletions.run, RestartPolicy())
        run("registration timeout", lambda: self._jobs.watch_deadlines(self._settled))

    async def leave(self, reason: str, timeout_s: float) -> None:
        """Tell the leader that this TaskManager goes. From now on it takes no orders."""
        self.leaving = True
        await self._supervisor.cancel("connection")
        await self.connection.unregister(reason, timeout_s)

    async def close(self) -> None:
        """After the supervisor was closed: let go of the network."""
        await self._graphs.close()
        await self.connection.close()

    # ------------------------------------------------------------------ what the leader asks

    @property
    def epoch_seen(self) -> int:
        """See `ExecutorCalls`."""
        return self.connection.epoch_seen

    def admit(self, epoch: int) -> None:
        """See `ExecutorCalls`."""
        self.connection.admit(epoch)

    def registered(self, registration_id: str) -> bool:
        """See `ExecutorCalls`."""
        current = self.connection.current
        return current is not None and current.registration_id == registration_id

    async def deploy(
        self, epoch: int, registration_id: str, tasks: list[tuple[AttemptKey, TaskDeployment]]
    ) -> list[tuple[AttemptKey, str]]:
        """See `ExecutorCalls`. A job that is being released here is waited for."""
        await self.connection.settled(self._call_timeout_s)
        for job_id in dict.fromkeys(key.job_id for key, _ in tasks):
            await self._jobs.until_released(job_id)
        refused: list[tuple[AttemptKey, str]] = []
        for key, deployment in tasks:
            reason = self._take(key, deployment, epoch, registration_id)
            if reason is not None:
                refused.append((key, reason))
        return refused

    def _take(
        self, key: AttemptKey, deployment: TaskDeployment, epoch: int, registration_id: str
    ) -> str | None:
        """Start one attempt; the reason when it is refused. Repeating it changes nothing."""
        if not self.registered(registration_id):
            return f"registration {registration_id!r} does not hold here"
        if key.epoch != epoch:
            return f"{key} was not deployed by the leader of epoch {epoch}"
        known = self._finished.get(key)
        if known is not None:
            self._report(key, finished_report(known))
            return None
        if key in self._ended:
            return None
        if self._reports.full:
            return "too many reports wait for the JobManager"
        try:
            taken = self._slots.occupy(deployment.slot, key)
        except SlotRefused as refusal:
            return str(refusal)
        if taken:
            self._jobs.begin(key.job_id, epoch)
            self._runs.start(key, deployment)
        return None

    def cancel(self, key: AttemptKey) -> bool:
        """See `ExecutorCalls`."""
        return self._runs.cancel(key, CancelReason.REQUESTED)

    def release_attempts(self, keys: Sequence[AttemptKey]) -> None:
        """See `ExecutorCalls`. Staged files are the JobManager's to delete: it commits them."""
        self._deletions.add(self._finished.release(keys))
        released = dict.fromkeys(keys)
        self._reports.drop(lambda key: key in released)

    async def release_job(self, job_id: str, reason: str) -> None:
        """See `ExecutorCalls`."""
        current = self.connection.current
        if current is None or not self._jobs.outranks(job_id, current.epoch):
            self._jobs.release(job_id, reason)
        await self._jobs.until_released(job_id)

    # ------------------------------------------------------------------ what the connection tells

    def header(self) -> RegisterHeader:
        """See `JobManagerListener`."""
        return RegisterHeader(
            resource_id=self._identity.resource_id,
            incarnation=self._identity.incarnation,
            address=self._address,
            data_address=self._identity.data_address,
            slots=self._identity.slots,
        )

    def inventory(self) -> Inventory:
        """See `JobManagerListener`."""
        running = self._slots.occupants()
        self._offered_as_running = dict.fromkeys(running)
        return Inventory(self._finished.inventory(), running)

    def registration_failed(self) -> None:
        """See `JobManagerListener`."""
        self._offered_as_running = {}

    def registered_with(self, answer: RegistrationAnswer) -> None:
        """See `JobManagerListener`."""
        epoch = answer.accepted.leader_epoch
        self._jobs.registered(epoch)
        self._reports.drop(lambda key: key.epoch < epoch, keep_finished=True)
        rejected = [(key, why) for key, why in answer.rejected if key.epoch <= epoch]
        for reason in dict.fromkeys(reason for _, reason in rejected):
            keys = [key for key, why in rejected if why == reason]
            self.release_attempts(keys)
            _log.info("the JobManager rejected executions", reason=reason, count=len(keys))
        for job_id in dict.fromkeys(key.job_id for key, _ in rejected):
            if not self._finished.holds(job_id) and not self._slots.occupants(job_id):
                self._jobs.release(job_id, "the JobManager rejected all that was held")
        self._calls.wake_reporter()

    def jobmanager_lost(self, reason: str) -> None:
        """See `JobManagerListener`. Each job decides for itself."""
        _log.warning("JobManager lost", reason=reason, jobs=len(self._jobs.ids))
        self._jobs.jobmanager_lost()

    def job_ended(self, job_id: str) -> None:
        """See `JobManagerListener`."""
        current = self.connection.current
        if current is None or not self._jobs.outranks(job_id, current.epoch):
            self._jobs.release(job_id, "the JobManager says that it has ended")

    def heartbeat(self) -> HeartbeatRequest:
        """See `JobManagerListener`."""
        self._disk_told.set()
        request = HeartbeatRequest(
            job_ids=self._jobs.ids,
            loop_lag_ms=round(self._lag.take_recent_max_lag_s() * 1000),
            disk_free_bytes=self._disk_free_bytes,
        )
        if 0 < self._finished_bytes_max < self._finished.bytes:
            self._ask_for_room(request, self._finished.bytes - self._finished_bytes_max)
        return request

    def _ask_for_room(self, request: HeartbeatRequest, bytes_over: int) -> None:
        """Only the leader knows what is optional: it is asked about some at a time, in rounds."""
        oldest = self._finished.oldest(self._oldest_asked, _OLDEST_ASKED_MAX)
        if self._oldest_asked == 0:
            _log.warning("more finished partitions than wanted", bytes_over=bytes_over)
        self._oldest_asked += len(oldest)
        if len(oldest) < _OLDEST_ASKED_MAX:
            self._oldest_asked = 0
        request.partition_bytes_over = bytes_over
        request.oldest_finished.extend(key.to_proto() for key in oldest)

    # ------------------------------------------------------------------ jobs

    def recovery_enabled(self, job_id: str) -> bool:
        """See `JobOwner`."""
        return self._graphs.recovery_enabled(job_id)

    def fail_tasks(self, job_id: str) -> None:
        """See `JobOwner`."""
        for key in self._slots.occupants(job_id):
            self._runs.cancel(key, CancelReason.JOBMANAGER_LOST)

    def let_go(self, job_id: str) -> None:
        """See `JobOwner`."""
        self._finished.release_job(job_id)
        self._reports.drop(lambda key: key.job_id == job_id)

    async def delete(self, job_id: str) -> None:
        """See `JobOwner`."""
        for key in self._slots.occupants(job_id):
            self._runs.cancel(key, CancelReason.RELEASED)
        await self._graphs.stop_fetching(job_id)
        await self._runs.wait_until_over(job_id)
        for directory in (self._directory.shuffle, self._directory.scratch):
            await self._disk.remove_tree(f"{directory}/{job_id}", missing_ok=True)
        await self._graphs.forget(job_id)

    async def _settled(self) -> None:
        await self.connection.settled(self._call_timeout_s)

    async def _watch_disk(self) -> None:
        """Measure for each heartbeat, as soon as the one before has told what was known."""
        while True:
            self._disk_told.clear()
            self._disk_free_bytes = await self._disk.free_bytes(self._directory.path)
            await self._disk_told.wait()

    # ------------------------------------------------------------------ attempts

    def _report(self, key: AttemptKey, report: ExecutionReport) -> None:
        self._reports.add(key, report)
        self._calls.wake_reporter()

    def _on_running(self, run: AttemptRun) -> None:
        self._reports.add(run.key, running_report(run.key))
        self._calls.wake_reporter(urgent=False)

    async def _on_end(self, run: AttemptRun, end: RunEnd) -> None:
        key = run.key
        if end.finished is not None and key in self._offered_as_running and run.is_cancelled():
            # A leader is being told that it runs: whether it hears that, is known in a moment.
            await self.connection.settled(self._call_timeout_s)
        if end.finished is not None and self._keeps(run):
            self._slots.free(key)
            if run.output_leaves:
                # Somebody else holds and offers it; here it must only not run a second time.
                self._remember_ended(key)
            else:
                self._finished.add(key, end.finished)
            self._report(key, finished_report(end.finished))
            return
        if end.finished is not None:
            await self._runs.remove_output(key)
        self._slots.free(key)
        self._remember_ended(key)
        offered = key in self._offered_as_running
        report = end_report(key, run.cancel_reason, end.failure, offered_as_running=offered)
        if report is not None:
            self._report(key, report)

    def _keeps(self, run: AttemptRun) -> bool:
        """Whether the output of an attempt that finished is wanted.

        One that finished although it was to be stopped for the loss of the JobManager is kept, as
        if it had finished just before (P24), unless a leader was told already that it still runs.
        """
        if run.cancel_reason is None:
            return self._jobs.state(run.key.job_id) is not None
        return (
            run.cancel_reason is CancelReason.JOBMANAGER_LOST
            and self._jobs.state(run.key.job_id) is JobLeaderState.RETAINING
            and run.key not in self._offered_as_running
        )

    def _remember_ended(self, key: AttemptKey) -> None:
        self._ended[key] = None
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]
