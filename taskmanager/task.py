"""A task process: runs one attempt after another for its TaskManager, in its main thread.

It is forked from a clean process (case P52) and speaks to its TaskManager over one message socket
only; what user code prints goes to the log. Whatever user code does, raise, exit, run out of
memory, fails that attempt alone. After a failure or a cancellation nothing of the attempt is left:
no partition, no staged file, no scratch file.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack, suppress
from types import FrameType

import pyarrow as pa

from holdover import task_context
from holdover.runtime.task_socket import TaskSocket
from holdover.runtime.transport_security import CredentialFiles, TransportSecurity
from holdover.v1.common_pb2 import FinishedExecution, ResultPartition
from holdover.v1.job_pb2 import JobVertex, Split
from holdover.v1.taskmanager_pb2 import SplitWanted, TaskEvent, TaskFailed, TaskProcessReady
from shuffle.environment import ResultWriter
from shuffle.errors import PartitionLost
from shuffle.finished_record import RecordWriter
from shuffle.flight_result_target import ShuffleServiceTarget
from shuffle.partition_index import PartitionMetrics
from taskmanager.operators.cancellation import Cancellation
from taskmanager.operators.chain import open_chain
from taskmanager.operators.duckdb_session import prepare_database
from taskmanager.operators.errors import TaskCancelled
from taskmanager.operators.sink import write_sink
from taskmanager.operators.stream import BatchStream, OperatorContext
from taskmanager.task_code import JobCode, JobCodeCache
from taskmanager.task_commands import Assignment, TaskCommands
from taskmanager.task_exchange import lost_inputs, open_inputs, open_outputs, open_target
from taskmanager.task_failure import failure_of

# What a grouped query over a source uses: one for its splits, one to combine their results.
_DATABASES_PREPARED = 2


def main(socket: TaskSocket, argv: list[str]) -> int:
    """The entry of a task process (`TaskProcessSpec.entry`); `argv` is not used."""
    # A task has one slot, and so one thread's worth of the processor.
    pa.set_cpu_count(1)
    security = TransportSecurity.inherited(os.environ)
    # The TaskManager checks the files; here they are only read.
    credentials = None if security is None else CredentialFiles(security, watched=False)
    return TaskRunner(socket, credentials).serve()


class TaskRunner:
    """Runs the attempts that come over a socket, until it is told to end."""

    def __init__(self, socket: TaskSocket, credentials: CredentialFiles | None) -> None:
        self._socket = socket
        self._credentials = credentials
        self._commands = TaskCommands(socket)
        self._codes = JobCodeCache()
        self._records = RecordWriter()
        self._interruptible: Cancellation | None = None

    def serve(self) -> int:
        """Runs attempts; returns the exit code of the process. Only in the main thread."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._commands.start()
        self._send(TaskEvent(ready=TaskProcessReady()))
        self._prepare()
        while (assignment := self._commands.next_assignment()) is not None:
            self._send(self._run(assignment))
            del assignment
            pa.default_memory_pool().release_unused()
        return 0

    def _prepare(self) -> None:
        """Does what the first query would have to wait for, as long as nobody waits for us."""
        for _ in range(_DATABASES_PREPARED):
            if self._commands.idle:
                prepare_database()

    def _send(self, event: TaskEvent) -> None:
        self._socket.send(event.SerializeToString())

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        """Ends the attempt that runs when it was cancelled; once, then its cleaning up is safe.

        SIGINT without a cancel command means nothing: it came before the command, which interrupts
        again, or after the end of the attempt.
        """
        cancellation = self._interruptible
        if cancellation is not None and cancellation.requested:
            self._interruptible = None
            raise TaskCancelled

    def _run(self, assignment: Assignment) -> TaskEvent:
        started_s = time.monotonic()
        attempt: _Attempt | None = None
        try:
            try:
                self._interruptible = assignment.cancellation
                assignment.cancellation.check()
                code = self._codes.get(assignment.run)
                attempt = _Attempt(
                    assignment, code, self._socket, self._credentials, self._records, started_s
                )
                finished = attempt.execute()
            finally:
                self._interruptible = None
            attempt.close()
            return TaskEvent(finished=finished)
        except BaseException as raised:  # noqa: BLE001  whatever user code raises fails its attempt alone
            self._interruptible = None
            if attempt is not None:
                attempt.discard()
            error = TaskCancelled() if assignment.cancellation.requested else raised
            where = attempt.where if attempt is not None else str(assignment.key)
            lost: list[str] = []
            if isinstance(error, PartitionLost):
                lost = lost_inputs(assignment.key.job_id, assignment.run, self._credentials)
            return TaskEvent(
                failed=TaskFailed(
                    attempt=assignment.run.deployment.attempt,
                    failure=failure_of(error, where, lost),
                )
            )
        finally:
            task_context.set_current(None)
            _flush_output()


