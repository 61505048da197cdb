"""Where a test begins: a graph that some events have built, a world that has come so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, events_pb2, job_pb2
from jobmanager.scheduler.core import SchedulerOptions
from jobmanager.scheduler.execution_graph import ExecutionGraph
from jobmanager.scheduler.reconciliation import Reconciliation
from jobmanager.scheduler.states import ExecutionState, JobState
from tests.doubles.scheduler_world import OPTIONS, SchedulerWorld, Worker

Subtasks = Iterable[int]


def initialized(
    vertex_id: str, parallelism: int, *, inputs: int = 0, splits: int = 0
) -> events_pb2.JobEvent:
    """A vertex takes shape; each of its inputs is read whole or by index."""
    event = events_pb2.ExecutionJobVertexInitialized(
        vertex_id=vertex_id,
        parallelism=parallelism,
        input_ranges=[events_pb2.InputRanges()] * inputs,
        splits=[job_pb2.Split(index=i, start=i, end=i + 1) for i in range(splits)],
    )
    return events_pb2.JobEvent(vertex_initialized=event)


def finished(
    vertex_id: str,
    subtask: int,
    *,
    attempt: int = 0,
    epoch: int = 1,
    worker_id: str = "tm-0",
    splits: Subtasks = (),
    subpartition_bytes: Iterable[int] = (1,),
) -> events_pb2.JobEvent:
    """A subtask finishes with one partition."""
    key = AttemptKey("job", vertex_id, subtask, attempt, epoch)
    execution = common_pb2.FinishedExecution(attempt=key.to_proto(), splits=splits)
    execution.partitions.add(output=0, subpartition_bytes=subpartition_bytes)
    return events_pb2.JobEvent(
        vertex_finished=events_pb2.ExecutionVertexFinished(
            execution=execution, location=common_pb2.PartitionLocation(worker_id=worker_id)
        )
    )


def reset(vertex_id: str, *subtasks: int) -> events_pb2.JobEvent:
    """Subtasks go back to CREATED."""
    return events_pb2.JobEvent(
        vertex_reset=events_pb2.ExecutionVertexReset(vertex_id=vertex_id, subtasks=subtasks)
    )


def state_changed(state: JobState) -> events_pb2.JobEvent:
    """The job's state changes."""
    return events_pb2.JobEvent(job_state_changed=events_pb2.JobStateChanged(state=state.value))


def replayed(job: job_pb2.JobGraph, events: Iterable[events_pb2.JobEvent]) -> ExecutionGraph:
    """A fresh graph after these events."""
    graph = ExecutionGraph(job)
    for event in events:
        graph.apply(event)
    return graph


def graph_with(
    job: job_pb2.JobGraph, parallelism: int, done: Mapping[str, Subtasks]
) -> ExecutionGraph:
    """All vertices of one parallelism; these subtasks are finished and available."""
    graph = ExecutionGraph(job)
    for vertex in job.vertices:
        inputs = sum(edge.target_vertex_id == vertex.vertex_id for edge in job.edges)
        graph.apply(initialized(vertex.vertex_id, parallelism, inputs=inputs))
    for vertex_id, subtasks in done.items():
        for subtask in subtasks:
            graph.apply(finished(vertex_id, subtask, worker_id=f"tm-{subtask}"))
            graph.set_available(graph.vertex_at(vertex_id, subtask), True)
    return graph


def started(
    job: job_pb2.JobGraph,
    *,
    workers: int = 3,
    slots: int = 2,
    options: SchedulerOptions = OPTIONS,
) -> SchedulerWorld:
    """A world in which the job has begun on registered workers, and every flush is complete."""
    world = SchedulerWorld(job, workers=workers, slots=slots, options=options)
    world.flush_probability = 1.0
    world.lead()
    register(world)
    return world


def register(world: SchedulerWorld, *worker_ids: str) -> None:
    """These workers, or all, register, and all messages arrive."""
    for worker_id in worker_ids or world.workers:
        worker = world.workers[worker_id]
        worker.alive = True
        world.register(worker)
    world.deliver_pending()


