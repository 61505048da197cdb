"""What one job has workers do, and what it hears of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2
from jobmanager.resource_manager import ResourceManager
from jobmanager.scheduler import actions as act
from jobmanager.scheduler import signals as sig
from jobmanager.worker_connection import CancelOrder, CopyingEnded, DeployOrder, ReleaseOrder


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """The orders of one job; each outcome that the scheduler must know is posted as a signal."""

    resources: ResourceManager
    post: Callable[[sig.Signal], None]

    def deploy(self, action: act.Deploy) -> bool:
        """Start an attempt; False if there is no such TaskManager."""

        def refused(reason: str) -> None:
            key = AttemptKey.from_proto(action.deployment.attempt)
            self.post(sig.DeploymentRefused(key, reason))

        if self.resources.order(action.slot.worker_id, DeployOrder(action.deployment, refused)):
            return True
        refused("the TaskManager is gone")
        return False

    def cancel(self, action: act.Cancel) -> None:
        """Cancel an attempt."""
        unknown = sig.CancellationUnknown(action.key)
        order = CancelOrder(action.key, lambda: self.post(unknown))
        if not self.resources.order(action.worker_id, order):
            self.post(unknown)

    def release(self, action: act.ReleasePartitions) -> None:
        """Delete partitions; what justifies it must be durable."""
        self.resources.order(action.worker_id, ReleaseOrder(action.keys))

    async def copy(self, action: act.CopyPartitions) -> None:
        """Copy output from one shuffle service to another; every attempt is answered once."""
        left = dict.fromkeys(action.keys)
        worker = self.resources.worker(action.worker_id)
        obstacle = "the shuffle service is gone"
        target = common_pb2.PartitionLocation(
            worker_id=action.target_id, data_address=action.target_address
        )
        copied = (action.worker_id, action.target_id)
        try:
            if worker is not None:
                async for answer in worker.copy_partitions(action.keys, target):
                    key = AttemptKey.from_proto(answer.attempt)
                    if key in left:
                        del left[key]
                        outcome = (answer.obstacle, answer.lost)
                        self.post(sig.PartitionsCopied(*copied, key, *outcome))
                obstacle = "the shuffle service did not answer for it"
        except CopyingEnded as error:
            obstacle = str(error)
        for key in left:
            self.post(sig.PartitionsCopied(*copied, key, obstacle))
