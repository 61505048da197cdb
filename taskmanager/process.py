"""A TaskManager process: what it opens, in which order, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdover import config as options
from holdover.config import Configuration
from holdover.coordination.leader import LeaderService
from holdover.runtime import (
    PartitionServer,
    Runtime,
    Server,
    StorageNotWritable,
    TaskProcessPool,
    TaskProcessSpec,
)
from holdover.runtime.log import Log
from holdover.runtime.serving import BackgroundFailure, close_together, server_with_health
from holdover.runtime.supervisor import Supervisor
from holdover.runtime.transport_security import environment_of
from holdover.v1 import taskmanager_pb2
from holdover.v1.taskmanager_pb2_grpc import add_TaskExecutorServicer_to_server
from shuffle.partition_store import PartitionStore
from shuffle.stocktaking import take_stock
from taskmanager.executor_service import TaskExecutorService
from taskmanager.task_executor import Identity, TaskExecutor
from taskmanager.working_directory import WorkingDirectory

SERVICE_NAME = taskmanager_pb2.DESCRIPTOR.services_by_name["TaskExecutor"].full_name

#: Parts of an orderly end, which takes less than 5 s in all.
_UNREGISTER_TIMEOUT_S = 1.0
_SERVER_GRACE_S = 0.2
_CLOSE_TIMEOUT_S = 2.0
_REMOVE_TIMEOUT_S = 1.5

_TASK_ENTRY = "taskmanager.task:main"
# NumPy's masked arrays are imported by pyarrow when it first meets an array, which takes 30 ms.
_TASK_PRELOAD = ("taskmanager.task", "numpy.ma")
_NICE = 5

_log = Log(__name__)


class TaskManager:
    """One TaskManager with everything around its TaskExecutor.

    `failed` gets an exception when a background loop ended that must not: the process then ends.
    """

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        leader_service: LeaderService,
        task_entry: str = _TASK_ENTRY,
        task_preload: tuple[str, ...] = _TASK_PRELOAD,
    ) -> None:
        self._runtime = runtime
        self._configuration = configuration
        self._leader_service = leader_service
        self._task_entry = task_entry
        self._task_preload = task_preload
        configured = configuration.get(options.TASKMANAGER_RESOURCE_ID)
        self._generated = not configured
        self.resource_id = configured or f"tm-{runtime.randomness.token_hex(6)}"
        self.address = ""
        self.data_address = ""
        failure = BackgroundFailure()
        self.failed = failure.future
        self._supervisor = Supervisor("taskmanager", on_fatal=failure.loop_ended)
        #: Empty, and nowhere, until there is a directory.
        self._finished = PartitionStore("")
        self._stock_taken = False
        self._directory: WorkingDirectory | None = None
        self._pool: TaskProcessPool | None = None
        self._partition_server: PartitionServer | None = None
        self._server: Server | None = None
        self._executor: TaskExecutor | None = None

    @property
    def finished(self) -> PartitionStore:
        """What is held of finished attempts, to be read only."""
        return self._finished

    @property
    def directory(self) -> WorkingDirectory | None:
        """Where it keeps its files; None before `start`."""
        return self._directory

    @property
    def executor(self) -> TaskExecutor | None:
        """Who runs the tasks, to be read only; None before `start`."""
        return self._executor

    async def start(self) -> None:
        """Open everything and begin to look for a leader.

        Raises `ConfigurationError`, `StorageNotWritable`, `TaskProcessesUnavailable`,
        `AddressInUse`, `AddressUnavailable`; `stop` then closes what was opened.
        """
        config, runtime = self._configuration, self._runtime
        host = config.get(options.TASKMANAGER_HOST)
        bind_host = config.get(options.TASKMANAGER_BIND_HOST)
        directory = await WorkingDirectory.claim(
            runtime.disk,
            config.get(options.IO_TMP_DIRS),
            self.resource_id,
            generated=self._generated,
        )
        self._directory = directory
        self._finished = PartitionStore(directory.shuffle)
        await self._find_finished(directory)
        self._pool = await runtime.task_processes.open(self._task_spec(directory))
        self._partition_server = await runtime.partition_servers.start(
            bind_host, config.get(options.TASKMANAGER_DATA_PORT), self._finished.path_of
        )
        self.data_address = f"{host}:{self._partition_server.port}"
        self._executor = TaskExecutor(
            runtime,
            config,
            Identity(
                self.resource_id,
                runtime.randomness.token_hex(8),
                self.data_address,
                config.get(options.TASKMANAGER_NUMBER_OF_TASK_SLOTS),
            ),
            directory,
            self._pool,
            self._finished,
            self._supervisor,
            self._leader_service.retrieval(),
        )
        port = config.get(options.TASKMANAGER_RPC_PORT)
        self._server = await self._serving(f"{bind_host}:{port}", self._executor)
        self.address = f"{host}:{await self._server.start()}"
        self._executor.take_up_found()
        self._executor.start(self.address)
        self._supervisor.start("sweep", directory.sweep_neighbours())
        _log.info(
            "taskmanager ready",
            resource_id=self.resource_id,
            address=self.address,
            data_address=self.data_address,
        )

    async def _find_finished(self, directory: WorkingDirectory) -> None:
        """Hold what the process before this one has finished."""
        try:
            stock = await take_stock(self._runtime.disk, self._runtime.clock, directory.shuffle)
        except OSError as error:
            raise StorageNotWritable(directory.shuffle, error) from error
        for key, execution in stock.found.items():
            self._finished.add(key, execution)
        self._stock_taken = True

    async def stopped(self) -> str:
        """Wait until there is a reason to end: a background loop has failed."""
        await asyncio.wait([self.failed])
        return "a background loop has ended"

    async def stop(self, reason: str) -> None:
        """Leave the cluster, stop tasks and servers. Takes less than 5 s.

        Nothing is left on the disk but finished work that a process of the same resource id can
        offer again.
        """
        if self._executor is not None:
            await self._executor.leave(reason, _UNREGISTER_TIMEOUT_S)
        await self._supervisor.close()
        if self._executor is not None:
            await self._executor.close()
        await self._close_servers()
        if self._directory is not None:
            await self._leave(self._directory)

    async def _close_servers(self) -> None:
        closings: list[Coroutine[Any, Any, None]] = []
        if self._pool is not None:
            closings.append(self._pool.close())
        if self._server is not None:
            closings.append(self._server.stop(_SERVER_GRACE_S))
        if self._partition_server is not None:
            closings.append(self._partition_server.stop())
        await close_together(closings, _CLOSE_TIMEOUT_S)

    async def _leave(self, directory: WorkingDirectory) -> None:
        may_come_back = not directory.generated
        keeps = may_come_back and bool(self._finished.jobs or not self._stock_taken)
        try:
            async with asyncio.timeout(_REMOVE_TIMEOUT_S):
                await (directory.release() if keeps else directory.remove())
        except (OSError, TimeoutError) as error:
            _log.warning("the next start sweeps what is left", path=directory.path, error=error)

    async def _serving(self, bind_address: str, executor: TaskExecutor) -> Server:
        return await server_with_health(
            self._runtime.network,
            bind_address,
            SERVICE_NAME,
            add_TaskExecutorServicer_to_server,
            TaskExecutorService(executor),
        )

    def _task_spec(self, directory: WorkingDirectory) -> TaskProcessSpec:
        return TaskProcessSpec(
            entry=self._task_entry,
            preload=self._task_preload,
            log_path=directory.tasks_log,
            env=environment_of(self._configuration),
            cwd=directory.path,
            nice=_NICE,
            spare=self._configuration.get(options.TASKMANAGER_TASK_PROCESS_SPARE),
        )
