"""Task processes that only exist in memory: what one does is named by the vertex that it runs.

finishes    publishes its partition and finishes
waits       writes part of a partition, waits to be cancelled, and then cleans up and fails
late        waits to be cancelled, and finishes all the same
stubborn    writes part of a partition and ignores its cancellation
dies        publishes a partition and is killed before it could say so
fails       fails with a traceback
splits      asks for splits until there are no more, and finishes
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import google_crc32c

from holdover.ids import AttemptKey, partition_name
from holdover.runtime import ExitStatus, TaskProcess, TaskProcessGone, TaskProcessSpec
from holdover.v1.common_pb2 import (
    FAILURE_KIND_CANCELED,
    FAILURE_KIND_TASK,
    Failure,
    FinishedExecution,
    ResultPartition,
)
from holdover.v1.taskmanager_pb2 import RunTask, SplitWanted, TaskCommand, TaskEvent, TaskFailed
from shuffle.finished_record import encode_record, record_path


class ScriptedTasks:
    """Both the way to start processes and their pool."""

    def __init__(self) -> None:
        self.processes: list[ScriptedProcess] = []
        self.idle: list[ScriptedProcess] = []
        #: Attempts in the order in which a process got them.
        self.runs: list[AttemptKey] = []

    async def open(self, spec: TaskProcessSpec) -> ScriptedTasks:
        """See `TaskProcesses.open`."""
        return self

    async def acquire(self) -> TaskProcess:
        """See `TaskProcessPool.acquire`."""
        if self.idle:
            return self.idle.pop()
        process = ScriptedProcess(self, pid=len(self.processes) + 1)
        self.processes.append(process)
        return process

    def release(self, process: TaskProcess) -> None:
        """See `TaskProcessPool.release`."""
        assert isinstance(process, ScriptedProcess)
        self.idle.append(process)

    async def close(self) -> None:
        """See `TaskProcessPool.close`."""
        for process in self.processes:
            process.kill()
            process.work.cancel()
        await asyncio.wait([process.work for process in self.processes] or [_nothing()])


def _nothing() -> asyncio.Future[None]:
    return asyncio.ensure_future(asyncio.sleep(0))


class ScriptedProcess:
    """One process."""

    def __init__(self, tasks: ScriptedTasks, pid: int) -> None:
        self.pid = pid
        self._tasks = tasks
        self._commands: asyncio.Queue[TaskCommand] = asyncio.Queue()
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._exit: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self.work = asyncio.ensure_future(self._serve())

    async def send(self, message: bytes) -> None:
        """See `TaskProcess.send`."""
        if self._exit.done():
            raise TaskProcessGone(self.pid)
        self._commands.put_nowait(TaskCommand.FromString(message))

    async def receive(self) -> bytes | None:
        """See `TaskProcess.receive`."""
        return await self._events.get()

    def interrupt(self) -> None:
        """See `TaskProcess.interrupt`; the cancel command says all here."""

    def kill(self) -> None:
        """See `TaskProcess.kill`."""
        if not self._exit.done():
            self._exit.set_result(ExitStatus(code=None, signal=signal.SIGKILL))
            self._events.put_nowait(None)

    async def wait(self) -> ExitStatus:
        """See `TaskProcess.wait`."""
        return await asyncio.shield(self._exit)

    def _say(self, event: TaskEvent) -> None:
        if not self._exit.done():
            self._events.put_nowait(event.SerializeToString())

    async def _serve(self) -> None:
        while True:
            command = await self._commands.get()
            if command.HasField("run"):
                await self._run(command.run)

    async def _run(self, run: RunTask) -> None:
        key = AttemptKey.from_proto(run.deployment.attempt)
        self._tasks.runs.append(key)
        base = Path(run.shuffle_directory) / partition_name(key, 0)
        base.parent.mkdir(exist_ok=True)
        splits: list[int] = []
        if key.vertex_id in ("waits", "stubborn", "late"):
            part = base.with_name(f"{base.name}.data.part")
            part.write_bytes(b"half")
            await self._cancelled()
            if key.vertex_id == "stubborn":
                await asyncio.Event().wait()
            part.unlink()
        if key.vertex_id in ("waits", "fails"):
            failure = Failure(kind=FAILURE_KIND_TASK, message="boom", traceback="at line 3")
            if key.vertex_id == "waits":
                failure = Failure(kind=FAILURE_KIND_CANCELED, message="cancelled")
            self._say(TaskEvent(failed=TaskFailed(attempt=key.to_proto(), failure=failure)))
            return
        while key.vertex_id == "splits":
            wanted = SplitWanted(attempt=key.to_proto(), received=len(splits))
            self._say(TaskEvent(split_wanted=wanted))
            command = await self._commands.get()
            if not command.split.HasField("split"):
                break
            splits.append(command.split.split.index)
        checksum = google_crc32c.value(b"all")
        base.with_name(f"{base.name}.data").write_bytes(b"all")
        index = b"all" + checksum.to_bytes(4, "little")
        base.with_name(f"{base.name}.index").write_bytes(index)
        if key.vertex_id == "dies":
            self.kill()
            return
        finished = FinishedExecution(
            attempt=key.to_proto(),
            partitions=[ResultPartition(output=0, data_bytes=3, index_crc32c=checksum)],
            splits=splits,
        )
        if run.record_finished:
            record = Path(record_path(run.shuffle_directory, key))
            record.write_bytes(encode_record(finished))
        self._say(TaskEvent(finished=finished))

    async def _cancelled(self) -> None:
        while not (await self._commands.get()).HasField("cancel"):
            pass
