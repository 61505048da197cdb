"""The ResourceManager service: what TaskManagers call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc
import grpc.aio

from holdover.coordination.rpc_call import RETRY_AFTER_METADATA
from holdover.errors import InvalidId
from holdover.ids import AttemptKey, resource_id
from holdover.v1 import common_pb2, taskmanager_pb2, taskmanager_pb2_grpc
from jobmanager.leader_state import LeadershipServices, LeaderState
from jobmanager.registration_admission import ComeAgain, RegistrationAdmission
from jobmanager.resource_manager import RegistrationOutdated
from jobmanager.scheduler import signals as sig
from jobmanager.worker_connection import WorkerConnection

REJECTED_PER_MESSAGE = 500
GRAPH_CHUNK_BYTES = 1024 * 1024
INVENTORY_EXECUTIONS_MAX = 1_000_000

Context = grpc.aio.ServicerContext[object, object]


class Inventory:
    """What one registration brings, gathered from its messages; complete or not at all (P23)."""

    def __init__(self) -> None:
        self.header: taskmanager_pb2.RegisterHeader | None = None
        self.finished: dict[str, list[common_pb2.FinishedExecution]] = {}
        self.running: dict[str, list[AttemptKey]] = {}
        self._finished_count = 0
        self._running_count = 0
        self.complete = False

    def add(self, message: taskmanager_pb2.RegisterRequest) -> None:
        """Take one message.

        Raises:
            ValueError: the messages are not a registration; says what is wrong.
        """
        part = message.WhichOneof("part")
        if self.complete or (part == "header") is not (self.header is None):
            raise ValueError(f"unexpected part {part!r} in a registration")
        if part == "header":
            resource_id(message.header.resource_id)
            _check_header(message.header)
            self.header = message.header
        elif part == "inventory":
            self._add_chunk(message.inventory)
        else:
            counts = (message.end.finished_count, message.end.running_count)
            if counts != (self._finished_count, self._running_count):
                raise ValueError(
                    f"the inventory is incomplete: {self._finished_count} finished and "
                    f"{self._running_count} running executions came, {counts} were announced"
                )
            self.complete = True

    def _add_chunk(self, chunk: taskmanager_pb2.InventoryChunk) -> None:
        for execution in chunk.finished:
            AttemptKey.from_proto(execution.attempt)
            self.finished.setdefault(execution.attempt.job_id, []).append(execution)
        for attempt in chunk.running:
            self.running.setdefault(attempt.job_id, []).append(AttemptKey.from_proto(attempt))
        self._finished_count += len(chunk.finished)
        self._running_count += len(chunk.running)
        if self._finished_count > INVENTORY_EXECUTIONS_MAX:
            raise ValueError(f"more than {INVENTORY_EXECUTIONS_MAX} finished executions")


def _check_header(header: taskmanager_pb2.RegisterHeader) -> None:
    if not header.incarnation:
        raise ValueError("header: incarnation must be given")
    if header.kind == common_pb2.WORKER_KIND_SHUFFLE_SERVICE:
        if header.slots or not header.HasField("shuffle"):
            raise ValueError("header: a shuffle service has no slots, and says its load")
    elif header.slots < 1:
        raise ValueError("header: slots must be given")


async def _tell_load(
    services: LeadershipServices, worker: WorkerConnection, job_ids: Iterable[str]
) -> bool:
    """Every job that uses shuffle services hears how one is.

    Returns whether nobody needs what it holds of these jobs, nor writes to it. A job that is known
    and does not run (it is parked) may go on later.
    """
    load = worker.shuffle_load
    if load is None:
        return False
    masters = services.dispatcher.masters()
    for master in masters:
        if master.scheduler.core.shuffle.external:
            await master.room()
            master.post(sig.ShuffleLoadTold(worker.worker_id, load))
    if not load.draining or any(m.scheduler.needs_worker(worker.worker_id) for m in masters):
        return False
    dispatcher = services.dispatcher
    return all(dispatcher.master(job) or not dispatcher.knows(job) for job in job_ids)


async def _make_room(
    services: LeadershipServices, request: taskmanager_pb2.HeartbeatRequest
) -> None:
    """Every job judges its own. What several of them free together may be more than is wanted: all
    of it is optional."""
    oldest: dict[str, list[AttemptKey]] = {}
    for attempt in request.oldest_finished:
        oldest.setdefault(attempt.job_id, []).append(AttemptKey.from_proto(attempt))
    for job_id, keys in oldest.items():
        master = services.dispatcher.master(job_id)
        if master is not None:
            bytes_over = request.partition_bytes_over
            await master.room()
            master.post(sig.RoomWanted(request.resource_id, bytes_over, keys))


class WorkerService(taskmanager_pb2_grpc.ResourceManagerServicer):
    """Serves TaskManagers while this process leads."""

    def __init__(self, state: LeaderState) -> None:
        self._state = state
        self._admission = RegistrationAdmission(state.runtime.clock)

    async def Register(  # noqa: N802
        self, request_iterator: AsyncIterator[taskmanager_pb2.RegisterRequest], context: Context
    ) -> AsyncIterator[taskmanager_pb2.RegisterResponse]:
        """See the proto."""
        inventory = Inventory()
        header = await _header_of(request_iterator, inventory, context)
        services = await self._state.leading(context, header.leader_epoch)
        try:
            async with self._admission.turn():
                # Not by `yield`: a call that is cancelled there would keep its turn.
                admitted = taskmanager_pb2.RegisterAdmitted(leader_epoch=services.epoch)
                await context.write(taskmanager_pb2.RegisterResponse(admitted=admitted))
                await _read(request_iterator, inventory, context)
                services = await self._state.leading(context, header.leader_epoch)
                worker, refreshed = services.resources.register(header)
                rejected = await self._tell_jobs(services, worker, inventory, refreshed)
        except RegistrationOutdated as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except ComeAgain as later:
            retry_after_ms = str(round(later.retry_after_s * 1000))
            context.set_trailing_metadata(((RETRY_AFTER_METADATA, retry_after_ms),))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(later))
        yield taskmanager_pb2.RegisterResponse(accepted=self._accepted(services, worker))
        for reason, attempts in rejected:
            for start in range(0, len(attempts), REJECTED_PER_MESSAGE):
                chunk = taskmanager_pb2.RejectedChunk(
                    attempts=attempts[start : start + REJECTED_PER_MESSAGE], reason=reason
                )
                yield taskmanager_pb2.RegisterResponse(rejected=chunk)

    def _accepted(
        self, services: LeadershipServices, worker: WorkerConnection
    ) -> taskmanager_pb2.RegisterAccepted:
        spread_s = self._admission.load.spread_s(services.resources.worker_count)
        return taskmanager_pb2.RegisterAccepted(
            leader_epoch=services.epoch,
            registration_id=worker.registration_id,
            heartbeat_interval_ms=round(services.resources.options.heartbeat_interval_s * 1000),
            heartbeat_timeout_ms=round(services.resources.options.heartbeat_timeout_s * 1000),
            reconnect_spread_ms=round(spread_s * 1000),
        )

    async def _tell_jobs(
        self,
        services: LeadershipServices,
        worker: WorkerConnection,
        inventory: Inventory,
        refreshed: bool,
    ) -> list[tuple[str, list[common_pb2.ExecutionAttempt]]]:
        """Every job hears of the worker and judges what it offers; unknown jobs are over."""
        rejected: list[tuple[str, list[common_pb2.ExecutionAttempt]]] = []
        for master in services.dispatcher.masters():
            answers = await master.register_worker(
                sig.WorkerRegistered(
                    worker.worker_id,
                    worker.data_address,
                    refreshed,
                    inventory.finished.get(master.job_id, ()),
                    inventory.running.get(master.job_id, ()),
                    worker.shuffle_load,
                )
            )
            rejected.extend(
                (answer.reason, [key.to_proto() for key in answer.keys]) for answer in answers
            )
        for job_id, executions in inventory.finished.items():
            if not services.dispatcher.knows(job_id):
                rejected.append(("job ended", [execution.attempt for execution in executions]))
        return rejected

    async def Heartbeat(  # noqa: N802
        self, request: taskmanager_pb2.HeartbeatRequest, context: Context
    ) -> taskmanager_pb2.HeartbeatResponse:
        """See the proto. A TaskManager that this leader does not know registers again (P20)."""
        services = await self._state.leading(context, request.leader_epoch)
        answer = taskmanager_pb2.HeartbeatResponse(leader_epoch=services.epoch)
        worker = services.resources.registered(request.resource_id, request.registration_id)
        if worker is None:
            answer.register_again = True
            return answer
        worker.facts.disk_free_bytes = request.disk_free_bytes
        worker.facts.loop_lag_ms = request.loop_lag_ms
        worker.facts.partition_bytes_over = request.partition_bytes_over
        services.resources.heartbeat(worker)
        if worker.is_shuffle_service:
            worker.facts.shuffle = request.shuffle
            answer.drained = await _tell_load(services, worker, request.job_ids)
        answer.ended_job_ids.extend(
            job_id for job_id in request.job_ids if not services.dispatcher.knows(job_id)
        )
        if request.oldest_finished:
            await _make_room(services, request)
        return answer

    async def Session(  # noqa: N802
        self, request: taskmanager_pb2.SessionRequest, context: Context
    ) -> AsyncIterator[taskmanager_pb2.SessionPulse]:
        """See the proto. Its end, for whatever reason, makes the leader look at once."""
        services = await self._state.leading(context, request.leader_epoch)
        worker = services.resources.registered(request.resource_id, request.registration_id)
        if worker is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "register again")
        services.resources.session_opened(worker)
        pulse = taskmanager_pb2.SessionPulse(leader_epoch=services.epoch)
        try:
            while not worker.register_again.is_set():
                yield pulse
                try:
                    async with asyncio.timeout(services.resources.options.heartbeat_interval_s):
                        await worker.register_again.wait()
                except TimeoutError:
                    continue
        finally:
            if self._state.services is services:
                services.resources.confirm(worker)

    async def ReportExecutions(  # noqa: N802
        self, request: taskmanager_pb2.ReportExecutionsRequest, context: Context
    ) -> taskmanager_pb2.ReportExecutionsResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        answer = taskmanager_pb2.ReportExecutionsResponse(leader_epoch=services.epoch)
        worker = services.resources.registered(request.resource_id, request.registration_id)
        if worker is None:
            answer.register_again = True
            return answer
        services.resources.heartbeat(worker)
        for report in request.reports:
            master = services.dispatcher.master(report.attempt.job_id)
            if master is None:
                continue
            await master.room()
            master.post(
                sig.ExecutionReported(
                    request.resource_id,
                    AttemptKey.from_proto(report.attempt),
                    report.state,
                    report.finished if report.HasField("finished") else None,
                    report.failure if report.HasField("failure") else None,
                )
            )
        return answer

    async def RequestSplit(  # noqa: N802
        self, request: taskmanager_pb2.RequestSplitRequest, context: Context
    ) -> taskmanager_pb2.RequestSplitResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        key = AttemptKey.from_proto(request.attempt)
        master = services.dispatcher.master(key.job_id)
        answer = taskmanager_pb2.RequestSplitResponse(leader_epoch=services.epoch)
        if master is None:
            answer.superseded = True
            return answer
        current, split = master.next_split(key, request.received)
        answer.superseded = not current
        if split is not None:
            answer.split.CopyFrom(split)
        return answer

    async def FetchJobGraph(  # noqa: N802
        self, request: taskmanager_pb2.FetchJobGraphRequest, context: Context
    ) -> AsyncIterator[taskmanager_pb2.FetchJobGraphResponse]:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        master = services.dispatcher.master(request.job_id)
        if master is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no job {request.job_id!r} runs")
        graph = master.job.graph.SerializeToString(deterministic=True)
        for start in range(0, len(graph), GRAPH_CHUNK_BYTES):
            yield taskmanager_pb2.FetchJobGraphResponse(
                chunk=graph[start : start + GRAPH_CHUNK_BYTES], leader_epoch=services.epoch
            )

    async def Unregister(  # noqa: N802
        self, request: taskmanager_pb2.UnregisterRequest, context: Context
    ) -> taskmanager_pb2.UnregisterResponse:
        """See the proto."""
        services = await self._state.leading(context, request.leader_epoch)
        worker = services.resources.registered(request.resource_id, request.registration_id)
        if worker is not None:
            services.resources.lose(worker, f"it left: {request.reason}")
        return taskmanager_pb2.UnregisterResponse(leader_epoch=services.epoch)


async def _header_of(
    requests: AsyncIterator[taskmanager_pb2.RegisterRequest], inventory: Inventory, context: Context
) -> taskmanager_pb2.RegisterHeader:
    """Read the first message; ends the call when it is no header."""
    try:
        inventory.add(await anext(requests))
    except StopAsyncIteration:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a registration needs a header")
    except (ValueError, InvalidId) as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    assert inventory.header is not None
    return inventory.header


async def _read(
    requests: AsyncIterator[taskmanager_pb2.RegisterRequest], inventory: Inventory, context: Context
) -> None:
    """Read all the rest; ends the call when it is no inventory."""
    try:
        async for message in requests:
            inventory.add(message)
    except (ValueError, InvalidId) as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    if not inventory.complete:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "a registration needs a header and an end"
        )
