"""The gRPC face of a TaskManager: checks what comes in, and passes it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from holdover.ids import AttemptKey
from holdover.v1.taskmanager_pb2 import (
    CancelTasksRequest,
    CancelTasksResponse,
    DeployRefusal,
    DeployTasksRequest,
    DeployTasksResponse,
    TaskDeployment,
)
from holdover.v1.taskmanager_pb2_grpc import TaskExecutorServicer
from shuffle.holder_service import HolderCalls, HolderService, keys_of

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


class ExecutorCalls(HolderCalls, Protocol):
    """What the service passes calls to."""

    async def deploy(
        self, epoch: int, registration_id: str, tasks: list[tuple[AttemptKey, TaskDeployment]]
    ) -> list[tuple[AttemptKey, str]]:
        """Start attempts; those that are refused, each with the reason."""
        ...

    def cancel(self, key: AttemptKey) -> bool:
        """Begin to cancel; false when the attempt does not run here."""
        ...


class TaskExecutorService(HolderService, TaskExecutorServicer):
    """See the proto. Every call of a leader below the highest epoch seen is refused."""

    kind = "TaskManager"

    def __init__(self, calls: ExecutorCalls) -> None:
        super().__init__(calls)
        self._calls = calls

    async def DeployTasks(  # noqa: N802
        self, request: DeployTasksRequest, context: Context
    ) -> DeployTasksResponse:
        """Starts attempts; repeating it is allowed."""
        await self.admit(request.leader_epoch, context)
        keys = await keys_of((task.attempt for task in request.tasks), context)
        refused = await self._calls.deploy(
            request.leader_epoch,
            request.registration_id,
            list(zip(keys, request.tasks, strict=True)),
        )
        return DeployTasksResponse(
            leader_epoch=self._calls.epoch_seen,
            refusals=[
                DeployRefusal(attempt=key.to_proto(), reason=reason) for key, reason in refused
            ],
        )

    async def CancelTasks(  # noqa: N802
        self, request: CancelTasksRequest, context: Context
    ) -> CancelTasksResponse:
        """Begins to cancel attempts."""
        await self.admit(request.leader_epoch, context)
        keys = await keys_of(request.attempts, context)
        unknown = [key.to_proto() for key in keys if not self._calls.cancel(key)]
        return CancelTasksResponse(leader_epoch=self._calls.epoch_seen, unknown=unknown)
