"""All jobs of one leader: stored before a submission is acknowledged, recovered side by side, kept
when ended.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdover import config as options
from holdover.config import Configuration
from holdover.errors import ConfigurationError, JobGraphError, JobNotFound, StorageError
from holdover.jobgraph import validation_steps
from holdover.runtime.log import Log
from holdover.runtime.supervisor import Supervisor
from holdover.v1 import archive_pb2, common_pb2, job_pb2, jobmanager_pb2
from jobmanager import sink_commit
from jobmanager.job_master import JobMaster, JobServices
from jobmanager.job_recovery import RecoveryDataUnreadable
from jobmanager.job_store import BrokenJob, StoredJob, graph_digest
from jobmanager.scheduler import signals as sig
from jobmanager.submission import check_files

RECOVERY_ATTEMPTS_MAX = 3
CLEAN_UP_RETRY_S = 5.0
LEFTOVERS_INTERVAL_S = 30.0
#: The record of workers is put together, and written anew if it has changed, as a whole: after each
#: time its writer rests this long for each worker in it, so that thousands that register at once
#: cost that a few times and not thousands.
WORKERS_REST_S = 0.0001

ResultT = TypeVar("ResultT")

_log = Log(__name__)


class JobEndedAlready(Exception):
    """The call is about a job that is over."""


class LeaderEnds(Exception):
    """This leader does not begin anything any more; the next one will answer."""


class TooLateToCancel(Exception):
    """The job's output is being published."""


@dataclass(frozen=True, slots=True)
class ParkedJob:
    """A job that this leader does not run: its files cannot be read, or its recovery kills
    leaders.
    """

    job_id: str
    reason: str
    stored: StoredJob | None


