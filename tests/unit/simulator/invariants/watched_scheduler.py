"""A scheduler's small world, watched by the invariant that judges reruns."""

from __future__ import annotations

from holdover.ids import AttemptKey, partition_name
from holdover.v1 import job_pb2
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.core import Decision
from shuffle.partition_name import partition_base
from shuffle.partition_store import PartitionStore
from simulator.invariants.reruns import NoNeedlessRerun
from simulator.invariants.stored import as_it_is
from simulator.invariants.view import Step, WorkerView, at_once
from simulator.world.storage import SimulatedStorage
from tests.doubles.scheduler_world import SchedulerWorld, Worker
from tests.unit.simulator.invariants.known_cluster import KnownCluster, put


class WatchedWorld(SchedulerWorld):
    """Tells the invariant each step; its workers are the cluster's TaskManagers."""

    def __init__(self, job: job_pb2.JobGraph, seed: int) -> None:
        super().__init__(job, seed=seed)
        self.cluster = KnownCluster()
        self.cluster.submit(job)
        self.invariant = self.cluster.checked(NoNeedlessRerun)
        self.disks = {worker_id: SimulatedStorage() for worker_id in self.workers}

    def deliver(self, signal: sig.Signal) -> None:
        scheduler = self.scheduler
        assert scheduler is not None
        handle = scheduler.handle

        def handled(signal: sig.Signal) -> Decision:
            decision = handle(signal)
            self._look()
            self.invariant.step(
                Step(
                    f"jm#{self.epoch}",
                    self.cluster.now_s,
                    self.epoch,
                    scheduler.graph.job_id,
                    scheduler,
                    signal,
                    decision,
                )
            )
            return decision

        scheduler.handle = handled  # type: ignore[method-assign]
        try:
            super().deliver(signal)
        finally:
            scheduler.handle = handle  # type: ignore[method-assign]

    def fire(self, name: str) -> None:
        """Time passes until the timer runs out."""
        self.cluster.now_s += self.timers[name]
        super().fire(name)

    def _look(self) -> None:
        self.cluster.living = [
            self._view(worker) for worker in self.workers.values() if worker.alive
        ]

    def _view(self, worker: Worker) -> WorkerView:
        store = PartitionStore("/local/shuffle")
        disk = self.disks[worker.worker_id]
        for key, finished in worker.stored.items():
            store.add(key, finished)
            for output in range(len(finished.partitions)):
                _put_files(disk, key, output)
        return WorkerView(f"{worker.worker_id}#0", worker.worker_id, as_it_is(disk), store)


def _put_files(disk: SimulatedStorage, key: AttemptKey, output: int) -> None:
    base = partition_base("/local/shuffle", partition_name(key, output))
    if at_once(disk.stat(f"{base}.index")) is None:
        put(disk, f"{base}.index")
        put(disk, f"{base}.data")
