"""Attempts while they run: each in a task process, from deployment until that has let go."""

from __future__ import annotations

import asyncio
import enum
import posixpath
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from google.protobuf.message import DecodeError

from holdover.coordination.rpc_call import CallFailed
from holdover.ids import AttemptKey
from holdover.runtime import (
    Disk,
    ExitStatus,
    TaskProcess,
    TaskProcessesUnavailable,
    TaskProcessGone,
    TaskProcessPool,
)
from holdover.runtime.log import Log
from holdover.runtime.supervisor import Supervisor
from holdover.v1.common_pb2 import (
    FAILURE_KIND_TASK,
    Failure,
    FinishedExecution,
)
from holdover.v1.taskmanager_pb2 import (
    CancelTask,
    RequestSplitResponse,
    SplitAnswer,
    TaskCommand,
    TaskDeployment,
    TaskEvent,
)
from shuffle.deletions import delete_attempt
from taskmanager.job_graphs import CachedJobGraph, JobGraphs, JobGraphUnavailable
from taskmanager.working_directory import WorkingDirectory

#: A killed process that is still there after this time is left to the operating system.
_KILL_TIMEOUT_S = 10.0
#: A process that closed its socket is about to end; after this time it is killed.
_CLOSED_TIMEOUT_S = 1.0

_log = Log(__name__)


