"""What a JobManager keeps between its lives (behaviour 3 and 5.1; cases P10, P42, P43, P44, P49).

    <root>/jobs/<job id>/graph.pb            the submitted job, durable before the acknowledgement
    <root>/jobs/<job id>/recovery-attempts   leaders in a row that have begun its recovery
    <root>/jobs/<job id>/events/             its event log
    <root>/jobs/<job id>/events-recorded     says that the log is not empty
    <root>/jobs/<job id>/begun-anew          the last leader that has begun it from its beginning
    <root>/jobs/<job id>/recovery-reports.pb what its failovers have cost
    <root>/archive/<job id>.pb               its end marker and summary, durable before clean-up
    <root>/workers.pb                        the TaskManagers that were registered, a hint

Every file is published atomically and durably, with a CRC.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from holdover import ids
from holdover.errors import HoldoverError, InvalidId, JobAlreadyExists, StorageError
from holdover.runtime import Disk, ObjectStoreUnavailable
from holdover.runtime.log import Log
from holdover.v1.archive_pb2 import (
    ArchivedJob,
    KnownWorkers,
    StoredJobGraph,
    StoredRecoveryReports,
)
from holdover.v1.common_pb2 import JobState
from holdover.v1.job_pb2 import JobGraph
from holdover.v1.jobmanager_pb2 import JobStatus, RecoveryReport
from jobmanager.checked_file import StoredFileDamaged, publish_checked, read_checked
from jobmanager.event_store.segments import list_segments
from jobmanager.leading import LeadershipLost
from jobmanager.recovery import REPORTS_BYTES_MAX, newest_reports

MessageT = TypeVar("MessageT", bound=Message)

GRAPH_BYTES_MAX: Final = 512 * 1024 * 1024
_ARCHIVE_BYTES_MAX: Final = 64 * 1024 * 1024
_WORKERS_BYTES_MAX: Final = 16 * 1024 * 1024
_NUMBER_BYTES_MAX: Final = 16
#: Jobs that are read at a time: an object store answers each question late, and many at once.
_LOADS_MAX: Final = 16

_log = Log(__name__)


class JobAlreadyEnded(HoldoverError):
    """The job id belongs to a job that is over; it does not run again (case P44).

    `same_graph` tells whether it was this very job.
    """

    def __init__(self, job_id: str, state: JobState.ValueType, *, same_graph: bool) -> None:
        name = JobState.Name(state).removeprefix("JOB_STATE_")
        super().__init__(
            f"job {job_id!r} has already ended ({name}); submit under another job id to run it"
            " again"
        )
        self.job_id = job_id
        self.state = state
        self.same_graph = same_graph


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job that has not ended.

    Attributes:
        job_id: the job.
        graph: as it was submitted.
        graph_digest: SHA-256 of the graph as its client sent it, hexadecimal.
        submitted_wall_ms: when, by the wall clock of the leader that took it.
        recovery_attempts: leaders in a row whose recovery of it has not got to a new event.
    """

    job_id: str
    graph: JobGraph
    graph_digest: str
    submitted_wall_ms: int
    recovery_attempts: int


@dataclass(frozen=True, slots=True)
class BrokenJob:
    """A job whose files cannot be read. They stay; `remove` deletes them."""

    job_id: str
    reason: str


def graph_digest(graph: JobGraph) -> str:
    """SHA-256 of the graph, hexadecimal: equal for the same job submitted twice."""
    return hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()


