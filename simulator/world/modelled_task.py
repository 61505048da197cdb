"""A task process whose tasks are modelled: what it computes takes time and bytes, and passes rows.

MODEL: the process speaks the real one's messages and leaves the real one's files: partitions under
their names, staged sink files. An attempt reads its inputs, then takes the seconds that its
workload draws (the same as in the real operator), then writes the bytes it draws. Rows are
identities only (`simulator.world.rows`). Operators other than workloads pass all rows on, and a
vertex without a workload takes the time and writes the bytes of its job's `TaskModel.others`.
Sequences give at most `SEQUENCE_ROWS_MAX` of their numbers; other sources are not modelled and fail
the job. Key samples and range boundaries give no rows.

A failed or cancelled attempt leaves its files to the TaskManager, which deletes them as it does
after a task process that died. Not modelled: user code, memory, time on the disk for bytes that are
only counted, programs that ignore their cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from holdover.config import SHUFFLE_FETCH_RETRY_TIMEOUT, Configuration
from holdover.ids import AttemptKey
from holdover.v1.common_pb2 import FAILURE_KIND_TASK, Failure, FinishedExecution
from holdover.v1.job_pb2 import JobGraph, JobVertex, Split, Workload
from holdover.v1.taskmanager_pb2 import (
    RunTask,
    SplitWanted,
    TaskCommand,
    TaskEvent,
    TaskFailed,
    TaskProcessReady,
)
from shuffle.errors import OutputRefused, PartitionUnreachable
from simulator.world.disk import ProcessDisk
from simulator.world.modelled_inputs import InputFetcher, LostInputs
from simulator.world.modelled_outputs import OutputWriter
from simulator.world.modelled_vertex import ModelledVertex, TaskOutcome, WorkloadFailure
from taskmanager.operators.errors import JobError, TaskCancelled
from taskmanager.task_failure import failure_of

if TYPE_CHECKING:
    from simulator.world.task_processes import ModelledTaskSocket
    from simulator.world.world import World

_FIRST_PID = 1_000


@dataclass(frozen=True, slots=True)
class TaskProcessSettings:
    """What running a task costs beside its work, seconds; measured from the real one.

    Attributes:
        process_start_s: a new process.
        task_s: each attempt.
        partition_read_s: each partition that is read.
        byte_written_s: each byte of each output: making it, compressing, writing.
    """

    process_start_s: float = 0.02
    task_s: float = 0.004
    partition_read_s: float = 0.0003
    byte_written_s: float = 7e-9


@dataclass(frozen=True, slots=True)
class ModelledJob:
    """A job's graph, parsed once for all processes of a world."""

    graph: JobGraph
    vertices: dict[str, JobVertex]
    places: dict[str, int]

    def vertex(self, vertex_id: str) -> JobVertex:
        """The vertex; JobError when the job has none of this id."""
        if vertex_id not in self.vertices:
            raise JobError(f"the job has no vertex {vertex_id!r}")
        return self.vertices[vertex_id]


@dataclass(slots=True)
class TaskModel:
    """What all task processes of a world share.

    Attributes:
        settings: what running a task costs.
        others: by job id, what vertices without a workload take and write; as `default` otherwise.
    """

    settings: TaskProcessSettings = field(default_factory=TaskProcessSettings)
    others: dict[str, Workload] = field(default_factory=dict)
    default: Workload = field(default_factory=lambda: Workload(seconds=1, output_bytes=1 << 20))
    _jobs: dict[bytes, ModelledJob] = field(default_factory=dict)
    _retry_timeouts_s: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)
    _last_pid: int = _FIRST_PID - 1

    def next_pid(self) -> int:
        """The number of a new process."""
        self._last_pid += 1
        return self._last_pid

    def job(self, data: bytes, path: str) -> ModelledJob:
        """The job whose serialized graph this is. Raises JobError when it is none."""
        job = self._jobs.get(data)
        if job is None:
            try:
                graph = JobGraph.FromString(data)
            except DecodeError as error:
                raise JobError(f"{path} is not a job graph: {error}") from error
            vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
            places = {vertex_id: place for place, vertex_id in enumerate(vertices)}
            job = self._jobs[data] = ModelledJob(graph, vertices, places)
        return job

    def retry_timeout_s(self, run: RunTask) -> float:
        """How long a task tries to reach a holder that does not answer."""
        options = tuple([(entry.key, entry.value) for entry in run.options])
        timeout_s = self._retry_timeouts_s.get(options)
        if timeout_s is None:
            configuration = Configuration.from_entries(run.options)
            timeout_s = configuration.get(SHUFFLE_FETCH_RETRY_TIMEOUT)
            self._retry_timeouts_s[options] = timeout_s
        return timeout_s


