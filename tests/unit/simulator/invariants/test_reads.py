"""What may be read, and of whom."""

from __future__ import annotations

from holdover.ids import AttemptKey, partition_name
from holdover.v1 import job_pb2, taskmanager_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.states import JobState
from simulator.invariants.reads import ReadsWhatCounts
from simulator.invariants.view import Invariant
from simulator.observer import PartitionRead
from tests.unit.jobmanager.scheduler.job_graphs import chain, dealt_out
from tests.unit.jobmanager.scheduler.scenes import finished, graph_with, reset
from tests.unit.simulator.invariants.known_cluster import (
    KnownCluster,
    attempt,
    execution,
    scheduler,
    step,
)

READER = attempt("m", 0)


def deployment(
    reader: AttemptKey, producers: list[AttemptKey], vertex_id: str = "s"
) -> taskmanager_pb2.TaskDeployment:
    gate = taskmanager_pb2.InputGate(
        source_vertex_id=vertex_id,
        subtasks=[key.subtask for key in producers],
        attempts=[key.attempt for key in producers],
        epochs=[key.epoch for key in producers],
        location_indexes=[0 for _ in producers],
    )
    return taskmanager_pb2.TaskDeployment(attempt=reader.to_proto(), inputs=[gate])


def reads(invariant: Invariant, reader: AttemptKey, producer: AttemptKey) -> None:
    invariant.partitions_read([PartitionRead(reader, partition_name(producer, 0), "tm-1:1", True)])


def test_a_finished_attempt_that_was_named_is_right_to_read() -> None:
    """The usual course."""
    cluster = KnownCluster()
    invariant = cluster.checked(ReadsWhatCounts)
    producer = attempt("s", 1)
    invariant.attempt_ended("tm-1", producer, "finished", execution(producer))
    invariant.attempt_started("tm-0", deployment(READER, [attempt("s", 0), producer]))
    reads(invariant, READER, producer)
    assert cluster.findings == []


def test_reading_an_attempt_that_has_not_finished_is_found() -> None:
    """Its files may be half of it."""
    cluster = KnownCluster()
    invariant = cluster.checked(ReadsWhatCounts)
    producer = attempt("s", 0)
    invariant.attempt_started("tm-0", deployment(READER, [producer]))
    reads(invariant, READER, producer)
    assert "whose producer has not finished" in cluster.findings[0]


def test_what_a_worker_offers_and_its_leader_takes_has_finished() -> None:
    """A shuffle service published it while its task was being cancelled."""
    for signal, findings in (
        (sig.WorkerRegistered("ss-0", "ss-0:1", refreshed=False), 0),
        (sig.JobStarted(), 1),
    ):
        cluster = KnownCluster()
        invariant = cluster.checked(ReadsWhatCounts)
        producer = attempt("s", 0)
        invariant.attempt_ended("tm-1", producer, "canceled", None)
        invariant.step(step(scheduler(), signal, events=[finished("s", 0)]))
        invariant.attempt_started("tm-0", deployment(READER, [producer]))
        reads(invariant, READER, producer)
        assert len(cluster.findings) == findings


def test_reading_another_attempt_than_was_named_is_found() -> None:
    """However finished it is."""
    cluster = KnownCluster()
    invariant = cluster.checked(ReadsWhatCounts)
    other = attempt("s", 0, number=1)
    invariant.attempt_ended("tm-1", other, "finished", execution(other))
    invariant.attempt_started("tm-0", deployment(READER, [attempt("s", 0)]))
    reads(invariant, READER, other)
    assert "which its deployment does not name" in cluster.findings[0]


def deployed(graph: ExecutionGraph, producers: list[AttemptKey]) -> KnownCluster:
    cluster = KnownCluster()
    action = act.Deploy(sig.SlotId("tm-0", 0), deployment(READER, producers))
    cluster.checked(ReadsWhatCounts).step(step(scheduler(graph), sig.JobStarted(), action))
    return cluster


def test_a_leader_deploys_to_read_what_is_current() -> None:
    """A producer that was reset, or has finished again, makes a deployment stale."""
    done = {"s": range(2)}
    producers = [attempt("s", 0), attempt("s", 1)]
    assert deployed(graph_with(chain(2), 2, done), producers).findings == []
    again = graph_with(chain(2), 2, done)
    again.apply(reset("s", 1))
    assert "s[1]#0@1, which is #1 CREATED" in deployed(again, producers).findings[0]


def indeterminate() -> job_pb2.JobGraph:
    """CHAIN(2) whose map may give other rows each time."""
    job = chain(2)
    job.vertices[1].operators[0].determinism = job_pb2.DETERMINISM_INDETERMINATE
    return job


def mixed(job: job_pb2.JobGraph, *, again: bool) -> KnownCluster:
    """k has read m's first attempts; m[1] has perhaps run again before the end."""
    cluster = KnownCluster()
    cluster.submit(job)
    invariant = cluster.checked(ReadsWhatCounts)
    producers, reader = [attempt("m", 0), attempt("m", 1)], attempt("k", 0)
    invariant.attempt_started("tm-0", deployment(reader, producers, "m"))
    for producer in producers:
        invariant.attempt_ended("tm-1", producer, "finished", execution(producer))
        reads(invariant, reader, producer)
    invariant.attempt_ended("tm-0", reader, "finished", execution(reader))
    graph = graph_with(job, 2, {"s": range(2), "m": range(2), "k": range(2)})
    if again:
        graph.apply(reset("m", 1))
        graph.apply(finished("m", 1, attempt=1))
    ended = act.EndJob(JobState.FINISHED, None)
    invariant.step(step(scheduler(graph), sig.CommitFinished(), ended))
    return cluster


def test_two_attempts_of_an_indeterminate_subtask_in_one_result_are_found() -> None:
    """Or of one whose rows are dealt out by position, in any order; else they are the same rows."""
    assert mixed(indeterminate(), again=False).findings == []
    assert mixed(chain(2), again=True).findings == []
    for job in (indeterminate(), dealt_out(2)):
        assert "two attempts that may give other rows" in mixed(job, again=True).findings[0]
