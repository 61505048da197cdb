"""Replaying a job's events, and the report of what one failover cost it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdover.runtime import Clock, Disk
from holdover.v1 import events_pb2, job_pb2, jobmanager_pb2
from jobmanager.event_store import LogFindings, replay, settled
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.reconciliation import Reconciliation
from jobmanager.scheduler.scheduler import Scheduler

RECOVERY_REPORTS_MAX: Final = 100
REPORTS_BYTES_MAX: Final = 16 * 1024 * 1024
_REPORTS_OVERHEAD_BYTES: Final = 64
_REPORT_FRAMING_BYTES: Final = 8


@dataclass(slots=True)
class ReplayedJob:
    """What a job's log says."""

    graph: ExecutionGraph
    findings: LogFindings
    #: Changes of the job's state, oldest first, each with its epoch and time.
    history: list[events_pb2.JobStateChanged] = field(default_factory=list)


async def replay_job(
    disk: Disk,
    events_directory: str,
    job: job_pb2.JobGraph,
    pause: Callable[[], Awaitable[None]] | None = None,
) -> ReplayedJob:
    """Bring a fresh graph of the job to the state that the log describes.

    `pause` lets others go on between two large records.

    Raises:
        LogUnreadable: the log is damaged or newer than this program; see `jobmanager.event_store`.
        ReplayError, InvalidTransition: the log is not this job's history.
    """

    async def read() -> ReplayedJob:
        graph = ExecutionGraph(job)
        history: list[events_pb2.JobStateChanged] = []

        def on_record(record: events_pb2.JobEventRecord) -> None:
            graph.apply(record.event)
            if record.event.HasField("job_state_changed"):
                change = events_pb2.JobStateChanged()
                change.CopyFrom(record.event.job_state_changed)
                change.leader_epoch = change.leader_epoch or record.leader_epoch
                change.wall_ms = change.wall_ms or record.wall_ms
                history.append(change)

        findings = await replay(disk, events_directory, on_record, job_id=graph.job_id, pause=pause)
        return ReplayedJob(graph, findings, history)

    return await settled(disk, events_directory, read)