def run_modelled_tasks(world: World, socket: ModelledTaskSocket) -> Coroutine[Any, Any, int]:
    """The program of a task process: runs attempts until it is told to end."""
    return _TaskRunner(world, socket).serve()


@dataclass(eq=False, slots=True)
class _Attempt:
    """One attempt in a task process."""

    key: AttemptKey
    #: The key, for people.
    name: str
    run: RunTask
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    split: asyncio.Future[Split | None] | None = None
    splits: list[int] = field(default_factory=list)


class _TaskRunner:
    """Reads commands while the attempt runs beside it."""

    def __init__(self, world: World, socket: ModelledTaskSocket) -> None:
        self._world = world
        self._socket = socket
        self._process = socket.process
        self._disk = ProcessDisk(world, socket.process)
        self._attempt: _Attempt | None = None
        #: The last job, by the path of its graph.
        self._job: tuple[str, ModelledJob] | None = None

    async def serve(self) -> int:
        """Returns the exit code of the process."""
        # A cancellation comes as a command; the signal beside it means nothing by itself.
        self._socket.on_interrupt = lambda: None
        self._process.on_end(self._on_end)
        self._send(TaskEvent(ready=TaskProcessReady()))
        while self._obey(await self._socket.receive()):
            pass
        return 0

    def _obey(self, message: bytes | None) -> bool:
        """Do what a command says; whether to go on. Nothing of it is kept by who waits for the
        next one: it may name thousands of inputs."""
        if message is None:
            return False
        command = TaskCommand.FromString(message)
        kind = command.WhichOneof("kind")
        attempt = self._attempt
        if kind == "run":
            key = AttemptKey.from_proto(command.run.deployment.attempt)
            self._attempt = started = _Attempt(key, str(key), command.run)
            started.task = self._process.spawn(self._run(started))
        elif kind == "split" and attempt is not None and attempt.split is not None:
            has_split = command.split.HasField("split")
            if not attempt.split.done():
                attempt.split.set_result(command.split.split if has_split else None)
        elif (
            kind == "cancel"
            and attempt is not None
            and attempt.task is not None
            and AttemptKey.from_proto(command.cancel.attempt) == attempt.key
        ):
            attempt.cancelled = True
            attempt.task.cancel()
        return kind != "shutdown"

    def _send(self, event: TaskEvent) -> None:
        self._socket.send(event.SerializeToString())

    # ------------------------------------------------------------------ one attempt

    async def _run(self, attempt: _Attempt) -> None:
        """From its first word to its last; an error of the model itself ends the process."""
        try:
            for observer in self._world.observers:
                deployment = attempt.run.deployment
                observer.attempt_started(self._socket.worker, deployment, self._world.now_s)
            self._note("begins", attempt)
            finished: FinishedExecution | None = None
            where = attempt.name
            failure = Failure()
            try:
                vertex = await self._vertex(attempt)
                key = attempt.key
                where = f"vertex {key.vertex_id} ({vertex.name}), subtask {key.subtask}"
                finished = await self._execute(attempt, vertex)
            except asyncio.CancelledError:
                if not attempt.cancelled:
                    raise
                failure = failure_of(TaskCancelled(), where)
            except LostInputs as error:
                failure = failure_of(error.first, where, error.names)
            except (PartitionUnreachable, OutputRefused, JobError) as error:
                failure = failure_of(error, where)
            except (WorkloadFailure, OSError) as error:
                message = f"{where}: {type(error).__name__}: {error}"
                failure = Failure(kind=FAILURE_KIND_TASK, message=message)
            self._attempt = None
            self._tell(attempt, finished, failure)
        except Exception as error:  # noqa: BLE001  for the world's failures
            self._process.loop.call_exception_handler(
                {"message": f"the model of {attempt.name} is wrong", "exception": error}
            )
            self._process.end()

    def _tell(
        self, attempt: _Attempt, finished: FinishedExecution | None, failure: Failure
    ) -> None:
        """What became of it: it finished, or has this failure."""
        if finished is not None:
            self._ended(attempt, "finished", finished)
            self._send(TaskEvent(finished=finished))
            return
        self._ended(attempt, "canceled" if attempt.cancelled else "failed", None)
        told = TaskFailed(attempt=attempt.run.deployment.attempt, failure=failure)
        self._send(TaskEvent(failed=told))

    async def _vertex(self, attempt: _Attempt) -> JobVertex:
        path = attempt.run.job_graph_path
        if self._job is None or self._job[0] != path:
            data = await self._disk.read(path)
            self._job = (path, self._world.task_model.job(data, path))
        return self._job[1].vertex(attempt.key.vertex_id)

    async def _execute(self, attempt: _Attempt, vertex: JobVertex) -> FinishedExecution:
        assert self._job is not None
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        model, run, key = self._world.task_model, attempt.run, attempt.key
        fetcher = InputFetcher(self._world, self._process, key, run, model.retry_timeout_s(run))
        inputs = await fetcher.read()
        splits = await self._splits(attempt, vertex)
        modelled = ModelledVertex(
            vertex, self._job[1].places[key.vertex_id], model.others.get(key.job_id, model.default)
        )
        outcome: TaskOutcome = modelled.outcome(key, inputs.by_input, splits)
        settings = model.settings
        seconds = settings.task_s + inputs.partitions * settings.partition_read_s + outcome.seconds
        seconds += settings.byte_written_s * outcome.output_bytes * max(1, len(vertex.outputs))
        await asyncio.sleep(seconds)
        if outcome.failure is not None:
            raise outcome.failure
        writer = OutputWriter(self._world, self._process, self._disk, key, run)
        finished = FinishedExecution(
            attempt=run.deployment.attempt,
            splits=attempt.splits,
            rows_in=inputs.rows + outcome.rows_from_splits,
            rows_out=len(outcome.rows),
            inputs_digest=run.deployment.inputs_digest,
            shape_digest=run.deployment.shape_digest,
            recovery_disabled=run.deployment.recovery_disabled,
        )
        if outcome.sink is not None:
            finished.staged_files.append(await writer.stage(outcome.sink, outcome))
        finished.duration_ms = int((loop.time() - began_s) * 1000)
        await writer.write(vertex, outcome, finished)
        return finished

    async def _splits(self, attempt: _Attempt, vertex: JobVertex) -> list[Split]:
        splits: list[Split] = []
        if vertex.operators and vertex.operators[0].HasField("source"):
            while (split := await self._next_split(attempt)) is not None:
                attempt.splits.append(split.index)
                splits.append(split)
        return splits

    async def _next_split(self, attempt: _Attempt) -> Split | None:
        attempt.split = asyncio.get_running_loop().create_future()
        wanted = SplitWanted(attempt=attempt.run.deployment.attempt, received=len(attempt.splits))
        self._send(TaskEvent(split_wanted=wanted))
        try:
            return await attempt.split
        finally:
            attempt.split = None

    # ------------------------------------------------------------------ telling

    def _on_end(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._ended(attempt, "lost", None)

    def _ended(self, attempt: _Attempt, end: str, execution: FinishedExecution | None) -> None:
        self._note(end, attempt)
        for observer in self._world.observers:
            observer.attempt_ended(self._socket.worker, attempt.key, end, execution)

    def _note(self, what: str, attempt: _Attempt) -> None:
        self._world.trace.note(self._process.name, f"attempt {what}", attempt.name)
