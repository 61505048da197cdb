"""A recovery costs what it finds, not workers times subtasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2, job_pb2
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import failures
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.failover import RestartStrategy
from jobmanager.scheduler.reconciliation import WAIT_TIMER
from jobmanager.scheduler.scheduler import Scheduler
from jobmanager.scheduler.states import ExecutionState, JobState
from tests.doubles.scheduler_world import OPTIONS
from tests.unit.jobmanager.scheduler.job_graphs import FORWARD, HASH, connect, sink, source, stage
from tests.unit.jobmanager.scheduler.scenes import finished, initialized, replayed, state_changed

WORKERS = 200
PARALLELISM = 2000
Method = TypeVar("Method", bound=Callable[..., object])


def large_job() -> job_pb2.JobGraph:
    """s -> (forward) m -> k, 6,000 subtasks."""
    vertices = [source("s", PARALLELISM), stage("m", PARALLELISM), sink("k", PARALLELISM)]
    job = job_pb2.JobGraph(job_id="job", vertices=vertices)
    connect(job, "s", "m", FORWARD, 1)
    connect(job, "m", "k", HASH, PARALLELISM)
    return job


def large_log() -> list[events_pb2.JobEvent]:
    """s and m have finished, spread over all workers."""
    shapes = [
        initialized("s", PARALLELISM, splits=PARALLELISM),
        initialized("m", PARALLELISM, inputs=1),
        initialized("k", PARALLELISM, inputs=1),
    ]
    done = [
        finished(vertex_id, i, worker_id=f"tm-{i % WORKERS}", splits=[i] * (vertex_id == "s"))
        for vertex_id in "sm"
        for i in range(PARALLELISM)
    ]
    return [state_changed(JobState.RUNNING), *shapes, *done]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the graph was asked about single subtasks."""
    counted: Counter[str] = Counter()

    def counting(name: str, method: Method) -> Callable[..., object]:
        def wrapper(*arguments: object) -> object:
            counted[name] += 1
            return method(*arguments)

        return wrapper

    for name in ("inputs_available", "vertex_at", "needed"):
        monkeypatch.setattr(ExecutionGraph, name, counting(name, getattr(ExecutionGraph, name)))
    return counted


def test_each_subtask_is_looked_at_a_few_times_however_many_workers_register(
    looks: Counter[str],
) -> None:
    log = large_log()
    graph = replayed(large_job(), log)
    offers: dict[str, list[common_pb2.FinishedExecution]] = {}
    for event in log:
        if event.HasField("vertex_finished"):
            done = event.vertex_finished
            offers.setdefault(done.location.worker_id, []).append(done.execution)
    looks.clear()
    scheduler = Scheduler(graph, 2, OPTIONS, RestartStrategy(3, 1))
    scheduler.handle(sig.RecoveryStarted(tuple(offers)))
    silent = f"tm-{WORKERS - 1}"
    for worker_id, offered in offers.items():
        if worker_id != silent:
            scheduler.handle(
                sig.WorkerRegistered(worker_id, f"{worker_id}:1", refreshed=False, finished=offered)
            )
    decision = scheduler.handle(sig.TimerFired(WAIT_TIMER))
    resets = [e.vertex_reset for e in decision.events if e.HasField("vertex_reset")]
    assert {r.vertex_id: len(r.subtasks) for r in resets} == {"s": 10, "m": 10}
    assert max(looks.values()) <= 3 * 3 * PARALLELISM, looks


def test_no_event_tells_of_more_resets_than_a_replay_makes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "RESETS_AN_EVENT", 300)
    scheduler = Scheduler(replayed(large_job(), large_log()), 2, OPTIONS, RestartStrategy(3, 1))
    scheduler.handle(sig.RecoveryStarted(("tm-0",)))
    decision = scheduler.handle(sig.TimerFired(WAIT_TIMER))
    resets = [e.vertex_reset for e in decision.events if e.HasField("vertex_reset")]
    assert max(len(reset.subtasks) for reset in resets) == 300
    for vertex_id in "sm":
        subtasks = [i for reset in resets if reset.vertex_id == vertex_id for i in reset.subtasks]
        assert subtasks == [*range(PARALLELISM)]


def test_all_readers_are_told_the_same_producers() -> None:
    graph = replayed(large_job(), large_log())
    for vertex in list(graph.all_subtasks()):
        if vertex.finished is not None:
            graph.set_available(vertex, True)
    graph.take_readiness_changes()
    scheduler = Scheduler(graph, 1, OPTIONS, RestartStrategy(3, 1))
    scheduler.core.workers.update({f"tm-{i}": f"tm-{i}:1" for i in range(WORKERS)})
    scheduler.core.schedule_all()
    slots = tuple(sig.SlotId(f"tm-{i}", 0) for i in range(WORKERS))
    deployed = scheduler.handle(sig.SlotsGranted(slots)).actions
    gates = [a.deployment.inputs[0] for a in deployed if isinstance(a, act.Deploy)]
    assert len(gates) == WORKERS
    assert all(gate.subtasks == gates[0].subtasks for gate in gates)
    assert [len(gates[0].locations), len(gates[0].attempts)] == [WORKERS, PARALLELISM]


def test_a_finished_subtask_costs_a_look_at_its_reader(looks: Counter[str]) -> None:
    """However many subtasks its vertex has, and however many wait for slots."""
    graph = replayed(large_job(), large_log()[:4])
    scheduler = Scheduler(graph, 1, OPTIONS, RestartStrategy(3, 1))
    for i in range(WORKERS):
        scheduler.handle(sig.WorkerRegistered(f"tm-{i}", f"tm-{i}:1", refreshed=False))
    scheduler.core.schedule_all()
    slots = tuple(sig.SlotId(f"tm-{i}", 0) for i in range(WORKERS))
    deployed = scheduler.handle(sig.SlotsGranted(slots)).actions
    running = [a for a in deployed if isinstance(a, act.Deploy)]
    assert len(running) == WORKERS
    looks.clear()
    for deploy in running:
        key = AttemptKey.from_proto(deploy.deployment.attempt)
        execution = common_pb2.FinishedExecution(attempt=key.to_proto())
        execution.partitions.add(output=0, subpartition_bytes=[1])
        report = sig.ExecutionReported(
            deploy.slot.worker_id, key, ExecutionState.FINISHED, execution
        )
        scheduler.handle(report)
    assert graph.vertices["s"].finished_count == WORKERS
    assert sum(looks.values()) <= 6 * WORKERS, looks
