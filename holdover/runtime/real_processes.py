"""A pool of task processes, with a supervised zygote behind it."""

from __future__ import annotations

import asyncio
from collections import deque

from holdover.runtime.errors import TaskProcessesUnavailable
from holdover.runtime.log import Log
from holdover.runtime.processes import TaskProcess, TaskProcessPool, TaskProcessSpec
from holdover.runtime.real_zygote import ForkedTaskProcess, RunningZygote
from holdover.runtime.supervisor import RestartPolicy, Supervisor

# Released processes that are kept for the next task; more are killed.
_IDLE_MAX = 64
_RELAUNCH = RestartPolicy(delay_first_s=0.1, delay_max_s=5.0, healthy_after_s=30.0)
# How long `acquire` waits for a zygote that has to be launched again.
_ACQUIRE_TIMEOUT_S = 30.0

_log = Log(__name__)


class ForkedTaskProcesses:
    """Task processes on this machine."""

    async def open(self, spec: TaskProcessSpec) -> TaskProcessPool:
        """See `TaskProcesses.open`."""
        return ForkedTaskProcessPool(spec, await RunningZygote.launch(spec))


class ForkedTaskProcessPool:
    """See `TaskProcessPool`. Launches its zygote again when that dies."""

    def __init__(self, spec: TaskProcessSpec, zygote: RunningZygote) -> None:
        self._spec = spec
        self._zygote: RunningZygote | None = zygote
        self._launched = asyncio.Condition()
        self._last_failure = ""
        self._idle: deque[ForkedTaskProcess] = deque()
        self._closed = False
        self._spares_wanted = asyncio.Event()
        self._spares_wanted.set()
        self._supervisor = Supervisor("task processes", on_fatal=self._on_fatal)
        self._supervisor.run("zygote", self._keep_zygote, restart=_RELAUNCH)
        self._supervisor.run("spares", self._keep_spares, restart=_RELAUNCH)

    async def acquire(self) -> TaskProcess:
        """See `TaskProcessPool.acquire`."""
        while self._idle:
            process = self._idle.popleft()
            if process.is_alive:
                self._spares_wanted.set()
                return process
            process.kill()
        try:
            async with asyncio.timeout(_ACQUIRE_TIMEOUT_S):
                process = await self._start_process()
        except TimeoutError as error:
            raise TaskProcessesUnavailable(
                f"none within {_ACQUIRE_TIMEOUT_S:.0f} s; last failure: {self._last_failure}"
            ) from error
        self._spares_wanted.set()
        return process

    def release(self, process: TaskProcess) -> None:
        """See `TaskProcessPool.release`."""
        assert isinstance(process, ForkedTaskProcess)
        if self._closed or not process.is_alive or len(self._idle) >= _IDLE_MAX:
            process.kill()
        else:
            self._idle.append(process)

    async def close(self) -> None:
        """See `TaskProcessPool.close`."""
        self._closed = True
        self._idle.clear()
        await self._supervisor.close()
        if self._zygote is not None:
            await self._zygote.close()

    async def _start_process(self) -> ForkedTaskProcess:
        while True:
            if self._closed:
                raise TaskProcessesUnavailable("the pool is closed")
            async with self._launched:
                await self._launched.wait_for(lambda: self._zygote is not None)
            zygote = self._zygote
            if zygote is None:
                continue
            try:
                return await zygote.start_process()
            except TaskProcessesUnavailable as error:
                self._last_failure = str(error)
                if not zygote.ended.is_set():
                    raise
            # Its end is known here a moment before the loop that replaces it has run.
            await asyncio.sleep(0)

    async def _keep_spares(self) -> None:
        while True:
            await self._spares_wanted.wait()
            self._spares_wanted.clear()
            while len(self._idle) < self._spec.spare:
                self._idle.append(await self._start_process())

    async def _keep_zygote(self) -> None:
        """Wait for the end of the zygote, or launch the next one; the supervisor's back-off is the
        pause between launches."""
        if self._zygote is None:
            try:
                zygote = await RunningZygote.launch(self._spec)
            except TaskProcessesUnavailable as error:
                self._last_failure = str(error)
                raise
            async with self._launched:
                self._zygote = zygote
                self._launched.notify_all()
            self._spares_wanted.set()
        zygote = self._zygote
        await zygote.ended.wait()
        self._zygote = None
        await zygote.close()
        raise TaskProcessesUnavailable("the process that makes them has ended")

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        raise AssertionError(f"{name} restarts for ever") from exception