class JobStore:
    """The jobs under one root directory. Only the leader writes; call `open` first.

    OSErrors of single calls pass through: nothing was acknowledged then, try again.
    """

    def __init__(self, disk: Disk, root: str, *, archives_max: int = 1000) -> None:
        """`archives_max`: summaries of ended jobs that are kept, the newest ones."""
        self._disk = disk
        self._root = root
        self._archives_max = archives_max
        self._submissions = asyncio.Lock()
        # Statuses of archived jobs without their vertices; None until they are needed.
        self._archived: dict[str, JobStatus] | None = None
        self._archiving = asyncio.Lock()

    async def open(self) -> None:
        """Make the directories and prove that they can be written.

        Raises `StorageError` naming the directory that cannot; `ObjectStoreUnavailable` where that
        may pass.
        """
        for directory in (self._root, f"{self._root}/jobs", f"{self._root}/archive"):
            probe = f"{directory}/.writable"
            try:
                await self._disk.make_directories(directory)
                await self._disk.publish(probe, b"")
                await self._disk.remove(probe)
                await self._remove_temporary_files(directory)
            except ObjectStoreUnavailable:
                raise
            except OSError as error:
                raise StorageError(
                    directory,
                    f"the storage directory is not writable: {error.strerror or error};"
                    " check that it exists, its owner and its file system"
                    " (high-availability.storageDir)",
                ) from error

    # Jobs

    def events_directory(self, job_id: str) -> str:
        """Where the job's event log is."""
        return f"{self._job_directory(job_id)}/events"

    async def is_stored(self, job_id: str, digest: str) -> bool:
        """Whether the job with this digest was stored before (case P43). Raises as `store`."""
        archived = await self.read_archive(job_id)
        if archived is not None:
            same = archived.graph_digest == digest
            raise JobAlreadyEnded(job_id, archived.status.state, same_graph=same)
        stored = await self._read(self._graph_path(job_id), StoredJobGraph(), GRAPH_BYTES_MAX)
        if stored is None:
            return False
        if stored.graph_digest != digest:
            raise JobAlreadyExists(job_id)
        return True

    async def store(
        self, graph: JobGraph, *, submitted_wall_ms: int, leader_epoch: int, digest: str = ""
    ) -> bool:
        """Make a submitted job durable; acknowledge it after this (cases P42, P49).

        `digest` is that of the graph as its client sent it, where options were added since: the
        same job may be sent again to a leader that is configured otherwise. False when the same
        job was stored before, be it by another leader in this moment (case P43). Raises
        `JobAlreadyExists` when another graph has this id, `JobAlreadyEnded` when the job is
        archived, `StorageError` when a stored file under this id cannot be read, `InvalidId`.
        """
        job_id = ids.job_id(graph.job_id)
        digest = digest or graph_digest(graph)
        async with self._submissions:
            if await self.is_stored(job_id, digest):
                return False
            await self._refuse_events_without_graph(job_id)
            message = StoredJobGraph(
                graph=graph,
                graph_digest=digest,
                submitted_wall_ms=submitted_wall_ms,
                leader_epoch=leader_epoch,
            )
            if message.ByteSize() > GRAPH_BYTES_MAX:
                raise StorageError(
                    self._graph_path(job_id),
                    f"the job graph has {message.ByteSize()} bytes, at most {GRAPH_BYTES_MAX} are"
                    " possible; attach smaller files",
                )
            try:
                await self._disk.make_directories(self._job_directory(job_id))
                await self._publish(self._graph_path(job_id), message, new=True)
            except FileExistsError:
                if not await self.is_stored(job_id, digest):
                    raise
                return False
            except OSError:
                await self._undo_submission(job_id, leader_epoch)
                raise
            return True

    async def read_graph(self, job_id: str) -> JobGraph | None:
        """The graph of a job that has not ended; None when the file is gone. Raises OSError,
        `StorageError` when it is damaged."""
        stored = await self._read(self._graph_path(job_id), StoredJobGraph(), GRAPH_BYTES_MAX)
        return stored.graph if stored is not None else None

    async def load_all(self) -> list[StoredJob | BrokenJob]:
        """All jobs that have not ended, by id, a few read at a time. One that cannot be read stops
        no other (case P10).

        What is left of ended jobs, and of submissions that were never acknowledged, is removed;
        `jobs_to_clean_up` names those for which that failed.
        """
        room = asyncio.Semaphore(_LOADS_MAX)

        async def load(job_id: str) -> StoredJob | BrokenJob | None:
            try:
                async with room:
                    return await self._load(job_id)
            except (OSError, StorageError) as error:
                _log.error("job cannot be loaded", job=job_id, reason=str(error))
                return BrokenJob(job_id, str(error))

        found = await asyncio.gather(*(load(job_id) for job_id in await self._job_directories()))
        return [job for job in found if job is not None]

    async def jobs_to_clean_up(self) -> list[str]:
        """Ended jobs of which something is left: call `remove` for each, again if it fails."""
        return [job_id for job_id in await self._job_directories() if await self.has_ended(job_id)]

    async def remove(self, job_id: str) -> None:
        """Remove graph, events and counter of a job; the archive stays. Repeatable.

        Close the job's event writer first. Archive the job before, so that a crash in between is no
        broken job.
        """
        await self._disk.remove_tree(self._job_directory(job_id), missing_ok=True)
        await self._disk.sync_directory(f"{self._root}/jobs")

    async def raise_recovery_attempts(self, job_id: str) -> int:
        """Count one more recovery, durably, before it begins; return the number, from 1."""
        attempts = await self._read_number(self._counter_path(job_id)) + 1
        await publish_checked(self._disk, self._counter_path(job_id), str(attempts).encode())
        return attempts

    async def clear_recovery_attempts(self, job_id: str) -> None:
        """The recovery got to a new event, or somebody asked for a retry."""
        await self._disk.remove(self._counter_path(job_id), missing_ok=True)
        await self._disk.sync_directory(self._job_directory(job_id))

    async def mark_recorded_events(self, job_id: str) -> None:
        """Say durably that events of the job are durable; repeatable."""
        if not await self.has_recorded_events(job_id):
            await self._disk.publish(self._mark_path(job_id), b"")

    async def has_recorded_events(self, job_id: str) -> bool:
        """Whether the job has had events, be they there or gone (case P09)."""
        return await self._disk.stat(self._mark_path(job_id)) is not None

    async def mark_begun_anew(self, job_id: str, leader_epoch: int) -> None:
        """Say durably, before anything is undone for it, that a leader begins the job from its
        beginning: a leader before, frozen over recording its end, records none by that."""
        await publish_checked(self._disk, self._anew_path(job_id), str(leader_epoch).encode())

    async def mark_cancelled(self, job_id: str) -> None:
        """Say durably that a client has cancelled a job which has no event log (case P47)."""
        if await self._disk.stat(self._job_directory(job_id)) is not None:  # it has not ended yet
            await self._disk.publish(self._cancelled_path(job_id), b"")

    async def is_cancelled(self, job_id: str) -> bool:
        """Whether that has been said."""
        return await self._disk.stat(self._cancelled_path(job_id)) is not None

    async def write_recovery_reports(self, job_id: str, reports: Sequence[RecoveryReport]) -> None:
        """Keep a job's recovery reports, oldest first, for later leaders (case P50).

        Of more than 100, or more than 16 MB, the newest are kept.
        """
        message = StoredRecoveryReports(reports=newest_reports(reports))
        await self._publish(self._reports_path(job_id), message)

    async def read_recovery_reports(self, job_id: str) -> list[RecoveryReport]:
        """The reports that leaders before have kept, oldest first. Raises `StorageError`."""
        path = self._reports_path(job_id)
        stored = await self._read(path, StoredRecoveryReports(), REPORTS_BYTES_MAX)
        return [] if stored is None else list(stored.reports)

    # Ended jobs

    async def archive(self, job: ArchivedJob) -> None:
        """Write a job's end marker and summary, durably; only then act on its end (case P44).

        Repeatable. It replaces that of a leader before, who was frozen over it and did not know
        that the job went on; raises `LeadershipLost` where there is that of a later one. Beyond
        `archives_max` the oldest summaries are removed.
        """
        job_id = ids.job_id(job.status.job_id)
        try:
            await self._publish(self._archive_path(job_id), job, new=True)
        except FileExistsError:
            found = await self.read_archive(job_id)
            if found is not None and found.leader_epoch > job.leader_epoch:
                text = f"another JobManager has recorded how {job_id} ended"
                raise LeadershipLost(text) from None
            await self._publish(self._archive_path(job_id), job)
        async with self._archiving:
            archived = await self._load_archived()
            archived[job_id] = _summary(job)
            for old in _newest_first(archived)[self._archives_max :]:
                if await self._disk.stat(self._job_directory(old.job_id)) is not None:
                    continue  # its clean-up is not complete: the marker is still needed
                await self._disk.remove(self._archive_path(old.job_id), missing_ok=True)
                del archived[old.job_id]

    async def read_archive(self, job_id: str) -> ArchivedJob | None:
        """The summary of an ended job; None when there is none, or one of a leader after which
        another has begun the job anew. Raises `StorageError`."""
        path = self._archive_path(ids.job_id(job_id))
        archived = await self._read(path, ArchivedJob(), _ARCHIVE_BYTES_MAX)
        if archived is None or archived.leader_epoch < await self._read_number(
            self._anew_path(job_id)
        ):
            return None
        return archived

    async def has_ended(self, job_id: str) -> bool:
        """Whether a leader has recorded that the job is over. Raises `StorageError`."""
        if await self._disk.stat(self._archive_path(job_id)) is None:
            return False
        if await self._disk.stat(self._anew_path(job_id)) is None:
            return True
        return await self.read_archive(job_id) is not None

    async def list_archives(self) -> list[JobStatus]:
        """Ended jobs, newest end first, without their vertices. Unreadable ones are left out."""
        async with self._archiving:
            return _newest_first(await self._load_archived())

    # Workers

    async def write_workers(self, worker_ids: Sequence[str]) -> None:
        """Remember who is registered."""
        await self._publish(self._workers_path, KnownWorkers(worker_ids=sorted(worker_ids)))

    async def read_workers(self) -> list[str]:
        """Who was registered last, sorted. A hint: empty when the file cannot be read."""
        try:
            known = await self._read(self._workers_path, KnownWorkers(), _WORKERS_BYTES_MAX)
        except (OSError, StorageError) as error:
            _log.warning("the list of known workers cannot be read", reason=str(error))
            return []
        return [] if known is None else list(known.worker_ids)

    # Files

    @property
    def _workers_path(self) -> str:
        return f"{self._root}/workers.pb"

    def _job_directory(self, job_id: str) -> str:
        return f"{self._root}/jobs/{ids.job_id(job_id)}"

    def _graph_path(self, job_id: str) -> str:
        return f"{self._job_directory(job_id)}/graph.pb"

    def _counter_path(self, job_id: str) -> str:
        return f"{self._job_directory(job_id)}/recovery-attempts"

    def _anew_path(self, job_id: str) -> str:
        return f"{self._job_directory(job_id)}/begun-anew"

    def _mark_path(self, job_id: str) -> str:
        return f"{self._job_directory(job_id)}/events-recorded"

    def _cancelled_path(self, job_id: str) -> str:
        return f"{self._job_directory(job_id)}/cancelled"

    def _reports_path(self, job_id: str) -> str:
        return f"{self._job_directory(job_id)}/recovery-reports.pb"

    def _archive_path(self, job_id: str) -> str:
        return f"{self._root}/archive/{job_id}.pb"

    async def _job_directories(self) -> list[str]:
        found = []
        for entry in await self._disk.list_directory(f"{self._root}/jobs"):
            try:
                job_id = ids.job_id(entry.name)
            except InvalidId:
                _log.warning("not a job's directory, ignored", name=entry.name)
                continue
            if entry.is_directory:
                found.append(job_id)
        return found

    async def _load(self, job_id: str) -> StoredJob | None:
        if await self.read_archive(job_id) is not None:
            await self._disk.sync_directory(f"{self._root}/archive")  # its writer may have died
            await self._clean_up(job_id)
            return None
        stored = await self._read(self._graph_path(job_id), StoredJobGraph(), GRAPH_BYTES_MAX)
        if stored is None:
            await self._refuse_events_without_graph(job_id)
            await self._clean_up(job_id)  # never acknowledged
            return None
        if stored.graph.job_id != job_id:
            raise StoredFileDamaged(
                self._graph_path(job_id), f"it holds the graph of job {stored.graph.job_id!r}"
            )
        return StoredJob(
            job_id,
            stored.graph,
            stored.graph_digest,
            stored.submitted_wall_ms,
            await self._read_number(self._counter_path(job_id)),
        )

    async def _refuse_events_without_graph(self, job_id: str) -> None:
        """Events prove that the job was acknowledged: it is no new one (case P09)."""
        there = await list_segments(self._disk, self.events_directory(job_id))
        if there or await self.has_recorded_events(job_id):
            raise StoredFileDamaged(
                self._graph_path(job_id), "the file is missing, though the job has events"
            )

    async def _clean_up(self, job_id: str) -> None:
        try:
            await self.remove(job_id)
        except OSError as error:  # `jobs_to_clean_up` still names it
            _log.warning("clean-up of an ended job failed", job=job_id, reason=str(error))

    async def _undo_submission(self, job_id: str, leader_epoch: int) -> None:
        try:
            stored = await self._read(self._graph_path(job_id), StoredJobGraph(), GRAPH_BYTES_MAX)
            if stored is None or stored.leader_epoch == leader_epoch:
                await self.remove(job_id)
        except (OSError, StorageError) as error:  # the next leader finds none, or one it may run
            _log.warning("a refused submission left files", job=job_id, reason=str(error))

    async def _read_number(self, path: str) -> int:
        """What a file holds of one number; 0 when there is none."""
        payload = await read_checked(self._disk, path, _NUMBER_BYTES_MAX)
        if payload is None:
            return 0
        try:
            return int(payload)
        except ValueError:
            raise StoredFileDamaged(path, "it holds no number") from None

    async def _load_archived(self) -> dict[str, JobStatus]:
        if self._archived is None:
            archived = {}
            for entry in await self._disk.list_directory(f"{self._root}/archive"):
                job_id = entry.name.removesuffix(".pb")
                if ids.JOB_ID.fullmatch(job_id) is None or entry.is_directory:
                    continue
                try:
                    job = await self.read_archive(job_id)
                except StorageError as error:
                    _log.warning("an archived job cannot be read", reason=str(error))
                    continue
                if job is not None:
                    archived[job_id] = _summary(job)
            self._archived = archived
        return self._archived

    async def _remove_temporary_files(self, directory: str) -> None:
        """Remove what a crash inside `Disk.publish` has left."""
        for entry in await self._disk.list_directory(directory):
            if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                await self._disk.remove(f"{directory}/{entry.name}", missing_ok=True)

    async def _publish(self, path: str, message: Message, *, new: bool = False) -> None:
        payload = message.SerializeToString(deterministic=True)
        await publish_checked(self._disk, path, payload, new=new)

    async def _read(self, path: str, message: MessageT, bytes_max: int) -> MessageT | None:
        payload = await read_checked(self._disk, path, bytes_max)
        if payload is None:
            return None
        try:
            message.ParseFromString(payload)
        except DecodeError:
            name = message.DESCRIPTOR.name
            raise StoredFileDamaged(path, f"it holds no {name}") from None
        return message


def _summary(job: ArchivedJob) -> JobStatus:
    status = JobStatus()
    status.CopyFrom(job.status)
    status.ClearField("vertices")
    return status


def _newest_first(archived: dict[str, JobStatus]) -> list[JobStatus]:
    ordered = sorted(archived.items(), key=lambda item: (-item[1].ended_wall_ms, item[0]))
    return [status for _, status in ordered]