class CancelReason(enum.Enum):
    """Why an attempt was stopped."""

    REQUESTED = "the JobManager asked for it"
    SUPERSEDED = "another attempt has taken its place"
    JOBMANAGER_LOST = "the JobManager was lost"
    RELEASED = "the job was released"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How an attempt ended: exactly one of `finished` and `failure`, or neither (cancelled)."""

    finished: FinishedExecution | None = None
    failure: Failure | None = None


@dataclass(slots=True, eq=False)
class AttemptRun:
    """One attempt in its slot."""

    key: AttemptKey
    #: Let go once its process has it: it names every input, of which there may be thousands.
    deployment: TaskDeployment | None
    #: Whether its output goes to a shuffle service, rather than stay here.
    output_leaves: bool
    cancel_reason: CancelReason | None = None
    process: TaskProcess | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def is_cancelled(self) -> bool:
        """Whether it was told to stop."""
        return self.cancel_reason is not None


class SplitSource(Protocol):
    """Where source tasks get their splits from: the JobMaster, through the connection."""

    async def request_split(self, key: AttemptKey, received: int) -> RequestSplitResponse:
        """The next split; waits for a leader as long as it takes. Raises `CallFailed`."""
        ...


class AttemptRuns:
    """All attempts that occupy slots.

    `on_running` is told when a process has the attempt; `on_end` when it is over, before the slot
    counts as free, with everything but a finished attempt's output cleaned up.
    """

    def __init__(
        self,
        *,
        pool: TaskProcessPool,
        graphs: JobGraphs,
        disk: Disk,
        directory: WorkingDirectory,
        data_address: str,
        supervisor: Supervisor,
        splits: SplitSource,
        cancellation_timeout_s: float,
        on_running: Callable[[AttemptRun], None],
        on_end: Callable[[AttemptRun, RunEnd], Awaitable[None]],
    ) -> None:
        self._pool = pool
        self._graphs = graphs
        self._disk = disk
        self._directory = directory
        self._data_address = data_address
        self._supervisor = supervisor
        self._splits = splits
        self._cancellation_timeout_s = cancellation_timeout_s
        self._on_running = on_running
        self._on_end = on_end
        self._runs: dict[AttemptKey, AttemptRun] = {}

    def start(self, key: AttemptKey, deployment: TaskDeployment) -> None:
        """Run the attempt; its slot is occupied already."""
        run = AttemptRun(key, deployment, deployment.HasField("shuffle_target"))
        self._runs[key] = run
        self._supervisor.start(f"attempt {key}", self._run(run))

    def get(self, key: AttemptKey) -> AttemptRun | None:
        """The run of an attempt that is not over."""
        return self._runs.get(key)

    def cancel(self, key: AttemptKey, reason: CancelReason) -> bool:
        """Stop the attempt; false when it does not run here. The first reason counts, except that
        a release is final."""
        run = self._runs.get(key)
        if run is None:
            return False
        first = run.cancel_reason is None
        if first or reason is CancelReason.RELEASED:
            run.cancel_reason = reason
        if first and run.process is not None:
            self._supervisor.start(f"cancellation of {key}", self._stop(run, run.process))
        return True

    async def wait_until_over(self, job_id: str) -> None:
        """Wait until no attempt of the job occupies a slot."""
        for run in [run for key, run in self._runs.items() if key.job_id == job_id]:
            await run.over.wait()

    async def remove_output(self, key: AttemptKey) -> None:
        """Delete all that the attempt may have written: partitions, scratch and staged files."""
        graph = self._graphs.cached(key.job_id)
        try:
            await self._disk.remove_tree(self._scratch(key), missing_ok=True)
            if graph is None:
                return
            outputs = graph.outputs.get(key.vertex_id, 0)
            await delete_attempt(self._disk, self._directory.shuffle, key, outputs)
            for path in graph.sink_paths.get(key.vertex_id, ()):
                await self._disk.remove_tree(_staging(path, key), missing_ok=True)
        except OSError as error:
            _log.error("cannot delete the output of an attempt", attempt=key, error=error)

    # ------------------------------------------------------------------ one attempt

    async def _run(self, run: AttemptRun) -> None:
        end = await self._end_of(run)
        await self._on_end(run, end)
        del self._runs[run.key]
        run.over.set()

    async def _end_of(self, run: AttemptRun) -> RunEnd:
        try:
            graph = await self._graphs.get(run.key.job_id)
            if run.is_cancelled():
                return RunEnd()
            process = await self._pool.acquire()
        except (JobGraphUnavailable, TaskProcessesUnavailable) as error:
            return _failed(str(error))
        if run.is_cancelled():
            self._pool.release(process)
            return RunEnd()
        run.process = process
        end: RunEnd | None = None
        try:
            end = await self._converse(run, process, graph)
        finally:
            if end is not None and end.finished is not None and not run.is_cancelled():
                self._pool.release(process)
            else:
                # A process in which something went wrong is not trusted with the next task.
                process.kill()
        if end.finished is None:
            await self._gone(process)
            await self.remove_output(run.key)
        elif run.is_cancelled():
            await self._gone(process)
        return end

    async def _converse(
        self, run: AttemptRun, process: TaskProcess, graph: CachedJobGraph
    ) -> RunEnd:
        try:
            await process.send(self._run_command(run, graph))
            run.deployment = None
            self._on_running(run)
            end = await self._hear(run, process)
        except TaskProcessGone:
            end = None
        except (DecodeError, CallFailed) as error:
            return _failed(str(error))
        return _died(await self._status(process)) if end is None else end

    def _run_command(self, run: AttemptRun, graph: CachedJobGraph) -> bytes:
        command = TaskCommand()
        # In its place: a deployment may name thousands of inputs, and would be copied once more.
        task = command.run
        if run.deployment is not None:
            task.deployment.CopyFrom(run.deployment)
        task.job_graph_path = graph.path
        task.shuffle_directory = self._directory.shuffle
        task.data_address = self._data_address
        task.options.extend(graph.task_options)
        task.scratch_directory = self._scratch(run.key)
        # Nobody will look for what a job without recovery, or a worker whose name was made up, has
        # left behind.
        task.record_finished = graph.recovery_enabled and not self._directory.generated
        return command.SerializeToString()

    async def _hear(self, run: AttemptRun, process: TaskProcess) -> RunEnd | None:
        """Listen to the process until the attempt ends, and bring it the splits that it wants
        meanwhile; None when the process is gone. Raises `TaskProcessGone`, `CallFailed`."""
        hearing: asyncio.Task[bytes | None] | None = None
        asking: asyncio.Task[RequestSplitResponse] | None = None
        try:
            while True:
                if asking is None:
                    # Nothing to wait for beside it: most attempts never need a task for this.
                    message = await (process.receive() if hearing is None else hearing)
                else:
                    hearing = hearing or asyncio.ensure_future(process.receive())
                    await asyncio.wait([hearing, asking], return_when=asyncio.FIRST_COMPLETED)
                    if asking.done():
                        await self._pass_on(run, process, asking.result())
                        asking = None
                    if not hearing.done():
                        continue
                    message = hearing.result()
                hearing = None
                if message is None:
                    return None
                event = TaskEvent.FromString(message)
                if event.HasField("finished"):
                    return _finished(run, event.finished)
                if event.HasField("failed"):
                    return RunEnd(failure=event.failed.failure)
                if event.HasField("split_wanted") and asking is None:
                    request = self._splits.request_split(run.key, event.split_wanted.received)
                    asking = asyncio.ensure_future(request)
        finally:
            left = [task for task in (hearing, asking) if task is not None]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    async def _pass_on(
        self, run: AttemptRun, process: TaskProcess, response: RequestSplitResponse
    ) -> None:
        if response.superseded:
            self.cancel(run.key, CancelReason.SUPERSEDED)
            return
        split = response.split if response.HasField("split") else None
        command = TaskCommand(split=SplitAnswer(split=split))
        await process.send(command.SerializeToString())

    async def _stop(self, run: AttemptRun, process: TaskProcess) -> None:
        """Ask the task to stop; kill its process when it does not."""
        try:
            async with asyncio.timeout(self._cancellation_timeout_s):
                command = TaskCommand(cancel=CancelTask(attempt=run.key.to_proto()))
                await process.send(command.SerializeToString())
                process.interrupt()
                await run.over.wait()
        except TimeoutError:
            _log.warning("task ignores its cancellation, killing its process", attempt=run.key)
            process.kill()
        except TaskProcessGone:
            return

    async def _status(self, process: TaskProcess) -> ExitStatus:
        """How the process ended. One that only closed its socket is killed."""
        try:
            async with asyncio.timeout(_CLOSED_TIMEOUT_S):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await self._gone(process)

    async def _gone(self, process: TaskProcess) -> ExitStatus:
        try:
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                return await process.wait()
        except TimeoutError:
            _log.error("a killed task process does not end", pid=process.pid)
            return ExitStatus(code=None, signal=None)

    def _scratch(self, key: AttemptKey) -> str:
        name = f"{key.vertex_id}-{key.subtask}-{key.attempt}-{key.epoch}"
        return f"{self._directory.scratch}/{key.job_id}/{name}"


def _finished(run: AttemptRun, execution: FinishedExecution) -> RunEnd:
    if AttemptKey.from_proto(execution.attempt) != run.key:
        return _failed(f"the task process answered for another attempt than {run.key}")
    return RunEnd(finished=execution)


def _failed(reason: str) -> RunEnd:
    return RunEnd(failure=Failure(kind=FAILURE_KIND_TASK, message=reason))


def _died(status: ExitStatus) -> RunEnd:
    reason = f"task process {status.text}"
    if status.signal == signal.SIGKILL:
        reason += "; if nobody killed it, the machine was out of memory"
    return _failed(reason)


def _staging(sink_path: str, key: AttemptKey) -> str:
    name = f"{key.vertex_id}-{key.subtask}-{key.attempt}-{key.epoch}"
    return posixpath.join(sink_path, f".staging-{key.job_id}", name)