class RecoveryObserver:
    """Measures one recovery of one job and writes its report.

    Durations are from the monotonic clock; wall clocks are only shown to people.
    """

    def __init__(
        self, clock: Clock, epoch: int, process_age_s: float, leading_age_s: float
    ) -> None:
        """`process_age_s` and `leading_age_s`: for how long the process has run and led already."""
        self._clock = clock
        now_s = clock.monotonic_s()
        self._process_started_s = now_s - process_age_s
        self._leading_s = now_s - leading_age_s
        self._phase_began_s = now_s
        self._log_read = False
        self._worker_after_ms: dict[str, int] = {}
        self.report = jobmanager_pb2.RecoveryReport(
            leader_epoch=epoch,
            process_started_wall_ms=clock.wall_ms() - round(process_age_s * 1000),
            leading_wall_ms=clock.wall_ms() - round(leading_age_s * 1000),
            first_deployment_ms=-1,
        )
        self._add_phase("start", self._leading_s - self._process_started_s)
        self._add_phase("lead", now_s - self._leading_s)

    def replayed(self, findings: LogFindings) -> None:
        """The log has been read."""
        self._end_replay()
        self.report.events_replayed = findings.events
        self.report.last_event_wall_ms = findings.last_wall_ms
        self.report.log_findings.extend(str(finding) for finding in findings.findings)

    def restarted(self, reason: str) -> None:
        """The job starts from its beginning."""
        self._end_replay()
        self.report.restarted_reason = reason

    def worker_registered(self, worker_id: str) -> bool:
        """A worker has offered what it holds; whether for the first time to this leader."""
        if worker_id in self._worker_after_ms:
            return False
        elapsed_s = self._clock.monotonic_s() - self._leading_s
        self._worker_after_ms[worker_id] = round(elapsed_s * 1000)
        return True

    def wait_ended(self) -> None:
        """Nothing is awaited any more."""
        self._end_phase("wait")

    def deployed(self) -> bool:
        """An attempt is being deployed; whether it is the first one, which counts."""
        if self.report.first_deployment_ms >= 0:
            return False
        elapsed_s = self._clock.monotonic_s() - self._process_started_s
        self.report.first_deployment_ms = round(elapsed_s * 1000)
        return True

    def complete(self) -> None:
        """The job runs again."""
        self._end_phase("reconcile")
        self.report.complete = True

    def current(self, scheduler: Scheduler) -> jobmanager_pb2.RecoveryReport:
        """The report as of now."""
        report = jobmanager_pb2.RecoveryReport()
        report.CopyFrom(self.report)
        if scheduler.reconciliation is not None:
            self._describe(report, scheduler, scheduler.reconciliation)
        return report

    def _describe(
        self,
        report: jobmanager_pb2.RecoveryReport,
        scheduler: Scheduler,
        recovery: Reconciliation,
    ) -> None:
        report.early_end = recovery.ended_early
        for vertex_id, counts in recovery.counts.items():
            owner = scheduler.graph.vertices[vertex_id]
            resets = sum(counts.resets.values())
            kept = counts.finished_at_replay + counts.adopted - resets
            report.vertices.add(
                vertex_id=vertex_id,
                name=owner.vertex.name,
                kept=kept,
                adopted=counts.adopted,
                unfinished=owner.parallelism - kept - resets,
                resets=[
                    jobmanager_pb2.ResetCount(reason=reason, subtasks=count)
                    for reason, count in counts.resets.items()
                ],
            )
        report.bytes_kept = recovery.bytes_kept
        # Workers that have joined the cluster since then are no part of the recovery.
        came = (w for w, offer in recovery.offers.items() if offer.offered or not offer.late)
        for worker_id in dict.fromkeys((*recovery.previous_workers, *came)):
            report.workers.append(self._worker(worker_id, recovery))

    def _worker(self, worker_id: str, recovery: Reconciliation) -> jobmanager_pb2.WorkerReturn:
        offer = recovery.offers.get(worker_id)
        if offer is None:
            kind = jobmanager_pb2.WORKER_RETURN_KIND_MISSING
        elif offer.late and offer.offered:
            kind = jobmanager_pb2.WORKER_RETURN_KIND_LATE
        elif offer.offered:
            kind = jobmanager_pb2.WORKER_RETURN_KIND_IN_TIME
        else:
            kind = jobmanager_pb2.WORKER_RETURN_KIND_EMPTY
        return jobmanager_pb2.WorkerReturn(
            worker_id=worker_id,
            kind=kind,
            after_ms=self._worker_after_ms.get(worker_id, -1),
            partitions_offered=offer.offered if offer else 0,
            partitions_accepted=offer.accepted if offer else 0,
        )

    def _end_replay(self) -> None:
        if not self._log_read:
            self._log_read = True
            self._end_phase("replay")

    def _end_phase(self, name: str) -> None:
        now_s = self._clock.monotonic_s()
        self._add_phase(name, now_s - self._phase_began_s)
        self._phase_began_s = now_s

    def _add_phase(self, name: str, duration_s: float) -> None:
        self.report.phases.add(name=name, duration_ms=round(duration_s * 1000))


def newest_reports(
    reports: Sequence[jobmanager_pb2.RecoveryReport],
) -> Sequence[jobmanager_pb2.RecoveryReport]:
    """As many of the last reports as are kept: at most 100, and at most 16 MB."""
    kept, room_bytes = 0, REPORTS_BYTES_MAX - _REPORTS_OVERHEAD_BYTES
    for report in reversed(reports[-RECOVERY_REPORTS_MAX:]):
        room_bytes -= report.ByteSize() + _REPORT_FRAMING_BYTES
        if room_bytes < 0:
            break
        kept += 1
    return reports[len(reports) - kept :]
