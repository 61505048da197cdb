"""The JobManager's side of one registered TaskManager: orders go out one call at a time, in
order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from holdover.coordination.heartbeat import RpcFailureCounter
from holdover.ids import AttemptKey
from holdover.runtime import Runtime
from holdover.runtime.log import Log
from holdover.v1 import (
    common_pb2,
    shuffle_service_pb2,
    shuffle_service_pb2_grpc,
    taskmanager_pb2,
    taskmanager_pb2_grpc,
)
from jobmanager.scheduler.signals import ShuffleLoad

DEPLOY_BYTES_MAX = 3 * 1024 * 1024
KEYS_PER_CALL_MAX = 1000
RETRY_DELAY_S = 0.1
#: A TaskManager that looks for a leader tries at least once a second.
REGISTER_AGAIN_TIMEOUT_S = 3.0
#: How long one attempt's output may take to be copied from a shuffle service to another.
COPY_TIMEOUT_S = 600.0

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class DeployOrder:
    """Start an attempt; `refused(reason)` if the TaskManager does not take it."""

    task: taskmanager_pb2.TaskDeployment
    refused: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """Cancel an attempt; `unknown()` if it does not run there."""

    key: AttemptKey
    unknown: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ReleaseOrder:
    """Delete the partitions of attempts."""

    keys: tuple[AttemptKey, ...]


@dataclass(frozen=True, slots=True)
class ReleaseJobOrder:
    """Delete all of a job."""

    job_id: str


#: After these a call may be answered another time.
_TO_REPEAT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


class CopyingEnded(Exception):
    """A shuffle service copies no more; says why."""


Order = DeployOrder | CancelOrder | ReleaseOrder | ReleaseJobOrder


@dataclass(slots=True)
class WorkerFacts:
    """What a TaskManager last said of itself."""

    disk_free_bytes: int = 0
    loop_lag_ms: int = 0
    #: Of finished partitions, beyond what it is to hold.
    partition_bytes_over: int = 0
    last_heartbeat_s: float = 0.0
    #: Of a shuffle service.
    shuffle: taskmanager_pb2.ShuffleServiceLoad | None = None


@dataclass(frozen=True, slots=True)
class WorkerCallbacks:
    """What the connection tells its owner."""

    lost: Callable[[WorkerConnection, str], None]
    #: It lives, and is about to register again with all that it holds.
    registration_given_up: Callable[[WorkerConnection], None]
    deposed: Callable[[], None]


class WorkerConnection:
    """One registration of one TaskManager, or of one shuffle service: a worker without slots."""

    def __init__(
        self,
        runtime: Runtime,
        header: taskmanager_pb2.RegisterHeader,
        registration_id: str,
        epoch: int,
        call_timeout_s: float,
        failure_threshold: int,
        callbacks: WorkerCallbacks,
    ) -> None:
        self.worker_id = header.resource_id
        self.incarnation = header.incarnation
        self.address = header.address
        self.data_address = header.data_address
        self.slots = header.slots
        self.registration_id = registration_id
        self.is_shuffle_service = header.kind == common_pb2.WORKER_KIND_SHUFFLE_SERVICE
        self.facts = WorkerFacts(
            last_heartbeat_s=runtime.clock.monotonic_s(),
            shuffle=header.shuffle if self.is_shuffle_service else None,
        )
        #: Set once the TaskManager knows that it is registered: only then it takes tasks.
        self.session_open = False
        self.closed = asyncio.Event()
        #: Set when the TaskManager is to say anew what it holds.
        self.register_again = asyncio.Event()
        self._epoch = epoch
        self._call_timeout_s = call_timeout_s
        self._failures = RpcFailureCounter(failure_threshold)
        self._callbacks = callbacks
        self._channel = runtime.network.channel(header.address)
        self._executor = taskmanager_pb2_grpc.TaskExecutorStub(self._channel)
        #: Both kinds of workers hold partitions, and answer to the same calls about them.
        self._holder = (
            shuffle_service_pb2_grpc.ShuffleServiceStub(self._channel)
            if self.is_shuffle_service
            else self._executor
        )
        self._calls: dict[type, Callable[..., Awaitable[None]]] = {
            DeployOrder: self._deploy,
            CancelOrder: self._cancel,
            ReleaseOrder: self._release,
            ReleaseJobOrder: self._release_job,
        }
        self._orders: deque[Order] = deque()
        self._wake = asyncio.Event()

    @property
    def shuffle_load(self) -> ShuffleLoad | None:
        """What a shuffle service last told, as jobs want it; None for a TaskManager."""
        told = self.facts.shuffle
        if told is None:
            return None
        return ShuffleLoad(told.room_bytes, told.open_puts, told.draining)

    @property
    def orders_waiting(self) -> int:
        """Orders that are not under way yet."""
        return len(self._orders)

    def give(self, order: Order) -> None:
        """Queue an order. The queue holds at most what the scheduler has slots and partitions
        for.
        """
        self._orders.append(order)
        self._wake.set()

    async def close(self) -> None:
        """Say no more to the TaskManager; orders that wait are dropped (their attempts are
        lost).
        """
        self.closed.set()
        self.register_again.set()
        self._orders.clear()
        await self._channel.close()

    async def run(self) -> None:
        """Carry orders out until the TaskManager is lost or the connection is closed."""
        while not self.closed.is_set():
            await self._wake.wait()
            self._wake.clear()
            while self._orders and not self.closed.is_set():
                await self._carry_out(self._next_batch())
        # A closed connection has nothing left to do; its owner cancels this loop.
        await asyncio.Event().wait()

    async def copy_partitions(
        self, keys: tuple[AttemptKey, ...], target: common_pb2.PartitionLocation
    ) -> AsyncIterator[shuffle_service_pb2.CopyPartitionsResponse]:
        """Have a shuffle service copy attempts' output to another; says of each when it is over.

        Beside the queue of orders: it may take long. Raises `CopyingEnded` when not all are over.
        """
        request = shuffle_service_pb2.CopyPartitionsRequest(
            leader_epoch=self._epoch,
            registration_id=self.registration_id,
            attempts=[key.to_proto() for key in keys],
            target=target,
        )
        copier = shuffle_service_pb2_grpc.ShuffleServiceStub(self._channel)
        answers = aiter(copier.CopyPartitions(request, timeout=COPY_TIMEOUT_S * len(keys)))
        try:
            for _ in keys:
                async with asyncio.timeout(COPY_TIMEOUT_S):
                    answer = await anext(answers, None)
                if answer is None:
                    raise CopyingEnded("the shuffle service ended the call")
                yield answer
        except TimeoutError as error:
            raise CopyingEnded(f"no answer for {COPY_TIMEOUT_S:g} s") from error
        except grpc.aio.AioRpcError as error:
            self._failed(error)
            raise CopyingEnded(error.details() or error.code().name) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self.closed.is_set() or (task is not None and task.cancelling()):
                raise
            # Not this task was cancelled, but the call, with its channel.
            raise CopyingEnded("the shuffle service is gone") from error

    async def confirm(self) -> None:
        """Ask whether the TaskManager lives, until it answers or counts as lost."""
        request = taskmanager_pb2.PingRequest(
            leader_epoch=self._epoch, registration_id=self.registration_id
        )
        while not self.closed.is_set():
            try:
                answer = await self._holder.Ping(request, timeout=self._call_timeout_s)
            except grpc.aio.AioRpcError as error:
                self._failed(error)
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            self._failures.success()
            if not answer.registered:
                await self._await_registration()
            return

    async def _await_registration(self) -> None:
        """It lives, but took the leader for lost: it is about to register again, with all that it
        holds, which is not lost while it is (P23). Another connection takes over then.
        """
        _log.warning("taskmanager has given its registration up", worker=self.worker_id)
        self._callbacks.registration_given_up(self)
        try:
            async with asyncio.timeout(REGISTER_AGAIN_TIMEOUT_S):
                await self.closed.wait()
        except TimeoutError:
            self._callbacks.lost(self, "it has given its registration up")

    def _next_batch(self) -> list[Order]:
        """The longest run of orders of one kind that fits into one call."""
        first = self._orders.popleft()
        batch = [first]
        if not self._orders or isinstance(first, ReleaseJobOrder):
            return batch
        size, keys = _order_bytes(first), _order_keys(first)
        while self._orders:
            order = self._orders[0]
            size += _order_bytes(order)
            keys += _order_keys(order)
            too_large = size > DEPLOY_BYTES_MAX or keys > KEYS_PER_CALL_MAX
            if type(order) is not type(first) or too_large:
                break
            batch.append(self._orders.popleft())
        return batch

    async def _carry_out(self, batch: list[Order]) -> None:
        """Repeat a call until it is answered (receivers are idempotent), or the connection is
        closed.
        """
        call = self._calls[type(batch[0])]
        while True:
            try:
                await call(batch)
            except grpc.aio.AioRpcError as error:
                self._failed(error)
                if error.code() not in _TO_REPEAT:
                    return
            else:
                self._failures.success()
                return
            if self.closed.is_set():
                return
            await asyncio.sleep(RETRY_DELAY_S)

    def _failed(self, error: grpc.aio.AioRpcError) -> None:
        """A call failed: too often in a row, and the TaskManager is lost; refused, and we are
        deposed.
        """
        if self.closed.is_set():
            return
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            self._callbacks.deposed()
            return
        _log.debug("call failed", worker=self.worker_id, code=error.code().name)
        if self._failures.failure():
            self._callbacks.lost(self, f"calls fail: {error.details()}")

    async def _deploy(self, orders: list[DeployOrder]) -> None:
        # The request is a copy of the tasks, each of which names every input: it is not kept.
        answer = await self._executor.DeployTasks(
            taskmanager_pb2.DeployTasksRequest(
                leader_epoch=self._epoch,
                registration_id=self.registration_id,
                tasks=[order.task for order in orders],
            ),
            timeout=self._call_timeout_s,
        )
        if not answer.refusals:
            return
        refusals = {AttemptKey.from_proto(r.attempt): r.reason for r in answer.refusals}
        for order in orders:
            reason = refusals.get(AttemptKey.from_proto(order.task.attempt))
            if reason is not None:
                _log.warning("deployment refused", worker=self.worker_id, reason=reason)
                order.refused(reason)

    async def _cancel(self, orders: list[CancelOrder]) -> None:
        request = taskmanager_pb2.CancelTasksRequest(
            leader_epoch=self._epoch, attempts=[order.key.to_proto() for order in orders]
        )
        answer = await self._executor.CancelTasks(request, timeout=self._call_timeout_s)
        unknown = {AttemptKey.from_proto(attempt) for attempt in answer.unknown}
        for order in orders:
            if order.key in unknown:
                order.unknown()

    async def _release(self, orders: list[ReleaseOrder]) -> None:
        request = taskmanager_pb2.ReleasePartitionsRequest(
            leader_epoch=self._epoch,
            attempts=[key.to_proto() for order in orders for key in order.keys],
        )
        await self._holder.ReleasePartitions(request, timeout=self._call_timeout_s)

    async def _release_job(self, orders: list[ReleaseJobOrder]) -> None:
        (order,) = orders
        request = taskmanager_pb2.ReleaseJobRequest(leader_epoch=self._epoch, job_id=order.job_id)
        await self._holder.ReleaseJob(request, timeout=self._call_timeout_s)


def _order_bytes(order: Order) -> int:
    return order.task.ByteSize() if isinstance(order, DeployOrder) else 0


def _order_keys(order: Order) -> int:
    return len(order.keys) if isinstance(order, ReleaseOrder) else 1