def finish(world: SchedulerWorld, vertex_id: str, subtasks: Subtasks | None = None) -> None:
    """The vertex runs until all of its subtasks (or these) are finished."""
    left = None if subtasks is None else set(subtasks)

    def chosen(key: AttemptKey) -> bool:
        return key.vertex_id == vertex_id and (left is None or key.subtask in left)

    world.deliver_pending()
    while running := [(worker, key) for worker, key in world.tasks() if chosen(key)]:
        world.finish(*running[0])
        world.deliver_pending()
    owner = graph_of(world).vertices[vertex_id]
    wanted = range(owner.parallelism) if left is None else sorted(left)
    unfinished = [i for i in wanted if owner.subtasks[i].state is not ExecutionState.FINISHED]
    assert not unfinished, f"{vertex_id} {unfinished} cannot run: {world.describe()}"


def fire(world: SchedulerWorld, timer: str) -> None:
    """A timer runs out, and all that follows arrives."""
    world.fire(timer)
    world.deliver_pending()


def graph_of(world: SchedulerWorld) -> ExecutionGraph:
    """The present leader's graph."""
    assert world.scheduler is not None, "no leader"
    return world.scheduler.graph


def next_leader(world: SchedulerWorld, *, lost_events: int = 0) -> None:
    """The leader dies, and another has replayed the log; nobody has registered yet."""
    world.lose_leader(lost_events)
    world.lead()


def recovery_of(world: SchedulerWorld) -> Reconciliation:
    """The present leader's recovery."""
    assert world.scheduler is not None, "no leader"
    assert world.scheduler.reconciliation is not None, "it has started the job"
    return world.scheduler.reconciliation


def stored_by(world: SchedulerWorld, worker_id: str, vertex_id: str) -> list[int]:
    """Subtasks of a vertex whose output a worker holds."""
    return sorted(k.subtask for k in world.workers[worker_id].stored if k.vertex_id == vertex_id)


def holder_of(world: SchedulerWorld, vertex_id: str, subtask: int) -> tuple[Worker, AttemptKey]:
    """Who holds the present output of a subtask."""
    vertex = graph_of(world).vertex_at(vertex_id, subtask)
    return world.workers[vertex.stored_at], vertex.key("job")


def copied_as_second(holder: Worker, key: AttemptKey, other: Worker) -> AttemptKey:
    """A second attempt gives the same rows as the first."""
    second = key._replace(attempt=1)
    execution = common_pb2.FinishedExecution()
    execution.CopyFrom(holder.stored[key])
    execution.attempt.CopyFrom(second.to_proto())
    other.stored[second] = execution
    other.rows[second, 0] = holder.rows[key, 0]
    return second


def lose_output(world: SchedulerWorld, vertex_id: str, subtasks: Subtasks | None = None) -> None:
    """Files vanish at the workers that hold them; nobody knows yet."""
    world.workers_may_lose = True
    owner = graph_of(world).vertices[vertex_id]
    for subtask in range(owner.parallelism) if subtasks is None else subtasks:
        worker, key = holder_of(world, vertex_id, subtask)
        worker.delete(key)


def starts_of(world: SchedulerWorld, since: int = 0) -> list[tuple[str, int]]:
    """(vertex, subtask) of the attempts that were started, in order."""
    return [(key.vertex_id, key.subtask) for key in world.starts[since:]]


def resets_of(world: SchedulerWorld, since: int = 0) -> dict[tuple[str, str], list[int]]:
    """Subtasks that were reset, by vertex and reason."""
    resets: dict[tuple[str, str], list[int]] = {}
    for event in world.log[since:]:
        if event.HasField("vertex_reset"):
            reason = events_pb2.ResetReason.Name(event.vertex_reset.reason)
            key = (event.vertex_reset.vertex_id, reason.removeprefix("RESET_REASON_"))
            resets.setdefault(key, []).extend(event.vertex_reset.subtasks)
    return resets


def until(world: SchedulerWorld, condition: Callable[[], bool]) -> None:
    """Run tasks, the oldest first, until the condition holds."""
    for _ in range(1000):
        world.deliver_pending()
        if condition():
            return
        running = world.tasks()
        assert running, f"nothing runs: {world.describe()}"
        world.finish(*running[0])
    raise AssertionError(f"never so: {world.describe()}")