class Dispatcher:
    """The jobs under one leader."""

    def __init__(
        self, services: JobServices, config: Configuration, supervisor: Supervisor
    ) -> None:
        self._services = services
        self._config = config
        self._supervisor = supervisor
        self._store = services.store
        self._masters: dict[str, JobMaster] = {}
        self._parked: dict[str, ParkedJob] = {}
        #: Held by who cancels or retries one of them: nobody else may meanwhile.
        self._changing_parked = asyncio.Lock()
        #: Jobs that are over and still being cleaned up.
        self._ending: dict[str, JobMaster] = {}
        self._submitting: dict[str, asyncio.Lock] = {}
        self._working: list[asyncio.Task[Any]] = []
        #: Set once all jobs are loaded: before that nobody is told that a job is unknown.
        self.ready = asyncio.Event()
        self._suspended = False

    # Loading

    async def load(self) -> None:
        """Take up every job that has not ended. One that cannot be read stops no other (P10)."""
        previous_workers = await self._store.read_workers()
        jobs = await self._store.load_all()
        stored = []
        for job in jobs:
            if isinstance(job, BrokenJob):
                self._parked[job.job_id] = ParkedJob(job.job_id, job.reason, None)
            else:
                stored.append(job)
        await asyncio.gather(*(self._take_up(job, previous_workers) for job in stored))
        self.ready.set()

    async def _take_up(self, job: StoredJob, previous_workers: Sequence[str]) -> None:
        if await self._may_recover(job):
            await self._recover(job, previous_workers)

    async def _may_recover(self, job: StoredJob) -> bool:
        """Count the recovery that begins now; False, and parked, when it was tried too often."""
        try:
            attempts = await self._store.raise_recovery_attempts(job.job_id)
        except (OSError, StorageError) as error:
            # The count guards against leaders that die of this job, which this is no sign of.
            _log.warning("a recovery is not counted", job=job.job_id, reason=str(error))
            attempts = job.recovery_attempts
        if attempts > RECOVERY_ATTEMPTS_MAX:
            reason = (
                f"its recovery ended {RECOVERY_ATTEMPTS_MAX} JobManagers in a row; the other jobs"
                " go on; retry or cancel it"
            )
            self._park(job, reason)
            return False
        return True

    async def _recover(self, job: StoredJob, previous_workers: Sequence[str]) -> None:
        """Run a job from what is stored of it, or park it: whatever is wrong with it, and be it
        this program, is no reason for the other jobs to stop (P10, P11).
        """
        try:
            master = self._masters[job.job_id] = self._new_master(job)
        except Exception as error:  # noqa: BLE001  it is told, and can be tried again
            return self._park(job, _why(error))
        try:
            await master.recover(previous_workers)
        except Exception as error:  # noqa: BLE001
            self._park(job, _why(error))
            await master.suspend()

    def _park(self, job: StoredJob, reason: str) -> None:
        _log.error("job parked", job=job.job_id, reason=reason)
        self._masters.pop(job.job_id, None)
        self._parked[job.job_id] = ParkedJob(job.job_id, reason, job)

    def _new_master(self, job: StoredJob) -> JobMaster:
        config = self._config.with_overrides(job.graph.options)
        return JobMaster(job, config, self._services, self._on_ended)

    # Submission

    async def submit(self, graph: job_pb2.JobGraph) -> bool:
        """Store and start a job; True if it was known already under this id, with the same graph
        (P43).

        Raises:
            JobGraphError: the graph cannot run; names the field.
            JobAlreadyExists, JobAlreadyEnded, StorageError: see `JobStore.store`.
            OSError: storage does not work at present; nothing was acknowledged.
            LeaderEnds: submit again, to the next leader.
        """
        for _ in validation_steps(graph):
            await asyncio.sleep(0)
        return await self._to_its_end(self._submit_alone(graph))

    async def _submit_alone(self, graph: job_pb2.JobGraph) -> bool:
        lock = self._submitting.setdefault(graph.job_id, asyncio.Lock())
        try:
            async with lock:
                return await self._submit(graph)
        finally:
            if not lock.locked():
                self._submitting.pop(graph.job_id, None)

    async def _to_its_end(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Do something in a task of its own: a caller that gives up waiting, and is cancelled, must
        not leave a job stored that nobody runs.
        """
        task = asyncio.ensure_future(work)
        self._working.append(task)
        task.add_done_callback(self._work_is_done)
        return await asyncio.shield(task)

    def _work_is_done(self, task: asyncio.Task[Any]) -> None:
        self._working.remove(task)
        if not task.cancelled() and task.exception() is not None:
            _log.debug("a call of a client was refused", reason=str(task.exception()))

    async def _submit(self, graph: job_pb2.JobGraph) -> bool:
        digest = graph_digest(graph)
        # First of all: the output of a job that is known is no reason to refuse it.
        stored = await self._store.is_stored(graph.job_id, digest)
        if stored and not self._is_overlooked(graph.job_id):
            return True
        submitted = self._with_job_options(graph)
        await check_files(self._services.runtime.disk, submitted)
        wall_ms = self._services.runtime.clock.wall_ms()
        fresh = await self._store.store(
            submitted,
            submitted_wall_ms=wall_ms,
            leader_epoch=self._services.epoch,
            digest=digest,
        )
        if not fresh and not stored and not self._is_overlooked(graph.job_id):
            return True
        if self._suspended:
            raise LeaderEnds("the leader changes; submit again")
        job = StoredJob(graph.job_id, submitted, digest, wall_ms, recovery_attempts=0)
        master = self._new_master(job)
        self._masters[graph.job_id] = master
        master.start(
            [
                sig.WorkerRegistered(
                    worker.worker_id,
                    worker.data_address,
                    refreshed=False,
                    shuffle=worker.shuffle_load,
                )
                for worker in self._services.resources.workers()
            ]
        )
        _log.info("job submitted", job=graph.job_id, name=graph.name)
        return False

    def _is_overlooked(self, job_id: str) -> bool:
        """Whether a stored job was not there yet when this leader took office.

        The leader before has sent it to an object store at the very end of its lease, or was
        frozen over storing it, and has acknowledged nothing.
        """
        return self.ready.is_set() and not self.knows(job_id) and job_id not in self._ending

    def _with_job_options(self, graph: job_pb2.JobGraph) -> job_pb2.JobGraph:
        """The graph with every job-level option spelled out: it keeps its plan under any later
        leader.
        """
        try:
            config = self._config.with_overrides(graph.options)
        except ConfigurationError as error:
            raise JobGraphError("options", str(error)) from error
        stored = job_pb2.JobGraph()
        stored.CopyFrom(graph)
        del stored.options[:]
        job_level = [option for option in options.OPTIONS.values() if option.job_level]
        stored.options.extend(config.to_entries(*job_level))
        return stored

    # The end

    def _on_ended(self, archived: archive_pb2.ArchivedJob) -> None:
        job_id = archived.status.job_id
        reason = archived.status.failure.message
        details = {"reason": reason} if reason else {}
        state = common_pb2.JobState.Name(archived.status.state)
        _log.info("job ended", job=job_id, state=state, **details)
        master = self._masters.pop(job_id)
        self._ending[job_id] = master
        self._supervisor.start(f"clean up {job_id}", self._clean_up(master))

    async def _clean_up(self, master: JobMaster) -> None:
        await master.clean_up()
        del self._ending[master.job_id]

    async def remove_leftovers(self) -> None:
        """Remove what is left of ended jobs; runs as long as the leader.

        A leader before this one may have died over its clean-up. And one that stood still, and does
        not know yet that it is none any more, may write after the clean-up was done.
        """
        while True:
            pause_s = LEFTOVERS_INTERVAL_S
            try:
                for job_id in await self._store.jobs_to_clean_up():
                    if job_id not in self._masters and job_id not in self._ending:
                        await self._store.remove(job_id)
            except (OSError, StorageError) as error:
                _log.warning("clean-up fails, will retry", error=error)
                pause_s = CLEAN_UP_RETRY_S
            await asyncio.sleep(pause_s)

    async def suspend(self) -> None:
        """This leader ends; every job is left to the next one, nothing of it is deleted (P31)."""
        self.ready.clear()
        self._suspended = True
        masters = [*self._masters.values(), *self._ending.values()]
        await asyncio.gather(*(master.suspend() for master in masters))

    # Queries

    def master(self, job_id: str) -> JobMaster | None:
        """The JobMaster of a job that this leader runs."""
        return self._masters.get(job_id)

    def masters(self) -> list[JobMaster]:
        """All that run, oldest first."""
        return list(self._masters.values())

    def knows(self, job_id: str) -> bool:
        """Whether the job has not ended (it runs, or is parked): its partitions must be kept."""
        return job_id in self._masters or job_id in self._parked

    async def status(self, job_id: str) -> jobmanager_pb2.JobStatus:
        """The job's status.

        Raises:
            JobNotFound: this leader has loaded all jobs and there is none of that id.
        """
        master = self._masters.get(job_id)
        if master is not None:
            return master.status()
        parked = self._parked.get(job_id)
        if parked is not None:
            return _parked_status(parked)
        return (await self.archived(job_id)).status

    async def archived(self, job_id: str) -> archive_pb2.ArchivedJob:
        """The summary of an ended job.

        Raises:
            JobNotFound: there is none of that id.
        """
        archived = await self._store.read_archive(job_id)
        if archived is None:
            raise JobNotFound(job_id)
        return archived

    async def recovery_reports(self, job_id: str) -> Sequence[jobmanager_pb2.RecoveryReport]:
        """One for each leader that recovered the job, oldest first.

        Raises:
            JobNotFound: there is no such job.
            StorageError: those of a job that does not run cannot be read.
        """
        master = self._masters.get(job_id)
        if master is not None:
            return master.recovery_reports()
        if job_id in self._parked:
            return await self._store.read_recovery_reports(job_id)
        return (await self.archived(job_id)).recovery_reports

    async def list_statuses(self) -> list[jobmanager_pb2.JobStatus]:
        """All jobs without their vertices: those that run first, then ended ones, newest first."""
        running = [master.status(with_vertices=False) for master in reversed(self.masters())]
        parked = [_parked_status(parked) for parked in self._parked.values()]
        return [*running, *parked, *await self._store.list_archives()]

    async def cancel(self, job_id: str) -> common_pb2.JobState.ValueType:
        """Cancel a job; durable when this returns. The job's state.

        Raises:
            JobNotFound, JobEndedAlready, TooLateToCancel.
        """
        master = self._masters.get(job_id)
        if master is not None:
            state = await master.cancel()
            if master.scheduler.graph.cancel_requested:
                return state.value
            if master.committing and job_id in self._masters:
                raise TooLateToCancel(job_id)
        if job_id in self._parked:
            return await self._to_its_end(self._cancel_parked(job_id))
        archived = await self.archived(job_id)
        raise JobEndedAlready(common_pb2.JobState.Name(archived.status.state))

    async def _has_ended_parked(self, job_id: str) -> archive_pb2.ArchivedJob | None:
        """How a parked job had ended before it was parked: only that could not be read then. It
        is parked no longer, and what is left of it goes. None: it has not ended."""
        archived = await self._store.read_archive(job_id)
        if archived is not None:
            await self._store.remove(job_id)
            del self._parked[job_id]
            self._services.resources.remove_job(job_id)
        return archived

    async def _cancel_parked(self, job_id: str) -> common_pb2.JobState.ValueType:
        async with self._changing_parked:
            parked = self._parked.get(job_id)
            if parked is not None:
                return await self._end_parked(parked)
        return await self.cancel(job_id)  # somebody else was first

    async def _end_parked(self, parked: ParkedJob) -> common_pb2.JobState.ValueType:
        archived = await self._has_ended_parked(parked.job_id)
        if archived is not None:
            raise JobEndedAlready(common_pb2.JobState.Name(archived.status.state))
        await self._discard_output(parked)
        status = _parked_status(parked)
        status.state = common_pb2.JOB_STATE_CANCELED
        status.ended_wall_ms = self._services.runtime.clock.wall_ms()
        digest = parked.stored.graph_digest if parked.stored else ""
        await self._services.leading.certain_or_over()
        await self._store.archive(
            archive_pb2.ArchivedJob(
                status=status, graph_digest=digest, leader_epoch=self._services.epoch
            )
        )
        await self._services.leading.certain_or_over()  # it may have been frozen over that
        del self._parked[parked.job_id]
        self._services.resources.remove_job(parked.job_id)
        await self._store.remove(parked.job_id)
        return common_pb2.JOB_STATE_CANCELED

    async def _discard_output(self, parked: ParkedJob) -> None:
        """Raises OSError: while its graph cannot be read, it cannot be cancelled."""
        graph = parked.stored.graph if parked.stored else None
        try:
            graph = graph or await self._store.read_graph(parked.job_id)
        except StorageError as error:
            _log.warning("what it has staged stays", job=parked.job_id, reason=str(error))
        if graph is not None:
            services = self._services
            await sink_commit.discard(services.runtime.disk, graph, services.leading)

    async def retry(self, job_id: str) -> None:
        """Take a parked job up again. One that turns out to have ended is parked no longer.

        Raises:
            JobNotFound: there is no parked job of that id.
            StorageError: its files still cannot be read.
        """
        await self._to_its_end(self._retry(job_id))

    async def _retry(self, job_id: str) -> None:
        async with self._changing_parked:
            await self._take_up_again(job_id)

    async def _take_up_again(self, job_id: str) -> None:
        if job_id not in self._parked:
            raise JobNotFound(job_id)
        if await self._has_ended_parked(job_id) is not None:
            return
        await self._store.clear_recovery_attempts(job_id)
        loaded = {job.job_id: job for job in await self._store.load_all()}
        job = loaded.get(job_id)
        if not isinstance(job, StoredJob):
            reason = job.reason if isinstance(job, BrokenJob) else "its files are gone"
            raise StorageError(self._store.events_directory(job_id), reason)
        workers = await self._store.read_workers()
        del self._parked[job_id]
        # From here to its master there is no wait: who asked would hear that the job has ended.
        await self._recover(job, workers)
        if job_id not in self._masters:
            raise StorageError(job_id, self._parked[job_id].reason)
        # Only the TaskManagers know what they still hold of it.
        self._services.resources.ask_to_register_again()

    async def remember_workers(self) -> None:
        """Keep the record of registered TaskManagers up to date; runs as long as the leader."""
        resources = self._services.resources
        written: list[str] | None = None
        while True:
            await resources.workers_changed.wait()
            resources.workers_changed.clear()
            workers = [worker.worker_id for worker in resources.workers()]
            # While jobs recover, those who have not come back yet must not be forgotten.
            awaited = [
                worker_id
                for master in self.masters()
                if master.scheduler.reconciliation is not None
                and master.scheduler.reconciliation.open
                for worker_id in master.scheduler.reconciliation.previous_workers
            ]
            known = sorted({*workers, *awaited})
            if known != written:
                await self._retry_on_error(functools.partial(self._store.write_workers, known))
                written = known
            await asyncio.sleep(len(known) * WORKERS_REST_S)

    async def _retry_on_error(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await work()
            except OSError as error:
                _log.warning("storage fails, will retry", error=error)
            await asyncio.sleep(CLEAN_UP_RETRY_S)


def _why(error: Exception) -> str:
    """Why a job is not recovered."""
    if isinstance(error, ConfigurationError | RecoveryDataUnreadable | OSError | StorageError):
        return str(error)
    _log.error("the recovery of a job failed", exception=error)
    return f"its recovery failed: {error!r}; please report this, and retry or cancel the job"


def _parked_status(parked: ParkedJob) -> jobmanager_pb2.JobStatus:
    return jobmanager_pb2.JobStatus(
        job_id=parked.job_id,
        name=parked.stored.graph.name if parked.stored else "",
        state=common_pb2.JOB_STATE_PARKED,
        failure=common_pb2.Failure(
            kind=common_pb2.FAILURE_KIND_JOB, message=f"parked: {parked.reason}"
        ),
        submitted_wall_ms=parked.stored.submitted_wall_ms if parked.stored else 0,
    )
