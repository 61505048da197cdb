"""Deliberately broken builds: each must be caught by the invariant that it breaks.

A mutation replaces parts of the services for the time of a `with`; everything else is what is
shipped. What a mutation breaks is a mistake that somebody could make: a guard left out, a clean-up
forgotten, a wait cut short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from holdover.coordination.job_leader import JobLeaderConnection, JobLeaderState
from holdover.coordination.jobmanager_connection import JobManagerConnection
from holdover.ids import AttemptKey
from holdover.runtime import Disk
from holdover.v1 import common_pb2, events_pb2, job_pb2, taskmanager_pb2
from jobmanager import job_recovery, sink_commit
from jobmanager.event_store import JobEventWriter
from jobmanager.event_store.errors import LogDamaged
from jobmanager.event_store.findings import LogFinding
from jobmanager.event_store.records import FRAME_OVERHEAD_BYTES, FrameDecoder
from jobmanager.job_manager import JobManager
from jobmanager.job_master import JobMaster
from jobmanager.job_store import JobStore
from jobmanager.leader_state import LeaderState
from jobmanager.recovery import ReplayedJob, replay_job
from jobmanager.resource_manager import ResourceManager
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import failures, returning_workers
from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.deployment import TaskDeployments
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import LostSubtask, ResetPlan, plan_resets
from jobmanager.scheduler.failures import FailureHandling
from jobmanager.scheduler.reconciliation import WAIT_TIMER, Reconciliation
from jobmanager.scheduler.returning_workers import ReturningWorkers
from jobmanager.scheduler.vertices import Edge, ExecutionVertex
from jobmanager.worker_connection import ReleaseOrder, WorkerConnection
from shuffle.deletions import Deletions
from simulator.invariants.bounds import QueuesAreBounded
from simulator.invariants.deletions import NothingIsDeletedEarly
from simulator.invariants.leadership import OneLeaderActs
from simulator.invariants.output import OutputIsComplete
from simulator.invariants.progress import JobsEnd, NoHiddenMistake
from simulator.invariants.reads import ReadsWhatCounts
from simulator.invariants.remains import NothingRemains
from simulator.invariants.replays import CutLogRecovers, StateEqualsReplay
from simulator.invariants.reruns import NoNeedlessRerun
from simulator.invariants.restarts import RestartFindsWork
from simulator.invariants.slots import NoJobStarves
from taskmanager.job_graphs import JobGraphs
from taskmanager.report_queue import ReportQueue
from taskmanager.working_directory import WorkingDirectory
from tests.doubles.mutation import Mutation, Patches, one
from tests.doubles.rare_mutations import RARE_MUTATIONS
from tests.doubles.shuffle_mutations import SHUFFLE_MUTATIONS

# ---------------------------------------------------------------------- output


async def _replay_without_ranges(
    disk: Disk, events_directory: str, job: job_pb2.JobGraph, *pause: Any
) -> ReplayedJob:
    replayed = await replay_job(disk, events_directory, job, *pause)
    for owner in replayed.graph.vertices.values():
        owner.input_bounds = [() for _ in owner.input_bounds]
    return replayed


# ---------------------------------------------------------------------- leadership


async def _never_over(self: JobManager, state: LeaderState) -> None:
    await asyncio.Event().wait()


def _admit_anybody(self: JobManagerConnection, epoch: int) -> None:
    self._epoch_seen = epoch


# ---------------------------------------------------------------------- reads


def _plan_for_determinate(
    graph: ExecutionGraph,
    lost: Sequence[LostSubtask],
    may_come_back: Callable[[ExecutionVertex], bool] = lambda _: False,
) -> ResetPlan:
    edges = [edge for owner in graph.vertices.values() for edge in owner.out_edges]
    differ = [edge.rows_differ for edge in edges]
    for edge in edges:
        edge.rows_differ = False
    try:
        return plan_resets(graph, lost, may_come_back)
    finally:
        for edge, rows_differ in zip(edges, differ, strict=True):
            edge.rows_differ = rows_differ


_gate_as_it_is = TaskDeployments._gate


def _gate_as_before(
    self: TaskDeployments, edge: Edge, vertex: ExecutionVertex
) -> taskmanager_pb2.InputGate:
    kept = self._gates.get(edge.index)
    return _gate_as_it_is(self, edge, vertex) if kept is None else kept.gate


# ---------------------------------------------------------------------- reruns and deletions


def _do_not_adopt(
    self: ReturningWorkers,
    vertex: ExecutionVertex,
    key: AttemptKey,
    execution: common_pb2.FinishedExecution,
    worker_id: str,
) -> bool:
    return False


def _does_not_find(self: Reconciliation, vertex: ExecutionVertex) -> None:
    """The partition stays awaited although its worker has come."""


_set_timer = JobMaster._set_timer


def _set_short_timer(self: JobMaster, action: act.SetTimer) -> None:
    short = replace(action, delay_s=action.delay_s / 20) if action.name == WAIT_TIMER else action
    _set_timer(self, short)


def _release_whoever_is_awaited(self: SchedulerCore) -> None:
    for vertex_id in list(self._to_release):
        del self._to_release[vertex_id]
        source = self.graph.vertices[vertex_id]
        readers = [self.graph.vertices[edge.target] for edge in source.out_edges]
        if not source.released and all(owner.all_finished for owner in (source, *readers)):
            self._release(source)


def _registered_without_its_timer(self: JobLeaderConnection, epoch: int) -> None:
    self._state = JobLeaderState.CONNECTED
    self._epoch = epoch


async def _empty_of_partitions_too(self: WorkingDirectory) -> None:
    for directory in (self.shuffle, self.scratch, self.graphs):
        await self._disk.remove_tree(directory, missing_ok=True)
        await self._disk.make_directories(directory)


async def _release_at_once(self: JobMaster) -> None:
    while True:
        await self._release_wake.wait()
        self._release_wake.clear()
        while self._releases:
            release = self._releases.popleft()
            self._services.resources.order(release.worker_id, ReleaseOrder(release.keys))


def _flush_some_day(self: JobEventWriter) -> None:
    """The interval will do."""


# ---------------------------------------------------------------------- the log

_append = JobMaster._append
_snapshot_subtasks = ExecutionGraph._snapshot_subtasks


def _append_without_resets(self: JobMaster, event: events_pb2.JobEvent) -> None:
    if not event.HasField("vertex_reset"):
        _append(self, event)


def _snapshot_without_the_last(self: ExecutionGraph, owner: Any) -> Iterator[Any]:
    events = list(_snapshot_subtasks(self, owner))
    return iter(events[:-2] if len(events) > 2 else events)


def _payload_without_crc(self: FrameDecoder, start: int, length: int) -> bytes | None:
    begin = start + FRAME_OVERHEAD_BYTES
    return bytes(self._buffer[begin : begin + length])


def _torn_is_damaged(path: str, decoder: FrameDecoder) -> LogFinding:
    raise LogDamaged(path, decoder.defect.offset if decoder.defect else 0, "the tail is torn")


# ---------------------------------------------------------------------- what remains


async def _keep_everything(self: JobStore, job_id: str) -> None:
    """Nothing is removed."""


async def _keep_staging(disk: Disk, job_id: str, output_directories: Sequence[str]) -> None:
    """Nothing is removed."""


async def _keep_graph(self: JobGraphs, job_id: str) -> None:
    self._cached.pop(job_id, None)


# ---------------------------------------------------------------------- bounds


def _forget_nothing(self: ReportQueue, taken: Sequence[tuple[AttemptKey, Any]]) -> None:
    self._urgent = 0


_lose_worker = ResourceManager.lose


def _lose_without_sharing(self: ResourceManager, worker: WorkerConnection, reason: str) -> None:
    with patch.object(self, "_share", lambda: None):
        _lose_worker(self, worker, reason)


# ---------------------------------------------------------------------- progress


def _hold_for_ever(self: FailureHandling, vertex: ExecutionVertex, delay_s: float) -> None:
    vertex.held = True


def _plan_without_inputs(
    graph: ExecutionGraph,
    lost: Sequence[LostSubtask],
    may_come_back: Callable[[ExecutionVertex], bool] = lambda _: False,
) -> ResetPlan:
    plan = plan_resets(graph, lost, may_come_back)
    closure = events_pb2.RESET_REASON_UPSTREAM_CLOSURE
    plan.resets = {subtask: why for subtask, why in plan.resets.items() if why != closure}
    return plan


async def _delete_once(self: Deletions) -> None:
    await self._added.wait()
    self._added.clear()
    while self._attempts:
        for file in self._attempts.popleft():
            await self._disk.remove(f"{self._shuffle_directory}/{file}")
    await asyncio.sleep(0)


def _plans(plan: Callable[..., ResetPlan]) -> Patches:
    return lambda: [
        patch.object(failures, "plan_resets", plan),
        patch.object(returning_workers, "plan_resets", plan),
    ]


MUTATIONS = (
    Mutation(
        "a recovered job forgets which part of its inputs each subtask reads",
        OutputIsComplete,
        302,
        one(job_recovery, "replay_job", _replay_without_ranges),
    ),
    Mutation(
        "a leader goes on when its leadership is lost",
        OneLeaderActs,
        589,
        one(JobManager, "_leadership_over", _never_over),
    ),
    Mutation(
        "a TaskManager takes orders of every epoch",
        OneLeaderActs,
        1798,
        one(JobManagerConnection, "admit", _admit_anybody),
    ),
    Mutation(
        "consumers of an indeterminate producer are not reset with it",
        ReadsWhatCounts,
        60,
        _plans(_plan_for_determinate),
    ),
    Mutation(
        "what subtasks read alike is remembered when a producer runs again",
        ReadsWhatCounts,
        1,
        one(TaskDeployments, "_gate", _gate_as_before),
    ),
    Mutation(
        "work that finished unlogged is not adopted",
        NoNeedlessRerun,
        21,
        one(ReturningWorkers, "_adopt", _do_not_adopt),
    ),
    Mutation(
        "what a worker brings back stays awaited",
        NoNeedlessRerun,
        21,
        one(Reconciliation, "found", _does_not_find),
    ),
    Mutation(
        "the wait for workers is over after a twentieth of its time",
        NoNeedlessRerun,
        507,
        one(JobMaster, "_set_timer", _set_short_timer),
    ),
    Mutation(
        "what has been read is deleted, whoever is awaited with what was made of it",
        NoNeedlessRerun,
        30,
        one(SchedulerCore, "release_certain", _release_whoever_is_awaited),
        scenario="../track_record/inputs-of-what-is-missing",
    ),
    Mutation(
        "the retention timer runs on after the TaskManager has registered",
        NothingIsDeletedEarly,
        283,
        one(JobLeaderConnection, "registered", _registered_without_its_timer),
    ),
    Mutation(
        "partitions are released while the reason waits in the buffer",
        NothingIsDeletedEarly,
        1946,
        lambda: [
            patch.object(JobMaster, "_carry_out_releases", _release_at_once),
            patch.object(JobEventWriter, "request_flush", _flush_some_day),
        ],
    ),
    Mutation(
        "a TaskManager that is started again sweeps its partitions with the rest",
        RestartFindsWork,
        76,
        one(WorkingDirectory, "_empty", _empty_of_partitions_too),
    ),
    Mutation(
        "a reset is not logged",
        StateEqualsReplay,
        60,
        one(JobMaster, "_append", _append_without_resets),
    ),
    Mutation(
        "a snapshot leaves out the last finished subtask of a vertex",
        StateEqualsReplay,
        21,
        one(ExecutionGraph, "_snapshot_subtasks", _snapshot_without_the_last),
    ),
    Mutation(
        "the CRC of a record is not checked",
        CutLogRecovers,
        9,
        one(FrameDecoder, "_sound_payload_at", _payload_without_crc),
    ),
    Mutation(
        "a torn tail counts as damage",
        CutLogRecovers,
        9,
        lambda: [patch("jobmanager.event_store.reader._torn_or_damaged", _torn_is_damaged)],
    ),
    Mutation(
        "the job's directory is not removed",
        NothingRemains,
        378,
        one(JobStore, "remove", _keep_everything),
    ),
    Mutation(
        "staged files are not removed",
        NothingRemains,
        378,
        one(sink_commit, "remove_staging", _keep_staging),
    ),
    Mutation(
        "a TaskManager keeps the graphs of ended jobs",
        NothingRemains,
        378,
        one(JobGraphs, "forget", _keep_graph),
    ),
    Mutation(
        "reports that the JobManager has taken stay in the queue",
        QueuesAreBounded,
        75,
        one(ReportQueue, "acknowledge", _forget_nothing),
    ),
    Mutation(
        "the slots of a lost TaskManager are not replaced by free ones",
        NoJobStarves,
        51,
        one(ResourceManager, "lose", _lose_without_sharing),
    ),
    Mutation(
        "a failed subtask is held back for ever",
        JobsEnd,
        1287,
        one(FailureHandling, "_hold", _hold_for_ever),
    ),
    Mutation(
        "the inputs of what runs again are not reset",
        JobsEnd,
        76,
        _plans(_plan_without_inputs),
    ),
    Mutation(
        "a background loop ends after its first work",
        NoHiddenMistake,
        9,
        one(Deletions, "run", _delete_once),
    ),
    *SHUFFLE_MUTATIONS,
    *RARE_MUTATIONS,
)
