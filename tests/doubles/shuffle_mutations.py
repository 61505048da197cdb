"""Broken builds of what has to do with shuffle services. See `tests.doubles.mutations`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import Disk
from holdover.v1 import common_pb2, events_pb2
from jobmanager import worker_service
from jobmanager.leader_state import LeadershipServices
from jobmanager.scheduler.core import SchedulerCore
from jobmanager.scheduler.failures import FailureHandling
from jobmanager.scheduler.moved_partitions import MovedPartitions
from jobmanager.scheduler.shuffle_master import ExternalShuffle
from jobmanager.scheduler.vertices import ExecutionVertex, SubtaskId
from jobmanager.worker_connection import WorkerConnection
from shuffle import service as shuffle_service
from shuffle.incoming_partitions import IncomingPartitions
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, PART_SUFFIX
from shuffle.service import ShuffleService
from simulator.invariants.held import HeldIsWhole
from simulator.invariants.reruns import NoNeedlessRerun
from simulator.invariants.services import NothingLingers
from simulator.swarm import SWARM_EXTERNAL
from tests.doubles.mutation import Mutation, one


def _where_it_ran(self: ExternalShuffle, subtask: SubtaskId) -> str:
    return ""


_finish = SchedulerCore.finish
_lose_outputs = FailureHandling.lose_worker


def _finish_and_note(
    self: SchedulerCore,
    vertex: ExecutionVertex,
    execution: common_pb2.FinishedExecution,
    worker_id: str,
    **how: Any,
) -> None:
    if vertex.slot is not None:
        made = self.__dict__.setdefault("made_by", {}).setdefault(vertex.slot.worker_id, {})
        made[AttemptKey.from_proto(execution.attempt)] = None
    _finish(self, vertex, execution, worker_id, **how)


def _lose_what_it_made(self: FailureHandling, worker_id: str) -> None:
    _lose_outputs(self, worker_id)
    made = self._core.__dict__.get("made_by", {}).pop(worker_id, ())
    vertices = [(self._graph.find(key), key) for key in made]
    self.reset(
        (vertex, events_pb2.RESET_REASON_WORKER_LOST)
        for vertex, key in vertices
        if vertex is not None and vertex.finished is not None and vertex.key(key.job_id) == key
    )
    self._core.reschedule()


async def _publish_data_only(
    disk: Disk, directory: str, execution: common_pb2.FinishedExecution
) -> None:
    key = AttemptKey.from_proto(execution.attempt)
    for partition in execution.partitions:
        base = f"{directory}/{partition_name(key, partition.output)}"
        await disk.rename(base + DATA_SUFFIX + PART_SUFFIX, base + DATA_SUFFIX)
        await disk.remove(base + INDEX_SUFFIX + PART_SUFFIX)


def _needs_nothing(self: MovedPartitions, worker_id: str) -> bool:
    return False


def _keep_all(self: ShuffleService, keys: Sequence[AttemptKey]) -> None:
    """Nothing is deleted."""


def _nothing_outdated(self: IncomingPartitions, epoch: int) -> list[AttemptKey]:
    return []


_tell_load = worker_service._tell_load


async def _tell_load_and_keep(
    services: LeadershipServices, worker: WorkerConnection, job_ids: Iterable[str]
) -> bool:
    await _tell_load(services, worker, job_ids)
    return False


SHUFFLE_MUTATIONS = (
    Mutation(
        "output at a shuffle service counts as being with the TaskManager that has made it",
        NoNeedlessRerun,
        2,
        one(ExternalShuffle, "target_of", _where_it_ran),
        SWARM_EXTERNAL,
    ),
    Mutation(
        "what a lost TaskManager has made runs again, wherever it is",
        NoNeedlessRerun,
        18,
        lambda: [
            patch.object(SchedulerCore, "finish", _finish_and_note),
            patch.object(FailureHandling, "lose_worker", _lose_what_it_made),
        ],
        SWARM_EXTERNAL,
    ),
    Mutation(
        "a shuffle service may leave when it is asked to, whatever it holds",
        NoNeedlessRerun,
        3,
        one(MovedPartitions, "needs", _needs_nothing),
        SWARM_EXTERNAL,
    ),
    Mutation(
        "a shuffle service publishes data without their index",
        HeldIsWhole,
        2,
        one(shuffle_service, "publish_parts", _publish_data_only),
        SWARM_EXTERNAL,
    ),
    Mutation(
        "a shuffle service does not delete what its leader wants to be deleted",
        NothingLingers,
        1,
        one(ShuffleService, "release_attempts", _keep_all),
        scenario="lingering-output",
    ),
    Mutation(
        "a shuffle service keeps what was put for an earlier leader",
        NothingLingers,
        1,
        one(IncomingPartitions, "outdated", _nothing_outdated),
        scenario="../track_record/put-for-an-earlier-leader",
    ),
    Mutation(
        "a drained shuffle service is never told that it may leave",
        NothingLingers,
        1,
        one(worker_service, "_tell_load", _tell_load_and_keep),
        scenario="drained-service",
    ),
)
