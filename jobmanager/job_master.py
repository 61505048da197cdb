"""One job's shell: inbox -> scheduler -> event log -> actions.

Every signal is handled in one step: the scheduler decides, the events are appended to the log
(which never waits for the disk), the actions are carried out. What must be durable first waits for
the log in a background task; its outcome returns as a signal.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from holdover import config as options
from holdover.config import Configuration
from holdover.ids import AttemptKey
from holdover.runtime import Runtime
from holdover.runtime.log import Log
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.v1 import archive_pb2, events_pb2, job_pb2, jobmanager_pb2
from jobmanager.event_store import (
    EventStoreDegraded,
    EventStoreFenced,
    EventStoreStatus,
    JobEventWriter,
)
from jobmanager.event_store.disabled import DisabledJobEventWriter
from jobmanager.job_files import RETRY_DELAY_S_MAX, JobFiles
from jobmanager.job_options import event_writer_settings, restart_strategy, scheduler_options
from jobmanager.job_recovery import begin_unrecorded, recover_job
from jobmanager.job_status import JobHistory, internal_failure, job_status, result_files
from jobmanager.job_store import JobStore, StoredJob
from jobmanager.leading import Leading
from jobmanager.recovery import RecoveryObserver, newest_reports
from jobmanager.recovery_reports import RecoveryReports
from jobmanager.resource_manager import ResourceManager
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import JobState
from jobmanager.worker_orders import WorkerOrders

INBOX_SIGNALS_MAX = 10_000
#: A recovery that has ended no leader for so long is not going to.
RECOVERY_SURVIVED_S = 60.0
END = "end"  # the work that records how the job ended, and the timer that repeats it

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class JobServices:
    """What all jobs of one leader share."""

    runtime: Runtime
    epoch: int
    store: JobStore
    resources: ResourceManager
    #: Seconds for which this process has run, and led, at a monotonic time.
    process_age_s: Callable[[], float]
    leading_age_s: Callable[[], float]
    #: Told of every step of every job, for those who check them; must change nothing.
    on_step: Callable[[JobMaster, sig.Signal, Decision], None] | None = None
    leading: Leading = field(default_factory=Leading)


class JobMaster:
    """Runs one job under one leader."""

    def __init__(
        self,
        job: StoredJob,
        config: Configuration,
        services: JobServices,
        ended: Callable[[archive_pb2.ArchivedJob], None],
    ) -> None:
        self.job = job
        self.job_id = job.job_id
        self._config = config
        self._services = services
        self._disk = services.runtime.disk
        self._ended = ended
        self._recoverable = config.get(options.BATCH_JOB_RECOVERY_ENABLED)
        self._supervisor = Supervisor(f"job {job.job_id}", self._on_fatal)
        self._inbox: deque[tuple[sig.Signal, asyncio.Future[Decision] | None]] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._releases: deque[act.ReleasePartitions] = deque()
        self._release_wake = asyncio.Event()
        self._orders = WorkerOrders(services.resources, self.post)
        self._changed = asyncio.Event()
        self._version = 0
        self._history = JobHistory(job, services.epoch, services.runtime.clock)
        split_bytes_max = config.get(options.SOURCE_SPLIT_MAX_BYTES)
        self._files = JobFiles(
            self._disk, services.store, job.graph, split_bytes_max, services.leading
        )
        self._reports = RecoveryReports(services.store, job.job_id, self._files.until_it_works)
        self._recovery_counted = False
        self._events_marked = False
        self._failed_internally = False
        self._ending: act.EndJob | None = None
        self._stopped = False
        self._scheduler = self._new_scheduler(ExecutionGraph(job.graph))
        self._events: JobEventWriter | DisabledJobEventWriter = DisabledJobEventWriter()

    # Life

    def start(self, workers: Sequence[sig.WorkerRegistered]) -> None:
        """Run a job that has just been stored; `workers` are registered already."""
        self._open_events(0)
        self._run(*workers, sig.JobStarted())

    async def recover(self, previous_workers: Sequence[str]) -> None:
        """Run an earlier leader's job.

        Raises:
            RecoveryDataUnreadable: it cannot be gone on with, and must not begin anew.
        """
        services = self._services
        observer = RecoveryObserver(
            services.runtime.clock,
            services.epoch,
            services.process_age_s(),
            services.leading_age_s(),
        )
        await self._reports.begin(observer)
        recover = recover_job if self._recoverable else begin_unrecorded
        recovered = await recover(self._disk, services.store, self.job.graph, observer)
        self._scheduler = self._new_scheduler(recovered.graph)
        self._history.replayed(recovered.history)
        if not recovered.last_sequence:
            await self._files.begin_anew(services.epoch)
        self._files.expect_staging()
        self._recovery_counted = True
        loop = asyncio.get_running_loop()
        survived = loop.call_later(RECOVERY_SURVIVED_S, self._recovery_is_survived)
        self._timers["recovery survived"] = survived
        self._open_events(recovered.last_sequence)
        self._run(sig.RecoveryStarted(tuple(previous_workers) if self._recoverable else ()))

    def _new_scheduler(self, graph: ExecutionGraph) -> Scheduler:
        return Scheduler(
            graph,
            self._services.epoch,
            scheduler_options(self._config),
            restart_strategy(self._config),
        )

    def _open_events(self, replayed_sequence: int) -> None:
        if not self._recoverable:
            return
        writer = JobEventWriter(
            self._disk,
            self._services.runtime.clock,
            self._services.store.events_directory(self.job_id),
            job_id=self.job_id,
            leader_epoch=self._services.epoch,
            snapshot_source=lambda: self._scheduler.graph.snapshot_events(self._history.changes()),
            replayed_sequence=replayed_sequence,
            settings=event_writer_settings(self._config),
            on_status=self._log_was_written,
        )
        writer.start()
        self._events = writer

    def _run(self, *first: sig.Signal) -> None:
        self._services.resources.add_job(self.job_id, self.post)
        self._supervisor.start("staging", self._files.make_staging(self._scheduler.graph))
        self._supervisor.run("inbox", self._handle_inbox)
        self._supervisor.run("releases", self._carry_out_releases, RestartPolicy())
        keep_reports = functools.partial(self._reports.keep, lambda: self._scheduler)
        self._supervisor.run("recovery reports", keep_reports, RestartPolicy())
        # Before what has come while the log was replayed, such as a worker that registered.
        self._inbox.extendleft((signal, None) for signal in reversed(first))
        self._wake.set()

    async def suspend(self) -> None:
        """This leader stops running the job; nothing is deleted, the next one goes on (P31)."""
        self._services.resources.forget_job(self.job_id)
        await self._stop()

    async def _stop(self) -> None:
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        await self._supervisor.close()
        self._stopped = True
        for _, reply in self._inbox:
            if reply is not None and not reply.done():
                reply.set_result(Decision())
        self._inbox.clear()
        self._room.set()
        await self._events.close()
        self._note_change()

    # The loop

    def post(self, signal: sig.Signal) -> None:
        """Something happened; it is handled after all that happened before."""
        self._inbox.append((signal, None))
        self._wake.set()

    async def room(self) -> None:
        """Back pressure for those who bring signals from outside: wait while the inbox is long."""
        while len(self._inbox) >= INBOX_SIGNALS_MAX:
            self._room.clear()
            await self._room.wait()

    async def ask(self, signal: sig.Signal) -> Decision:
        """Post a signal and wait for what was decided; nothing is, once the job is over."""
        if self._stopped:
            return Decision()
        reply: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._inbox.append((signal, reply))
        self._wake.set()
        return await reply

    async def _handle_inbox(self) -> None:
        await self._files.staging_was_tried()
        while True:
            while self._inbox:
                if not self._events.has_room():
                    await self._events.wait_for_room()
                signal, reply = self._inbox.popleft()
                decision = self._handle(signal)
                if decision.unfinished:
                    self._inbox.appendleft((signal, reply))
                elif reply is not None and not reply.done():
                    reply.set_result(decision)
                if self._inbox:
                    await asyncio.sleep(0)  # heartbeats are answered between two signals
            self._room.set()
            self._wake.clear()
            await self._wake.wait()

    def _handle(self, signal: sig.Signal) -> Decision:
        """One step. A defect of the scheduler fails this job, never the others (P11)."""
        if self._failed_internally:
            return Decision()
        before = self._scheduler.graph.state
        try:
            decision = self._scheduler.handle(signal)
            for event in decision.events:
                self._append(event)
            for action in decision.actions:
                self._perform(action)
        except Exception as error:  # noqa: BLE001  whatever it is, the job ends with it as the reason
            return self._fail_internally(error)
        if not decision.unfinished:
            self._reports.handled(signal, before, self._scheduler.graph.state)
        self._note_change()
        if self._services.on_step is not None:
            self._services.on_step(self, signal, decision)
        return decision

    def _fail_internally(self, error: Exception) -> Decision:
        _log.error("the scheduler failed", job=self.job_id, exception=error)
        if self._ending is not None:
            return Decision()  # how it ends is decided, and may be published
        self._failed_internally = True
        self._begin_end(act.EndJob(JobState.FAILED, internal_failure(error)))
        return Decision()

    def _begin_end(self, action: act.EndJob) -> None:
        self._ending = action
        self._supervisor.start(END, self._end(action))

    def _append(self, event: events_pb2.JobEvent) -> None:
        self._events.append(event)
        if event.HasField("vertex_finished"):
            self._recovery_is_survived()
        else:
            self._history.note(event)

    def _recovery_is_survived(self) -> None:
        """It has led to new work, or to nothing bad for long: it is not what kills JobManagers."""
        if self._recovery_counted:
            self._recovery_counted = False
            clear = functools.partial(self._services.store.clear_recovery_attempts, self.job_id)
            clearing = self._files.until_it_works("clearing the recovery counter", clear)
            self._supervisor.start("clear recovery counter", clearing)

    def _log_was_written(self, status: EventStoreStatus) -> None:
        if status.syncs and not self._events_marked and not self._stopped:
            self._events_marked = True
            mark = functools.partial(self._services.store.mark_recorded_events, self.job_id)
            marking = self._files.until_it_works("marking that there are events", mark)
            self._supervisor.start("mark events", marking)
        self._note_change()

    # Actions

    def _perform(self, action: act.Action) -> None:
        resources = self._services.resources
        match action:
            case act.Deploy():
                if self._orders.deploy(action):
                    self._reports.deployed()
            case act.Cancel():
                self._orders.cancel(action)
            case act.CopyPartitions():
                self._supervisor.start("copy partitions", self._orders.copy(action))
            case act.ReleasePartitions():
                self._releases.append(action)
                self._release_wake.set()
            case act.DeclareSlots():
                resources.declare(self.job_id, action.count)
            case act.ReturnSlots():
                resources.return_slots(self.job_id, action.slots)
            case act.SetTimer():
                self._set_timer(action)
            case act.CancelTimer():
                if handle := self._timers.pop(action.name, None):
                    handle.cancel()
            case act.FlushEvents():
                self._events.request_flush()
            case act.EnumerateSplits():
                work = functools.partial(self._files.enumerate_splits, action)
                self._supervisor.start("splits", self._answer(work))
            case act.MakeStaging():
                self._supervisor.start("staging", self._files.make_staging_again())
            case act.CheckStagedFiles():
                work = functools.partial(self._files.check_staged, action)
                self._supervisor.start("check staged files", self._answer(work))
            case act.CommitSinks():
                self._supervisor.start("commit", self._answer(lambda: self._commit(action)))
            case act.EndJob():
                self._begin_end(action)
            case act.RejectOffers():
                pass  # the answer to the registration; read by `register_worker`

    def _set_timer(self, action: act.SetTimer) -> None:
        if before := self._timers.pop(action.name, None):
            before.cancel()
        jitter = self._scheduler.restart_strategy.jitter_factor
        delay_s = action.delay_s
        if jitter and action.name.startswith("restart/"):
            delay_s *= self._services.runtime.randomness.uniform(1 - jitter, 1 + jitter)

        def fire() -> None:
            self._timers.pop(action.name, None)
            self.post(sig.TimerFired(action.name))

        loop = asyncio.get_running_loop()
        self._timers[action.name] = loop.call_later(delay_s, fire)

    async def _carry_out_releases(self) -> None:
        """Delete partitions only when what justifies it is durable."""
        while True:
            await self._release_wake.wait()
            self._release_wake.clear()
            justified = len(self._releases)
            await self._until_durable()
            for _ in range(justified):
                self._orders.release(self._releases.popleft())

    async def _until_durable(self) -> None:
        """Wait until all events so far are durable, however long storage is away."""
        while True:
            try:
                return await self._events.flush()
            except EventStoreFenced:
                await asyncio.Event().wait()  # until this leader has let go of the job
            except EventStoreDegraded as error:
                _log.warning("waiting for the event log", job=self.job_id, reason=error.reason)

    async def _answer(self, work: Callable[[], Awaitable[sig.Signal]]) -> None:
        """The outcome of background work comes back as a signal."""
        self.post(await work())

    async def _commit(self, action: act.CommitSinks) -> sig.Signal:
        await self._until_durable()
        await self._services.leading.certain()
        return await self._files.commit(action)

    # The end

    async def _end(self, action: act.EndJob) -> None:
        """Archive durably, and only then let anybody see the end, or delete anything (P44)."""
        finished = action.state is JobState.FINISHED
        if not finished:
            await self._files.remove_staging()
        self._history.add(action.state)
        status = self.status()
        status.state = action.state.value
        if action.failure is not None:
            status.failure.CopyFrom(action.failure)
        status.ended_wall_ms = self._services.runtime.clock.wall_ms()
        archived = archive_pb2.ArchivedJob(
            status=status,
            result_files=result_files(self._scheduler.graph) if finished else [],
            recovery_reports=newest_reports(self.recovery_reports()),
            graph_digest=self.job.graph_digest,
            leader_epoch=self._services.epoch,
        )
        await self._services.leading.certain()
        archive = functools.partial(self._services.store.archive, archived)
        await self._files.until_it_works("archiving the job", archive)
        # Frozen over that, it must not delete what its successor has of the job.
        await self._services.leading.certain()
        self._ended(archived)

    async def clean_up(self) -> None:
        """After the end: nothing of the job is left but its output and its summary."""
        self._services.resources.remove_job(self.job_id)
        await self._stop()
        remove = functools.partial(self._services.store.remove, self.job_id)
        await self._files.until_it_works("cleaning up", remove)

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        if name == END and self._ending is not None:
            _log.error("the end of the job cannot be recorded, will retry", job=self.job_id)
            loop = asyncio.get_running_loop()
            self._timers[END] = loop.call_later(RETRY_DELAY_S_MAX, self._begin_end, self._ending)
        elif isinstance(exception, Exception):
            self._fail_internally(exception)

    # Calls of TaskManagers

    async def register_worker(self, signal: sig.WorkerRegistered) -> list[act.RejectOffers]:
        """A worker registered; the answer is what it must delete, if what justifies that is
        durable: a successor that does not know it may want what was rejected."""
        decision = await self.ask(signal)
        rejected = [a for a in decision.actions if isinstance(a, act.RejectOffers) and a.keys]
        if self._events.all_durable:
            return rejected
        for rejection in rejected:
            self._perform(act.ReleasePartitions(rejection.worker_id, rejection.keys))
        return []

    def next_split(self, key: AttemptKey, received: int) -> tuple[bool, job_pb2.Split | None]:
        """See `Scheduler.next_split`."""
        return self._scheduler.next_split(key, received)

    # Calls of clients

    async def cancel(self) -> JobState:
        """Cancel the job; durable when this returns.

        Raises:
            EventStoreDegraded, OSError: it could not be made durable in time; the job is being
            cancelled all the same.
        """
        await self.ask(sig.CancelRequested())
        await self._events.flush()
        if not self._recoverable and self._scheduler.graph.cancel_requested:
            await self._services.store.mark_cancelled(self.job_id)
        return self._scheduler.graph.state

    @property
    def committing(self) -> bool:
        """Whether the output is being published: too late to cancel."""
        return self._scheduler.graph.commit is not None

    def status(self, *, with_vertices: bool = True) -> jobmanager_pb2.JobStatus:
        """The job as a client sees it now."""
        status = job_status(self.job, self._scheduler, self._history, with_vertices=with_vertices)
        status.recovery.CopyFrom(self._events.status.to_proto())
        status.recoveries = self._reports.count
        return status

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, to be read only."""
        return self._scheduler

    @property
    def events(self) -> JobEventWriter | DisabledJobEventWriter:
        """The event log's writer, to be read only."""
        return self._events

    @property
    def waiting(self) -> tuple[int, int, int]:
        """How many signals, releases and timers wait."""
        return len(self._inbox), len(self._releases), len(self._timers)

    @property
    def version(self) -> int:
        """Grows with every change of the status."""
        return self._version

    async def changed(self, version: int) -> None:
        """Wait until the status differs from what it was at that version."""
        while self._version == version:
            self._changed.clear()
            await self._changed.wait()

    def _note_change(self) -> None:
        self._version += 1
        self._changed.set()

    def recovery_reports(self) -> list[jobmanager_pb2.RecoveryReport]:
        """One for each leader that recovered the job, oldest first."""
        return self._reports.all(self._scheduler)
