"""A ResourceManager in this event loop, with a clock that can jump, and jobs that only listen."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from holdover.runtime.real import SystemClock, real_runtime
from holdover.runtime.supervisor import Supervisor
from holdover.v1.taskmanager_pb2 import RegisterHeader
from jobmanager.resource_manager import ResourceManager, ResourceManagerOptions
from jobmanager.scheduler import signals as sig
from jobmanager.worker_connection import WorkerConnection

WAIT_TIMEOUT_S = 120.0
#: Nobody listens there.
NOWHERE = "127.0.0.1:1"


class JumpingClock(SystemClock):
    """The machine's clock, and what was added to it."""

    def __init__(self) -> None:
        self.added_s = 0.0

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return super().monotonic_s() + self.added_s


@dataclass
class ListeningJob:
    """A job that notes what it is told."""

    signals: list[sig.Signal] = field(default_factory=list)

    def granted(self) -> list[sig.SlotId]:
        """All slots that it was ever granted."""
        grants = [s for s in self.signals if isinstance(s, sig.SlotsGranted)]
        return [slot for grant in grants for slot in grant.slots]

    def lost(self) -> list[str]:
        """The workers that it was told are lost."""
        return [s.worker_id for s in self.signals if isinstance(s, sig.WorkerLost)]


@dataclass
class Resources:
    """The ResourceManager and what is around it."""

    manager: ResourceManager
    clock: JumpingClock
    supervisor: Supervisor

    def add_job(self, job_id: str, wanted: int) -> ListeningJob:
        """A job that wants so many slots."""
        job = ListeningJob()
        self.manager.add_job(job_id, job.signals.append)
        self.manager.declare(job_id, wanted)
        return job

    def register(
        self,
        worker_id: str = "tm-0",
        incarnation: str = "a",
        slots: int = 2,
        address: str = NOWHERE,
    ) -> WorkerConnection:
        """A TaskManager that has registered and knows it."""
        worker, _ = self.manager.register(header(worker_id, incarnation, slots, address))
        self.manager.session_opened(worker)
        return worker


def header(
    worker_id: str = "tm-0", incarnation: str = "a", slots: int = 2, address: str = NOWHERE
) -> RegisterHeader:
    """Who registers."""
    return RegisterHeader(
        resource_id=worker_id,
        incarnation=incarnation,
        address=address,
        data_address=NOWHERE,
        slots=slots,
    )


@asynccontextmanager
async def resources(
    *, interval_s: float = 0.04, timeout_s: float = 10.0, failures: int = 2
) -> AsyncIterator[Resources]:
    """A ResourceManager of epoch 1, whose loops end with the block."""
    clock = JumpingClock()
    ended: list[str] = []
    supervisor = Supervisor("test", lambda name, error: ended.append(f"{name}: {error!r}"))
    options = ResourceManagerOptions(interval_s, timeout_s, failures, call_timeout_s=1.0)
    runtime = dataclasses.replace(real_runtime(), clock=clock)
    manager = ResourceManager(runtime, 1, options, supervisor, deposed=lambda: None)
    supervisor.run("watch heartbeats", manager.watch_heartbeats)
    try:
        yield Resources(manager, clock, supervisor)
    finally:
        await asyncio.sleep(0)  # what has just been begun may begin
        for worker in manager.workers():
            await worker.close()
        await supervisor.close()
    assert ended == []


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that comes by itself, within a bound."""
    try:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not after {WAIT_TIMEOUT_S} s: {what}") from None