class _Attempt:
    """One attempt from its inputs to its outputs."""

    def __init__(
        self,
        assignment: Assignment,
        code: JobCode,
        socket: TaskSocket,
        credentials: CredentialFiles | None,
        records: RecordWriter,
        started_s: float,
    ) -> None:
        self._assignment = assignment
        self._run = assignment.run
        self._code = code
        self._socket = socket
        self._credentials = credentials
        self._records = records
        self._started_s = started_s
        self._cleanup = ExitStack()
        self._writer: ResultWriter | None = None
        self._target: ShuffleServiceTarget | None = None
        self._context = OperatorContext(
            attempt=assignment.key,
            parallelism=self._run.deployment.parallelism,
            options=code.options,
            scratch_directory=self._run.scratch_directory,
            next_split=self._next_split,
            cancellation=assignment.cancellation,
            cleanup=self._cleanup,
        )
        self.where = f"vertex {assignment.key.vertex_id}, subtask {assignment.key.subtask}"

    def execute(self) -> FinishedExecution:
        """Runs the chain to its end and publishes what it wrote."""
        key = self._assignment.key
        deployment = self._run.deployment
        vertex = self._code.vertex(key.vertex_id)
        self.where = f"vertex {key.vertex_id} ({vertex.name}), subtask {key.subtask}"
        task_context.set_current(
            task_context.TaskContext(
                key.job_id,
                key.vertex_id,
                key.subtask,
                key.attempt,
                deployment.parallelism,
                key.epoch,
            )
        )
        inputs = open_inputs(self._context, self._code.graph, self._run, self._credentials)
        self._target = open_target(self._context, deployment, self._credentials)
        self._writer = open_outputs(self._context, vertex, self._run, inputs, self._target)
        rows_out = self._pull(vertex, open_chain(self._context, vertex, inputs))
        finished = FinishedExecution(
            attempt=deployment.attempt,
            splits=self._context.splits,
            staged_files=self._context.staged_files,
            rows_in=self._context.rows_in,
            rows_out=rows_out,
            duration_ms=int((time.monotonic() - self._started_s) * 1000),
            inputs_digest=deployment.inputs_digest,
            shape_digest=deployment.shape_digest,
            recovery_disabled=deployment.recovery_disabled,
        )
        if self._writer is not None:
            metrics = self._writer.commit()
            finished.partitions.extend(_partition(i, part) for i, part in enumerate(metrics))
        if self._target is not None:
            return self._target.publish(finished)
        if self._run.record_finished:
            self._records.write(self._run.shuffle_directory, finished)
        return finished

    def _pull(self, vertex: JobVertex, stream: BatchStream) -> int:
        """Writes what the chain gives; returns the number of rows."""
        if vertex.operators and vertex.operators[-1].HasField("sink"):
            last = vertex.operators[-1]
            return write_sink(self._context, last.name, last.sink, stream)
        if self._writer is not None and len(stream.schema):
            self._writer.declare_schema(stream.schema)
        rows = 0
        for batch in stream.batches:
            self._context.cancellation.check()
            rows += batch.num_rows
            if self._writer is not None:
                self._writer.write(batch)
        return rows

    def close(self) -> None:
        """Gives back what the attempt used; what it published stays."""
        self._cleanup.close()

    def discard(self) -> None:
        """Removes all that the attempt wrote; at a shuffle service, what it has not published."""
        self._context.staged_files.clear()
        if self._run.record_finished:
            with suppress(OSError):  # the TaskManager deletes it too, and says what it cannot
                self._records.delete(self._run.shuffle_directory, self._assignment.key)
        if self._writer is not None:
            self._writer.abort()
        if self._target is not None:
            self._target.discard(self._run.deployment.attempt)
        self._cleanup.close()
        shutil.rmtree(self._run.scratch_directory, ignore_errors=True)

    def _next_split(self) -> Split | None:
        """Asks the TaskManager, which asks the JobMaster; waits for the answer."""
        cancellation = self._assignment.cancellation
        answers = self._assignment.splits
        with cancellation.interrupting(lambda: answers.put(None)):
            wanted = SplitWanted(
                attempt=self._run.deployment.attempt, received=len(self._context.splits)
            )
            self._socket.send(TaskEvent(split_wanted=wanted).SerializeToString())
            split = answers.get()
        cancellation.check()
        return split


def _partition(output: int, metrics: PartitionMetrics) -> ResultPartition:
    return ResultPartition(
        output=output,
        subpartition_bytes=metrics.subpartition_bytes,
        rows=metrics.rows,
        data_bytes=metrics.data_bytes,
        index_crc32c=metrics.index_crc32c,
    )


def _flush_output() -> None:
    # User code may have closed or replaced them.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()
