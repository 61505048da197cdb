"""The JobManager process: campaigns for leadership, and runs all jobs while it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from holdover import config as options
from holdover.config import Configuration
from holdover.coordination.leader import LeaderElection, LeaderService
from holdover.coordination.leader_services import cluster_directory
from holdover.runtime import ObjectStoreUnavailable, Runtime, Server
from holdover.runtime.log import Log
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.v1 import (
    jobmanager_pb2,
    jobmanager_pb2_grpc,
    taskmanager_pb2,
    taskmanager_pb2_grpc,
)
from jobmanager.client_service import ClientService
from jobmanager.dispatcher import Dispatcher
from jobmanager.job_master import JobMaster, JobServices
from jobmanager.job_store import JobStore
from jobmanager.leader_state import LeadershipServices, LeaderState
from jobmanager.leading import Leading
from jobmanager.resource_manager import ResourceManager, ResourceManagerOptions
from jobmanager.scheduler.core import Decision
from jobmanager.scheduler.signals import Signal
from jobmanager.worker_service import WorkerService

STOP_GRACE_S = 1.0
SERVICE_NAMES = (
    jobmanager_pb2.DESCRIPTOR.services_by_name["JobManager"].full_name,
    taskmanager_pb2.DESCRIPTOR.services_by_name["ResourceManager"].full_name,
)

_log = Log(__name__)


class FatalError(Exception):
    """A background duty of the process ended; the process must end, naming it (P56)."""


class JobManager:
    """One process that can lead."""

    def __init__(
        self,
        runtime: Runtime,
        config: Configuration,
        version: str,
        started_s: float,
        leader_service: LeaderService,
    ) -> None:
        """`started_s` is when the process started, on the runtime's monotonic clock."""
        self._runtime = runtime
        self._config = config
        self._started_s = started_s
        self._version = version
        self._failure: asyncio.Future[None] | None = None
        self._supervisor = Supervisor("jobmanager", self._on_fatal)
        self._server: Server | None = None
        self._state: LeaderState | None = None
        self._health = health.aio.HealthServicer()
        self._storage = cluster_directory(config)
        self._leader_service = leader_service
        self._election: LeaderElection = leader_service.election()
        self._stopping = asyncio.Event()
        #: See `JobServices.on_step`; set it before `run`.
        self.on_step: Callable[[JobMaster, Signal, Decision], None] | None = None

    @property
    def address(self) -> str:
        """host:port under which others reach this process; known once it serves."""
        assert self._state is not None
        return self._state.address

    @property
    def services(self) -> LeadershipServices | None:
        """The services of the present leadership, to be read only; None while it does not lead."""
        return self._state.services if self._state is not None else None

    async def run(self) -> None:
        """Serve, campaign and lead, over and over, until `stop` is called.

        Raises:
            AddressInUse: another process has the port.
            StorageNotWritable, StorageError: the storage directory cannot be used.
            FatalError: a background duty ended.
        """
        self._failure = asyncio.get_running_loop().create_future()
        state = await self._serve()
        self._supervisor.run("loop lag", state.lag.run, RestartPolicy())
        try:
            while not self._stopping.is_set():
                await self._lead_once(state)
        finally:
            await self._election.step_down()
            await self._supervisor.close()
            if self._server is not None:
                await self._server.stop(STOP_GRACE_S)

    def stop(self) -> None:
        """End in an orderly way: flush, step down, leave every job to the next leader."""
        self._stopping.set()

    async def _serve(self) -> LeaderState:
        host = self._config.get(options.JOBMANAGER_BIND_HOST)
        port = self._config.get(options.JOBMANAGER_RPC_PORT)
        self._server = self._runtime.network.server(f"{host}:{port}")
        advertised = self._config.get(options.JOBMANAGER_RPC_ADDRESS)
        state = LeaderState(self._runtime, self._config, advertised, self._version)
        self._server.add(jobmanager_pb2_grpc.add_JobManagerServicer_to_server, ClientService(state))
        self._server.add(
            taskmanager_pb2_grpc.add_ResourceManagerServicer_to_server, WorkerService(state)
        )
        self._server.add(health_pb2_grpc.add_HealthServicer_to_server, self._health)
        self._server.add(
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server,
            reflection.aio.ReflectionServicer(
                (*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            ),
        )
        bound = await self._server.start()
        state.address = f"{advertised}:{bound}"
        self._state = state
        _log.info("jobmanager serves", address=state.address)
        return state

    async def _lead_once(self, state: LeaderState) -> None:
        """One campaign and, when it is won, one leadership."""
        await self._set_health(serving=False)
        self._supervisor.run("follow the leader", lambda: self._follow(state), RestartPolicy())
        campaign = asyncio.ensure_future(self._election.campaign(state.address))
        await self._first_of(campaign)
        await self._supervisor.cancel("follow the leader")
        if not campaign.done():
            campaign.cancel()
            await asyncio.wait([campaign])
            return
        leadership = campaign.result()
        if self._stopping.is_set():
            return
        supervisor = Supervisor(f"leadership {leadership.epoch}", self._on_fatal)
        try:
            services = await self._take_office(state, leadership.epoch, supervisor)
        except ObjectStoreUnavailable as error:
            _log.error(
                "cannot lead just now, campaigning again", epoch=leadership.epoch, error=error
            )
            state.services = None
            await supervisor.close()
            await self._election.step_down()
            return
        try:
            lost = asyncio.ensure_future(self._leadership_over(state))
            await self._first_of(lost)
            lost.cancel()
        finally:
            state.services = None
            await services.dispatcher.suspend()
            await supervisor.close()
            await self._election.step_down()

    async def _take_office(
        self, state: LeaderState, epoch: int, supervisor: Supervisor
    ) -> LeadershipServices:
        clock = self._runtime.clock
        leading_s = clock.monotonic_s()
        store = JobStore(self._runtime.disk, self._storage)
        await store.open()

        state.deposed.clear()
        resources = ResourceManager(
            self._runtime, epoch, self._resource_options(), supervisor, state.deposed.set
        )
        job_services = JobServices(
            self._runtime,
            epoch,
            store,
            resources,
            process_age_s=lambda: clock.monotonic_s() - self._started_s,
            leading_age_s=lambda: clock.monotonic_s() - leading_s,
            on_step=self.on_step,
            leading=Leading(self._election.is_leader, self._election.lost.is_set),
        )
        dispatcher = Dispatcher(job_services, self._config, supervisor)
        services = LeadershipServices(epoch, dispatcher, resources, store, clock.wall_ms())
        state.known_epoch, state.known_address = epoch, state.address
        state.services = services
        supervisor.run("watch heartbeats", resources.watch_heartbeats)
        supervisor.run("remember workers", dispatcher.remember_workers)
        await dispatcher.load()
        supervisor.run("remove leftovers", dispatcher.remove_leftovers)
        await self._set_health(serving=True)
        _log.info("jobmanager leads", epoch=epoch, jobs=len(dispatcher.masters()))
        return services

    def _resource_options(self) -> ResourceManagerOptions:
        get = self._config.get
        return ResourceManagerOptions(
            heartbeat_interval_s=get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=get(options.HEARTBEAT_TIMEOUT),
            rpc_failure_threshold=get(options.HEARTBEAT_RPC_FAILURE_THRESHOLD),
            call_timeout_s=get(options.RPC_CALL_TIMEOUT),
        )

    async def _follow(self, state: LeaderState) -> None:
        """While another process leads, know which, to tell clients."""
        async for record in self._leader_service.retrieval().changes():
            state.known_epoch, state.known_address = record.epoch, record.address

    async def _leadership_over(self, state: LeaderState) -> None:
        """Wait until this leadership is lost, or somebody has seen a newer one."""
        ends = [asyncio.ensure_future(e.wait()) for e in (self._election.lost, state.deposed)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _first_of(self, work: asyncio.Future[Any]) -> None:
        """Wait for the work, an order to stop, or a fatal error (which is raised)."""
        assert self._failure is not None
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            ends: list[asyncio.Future[Any]] = [work, stopping, self._failure]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if self._failure.done():
            self._failure.result()
        if work.done():
            work.result()

    async def _set_health(self, *, serving: bool) -> None:
        """A JobManager that does not lead is alive, and does not serve."""
        status = health_pb2.HealthCheckResponse
        for name in ("", *SERVICE_NAMES):
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            error = FatalError(f"background loop {name!r} ended: {exception!r}")
            error.__cause__ = exception
            self._failure.set_exception(error)
