"""The registered TaskManagers and their slots, shared out among jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdover.coordination.heartbeat import HeartbeatMonitor
from holdover.runtime import Runtime
from holdover.runtime.log import Log
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.v1 import jobmanager_pb2, taskmanager_pb2
from jobmanager.scheduler import signals as sig
from jobmanager.slot_ledger import SlotLedger
from jobmanager.slot_sharing import Demand, share_slots
from jobmanager.worker_connection import (
    Order,
    ReleaseJobOrder,
    WorkerCallbacks,
    WorkerConnection,
)

REGISTRATION_ID_BYTES = 8

_log = Log(__name__)


class RegistrationOutdated(Exception):
    """A later registration of the same TaskManager has come before this one."""


@dataclass(frozen=True, slots=True)
class ResourceManagerOptions:
    """Times in seconds."""

    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    rpc_failure_threshold: int
    call_timeout_s: float


class ResourceManager:
    """Who is there, and which job may use which slot. One leader's life long."""

    def __init__(
        self,
        runtime: Runtime,
        epoch: int,
        options: ResourceManagerOptions,
        supervisor: Supervisor,
        deposed: Callable[[], None],
    ) -> None:
        self.epoch = epoch
        self.options = options
        self._runtime = runtime
        self._supervisor = supervisor
        self._deposed = deposed
        self._workers: dict[str, WorkerConnection] = {}
        #: Incarnations that have registered with this leader, by resource id.
        self._known: dict[str, str] = {}
        #: Incarnation and number of the newest registration, by resource id.
        self._newest: dict[str, tuple[str, int]] = {}
        self._demands: dict[str, Demand] = {}
        self._ledger = SlotLedger()
        self._monitor = HeartbeatMonitor(options.heartbeat_timeout_s)
        self._posts: dict[str, Callable[[sig.Signal], None]] = {}
        #: Set whenever the set of registered workers changes.
        self.workers_changed = asyncio.Event()

    # Workers

    def workers(self) -> list[WorkerConnection]:
        """The registered TaskManagers and shuffle services, by resource id."""
        return [self._workers[worker_id] for worker_id in sorted(self._workers)]

    def taskmanagers(self) -> list[WorkerConnection]:
        """Those of them that have slots."""
        return [worker for worker in self.workers() if not worker.is_shuffle_service]

    def shuffle_services(self) -> list[WorkerConnection]:
        """Those of them that are shuffle services."""
        return [worker for worker in self.workers() if worker.is_shuffle_service]

    @property
    def shuffle_service_count(self) -> int:
        """How many of the registered workers are shuffle services."""
        return sum(worker.is_shuffle_service for worker in self._workers.values())

    @property
    def worker_count(self) -> int:
        """How many workers are registered."""
        return len(self._workers)

    def worker(self, worker_id: str) -> WorkerConnection | None:
        """The registered TaskManager of that resource id."""
        return self._workers.get(worker_id)

    def registered(self, worker_id: str, registration_id: str) -> WorkerConnection | None:
        """The TaskManager, if this is its present registration."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.register_again.is_set():
            return None
        return worker if worker.registration_id == registration_id else None

    def ask_to_register_again(self) -> None:
        """Let every TaskManager say anew what it holds."""
        for worker in self._workers.values():
            worker.register_again.set()

    def register(self, header: taskmanager_pb2.RegisterHeader) -> tuple[WorkerConnection, bool]:
        """Register a TaskManager; the second value says that this incarnation was here before
        (P22).

        A new incarnation under a known resource id replaces the old one, which is over from this
        moment, but for the finished work that the new one brings along. The same incarnation is
        refreshed: its slots count once, under a new registration.

        Raises `RegistrationOutdated` for one that was sent before another that has come already.
        """
        self._refuse_if_outdated(header)
        before = self._workers.get(header.resource_id)
        refreshed = self._known.get(header.resource_id) == header.incarnation
        if before is not None:
            self._drop(before)
            if refreshed:
                # Jobs still hold these slots; whether their attempts live, the inventory tells.
                self._ledger.close(before.worker_id)
            else:
                self._ledger.remove(before.worker_id)
                self._tell_all(sig.WorkerRestarted(before.worker_id))
                # As after a loss: whoever has lost slots may have others at once.
                self._share()
        worker = WorkerConnection(
            self._runtime,
            header,
            self._runtime.randomness.token_hex(REGISTRATION_ID_BYTES),
            self.epoch,
            self.options.call_timeout_s,
            self.options.rpc_failure_threshold,
            WorkerCallbacks(self.lose, self._registration_given_up, self._deposed),
        )
        if not refreshed:
            self._ledger.add(worker.worker_id, worker.slots)
        self._workers[worker.worker_id] = worker
        self._known[worker.worker_id] = worker.incarnation
        self._monitor.watch(worker.worker_id, self._runtime.clock.monotonic_s())
        self._supervisor.run(_loop_name(worker), worker.run, RestartPolicy())
        self.workers_changed.set()
        _log.info(
            "taskmanager registered",
            worker=worker.worker_id,
            slots=worker.slots,
            refreshed=refreshed,
        )
        return worker, refreshed

    def _refuse_if_outdated(self, header: taskmanager_pb2.RegisterHeader) -> None:
        incarnation, number = self._newest.get(header.resource_id, ("", 0))
        if incarnation == header.incarnation and 0 < header.number < number:
            raise RegistrationOutdated(
                f"registration {header.number} of {header.resource_id} comes after {number}"
            )
        self._newest[header.resource_id] = (header.incarnation, header.number)

    def session_opened(self, worker: WorkerConnection) -> None:
        """The TaskManager knows its registration: its slots can be used."""
        if self._workers.get(worker.worker_id) is worker:
            worker.session_open = True
            self._ledger.open(worker.worker_id)
            self._share()

    def _registration_given_up(self, worker: WorkerConnection) -> None:
        """The TaskManager is about to register again, if it has not yet: until then its slots are
        not used.
        """
        if self._workers.get(worker.worker_id) is worker:
            worker.session_open = False
            self._ledger.close(worker.worker_id)

    def heartbeat(self, worker: WorkerConnection) -> None:
        """A sign of life."""
        now_s = self._runtime.clock.monotonic_s()
        worker.facts.last_heartbeat_s = now_s
        self._monitor.beat(worker.worker_id, now_s)

    def lose(self, worker: WorkerConnection, reason: str) -> None:
        """A TaskManager is gone: every job hears of it at once, with all that it held."""
        if self._workers.get(worker.worker_id) is not worker:
            return
        _log.warning("taskmanager lost", worker=worker.worker_id, reason=reason)
        del self._workers[worker.worker_id]
        # What it held counts as lost: should it come back, it is a new worker of this leader's.
        self._known.pop(worker.worker_id, None)
        self._ledger.remove(worker.worker_id)
        self._drop(worker)
        self._tell_all(sig.WorkerLost(worker.worker_id, reason))
        # A job that has lost slots wants as many as before: others may be free.
        self._share()
        self.workers_changed.set()

    async def watch_heartbeats(self) -> None:
        """Lose every TaskManager whose heartbeats stop; runs as long as the leader."""
        pause_s = self.options.heartbeat_interval_s / 4
        looked_s = self._runtime.clock.monotonic_s()
        while True:
            await asyncio.sleep(pause_s)
            now_s = self._runtime.clock.monotonic_s()
            if now_s - looked_s - pause_s > self.options.heartbeat_timeout_s / 2:
                # This process stood still (it was frozen, or swapped out): so did its ears (P37).
                self._monitor.start_anew(now_s)
                _log.warning("the JobManager itself was silent", for_s=now_s - looked_s)
            looked_s = now_s
            for worker_id in self._monitor.expired(now_s):
                worker = self._workers.get(worker_id)
                if worker is not None:
                    timeout_s = self.options.heartbeat_timeout_s
                    self.lose(worker, f"no heartbeat for {timeout_s:g} s")

    def confirm(self, worker: WorkerConnection) -> None:
        """Its session broke: find out at once whether it lives."""
        if self._workers.get(worker.worker_id) is worker:
            self._supervisor.start(f"confirm {worker.worker_id}", worker.confirm())

    def _drop(self, worker: WorkerConnection) -> None:
        worker.closed.set()
        worker.register_again.set()
        self._monitor.forget(worker.worker_id)
        self._supervisor.start(f"close {worker.worker_id}", self._close(worker))

    async def _close(self, worker: WorkerConnection) -> None:
        await self._supervisor.cancel(_loop_name(worker))
        await worker.close()

    def _tell_all(self, signal: sig.Signal) -> None:
        for post in list(self._posts.values()):
            post(signal)

    def order(self, worker_id: str, order: Order) -> bool:
        """Give an order to a TaskManager; False if it is not registered."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return False
        worker.give(order)
        return True

    # Jobs and slots

    def add_job(self, job_id: str, post: Callable[[sig.Signal], None]) -> None:
        """From now on the job hears of workers and may ask for slots."""
        self._posts[job_id] = post
        self._demands[job_id] = Demand()

    def remove_job(self, job_id: str) -> None:
        """The job is over: its slots are free, and every TaskManager deletes what it holds of
        it.
        """
        self.forget_job(job_id)
        for worker in self._workers.values():
            worker.give(ReleaseJobOrder(job_id))

    def forget_job(self, job_id: str) -> None:
        """This leader does not run the job any more; nothing is deleted."""
        self._posts.pop(job_id, None)
        self._demands.pop(job_id, None)
        self._ledger.take_back_all(job_id)
        self._share()

    def declare(self, job_id: str, count: int) -> None:
        """The job can use so many slots in all."""
        demand = self._demands.get(job_id)
        if demand is not None:
            demand.wanted = count
            self._share()

    def return_slots(self, job_id: str, slots: Iterable[sig.SlotId]) -> None:
        """The job gives slots back."""
        for slot in slots:
            self._ledger.take_back(slot, job_id)
        self._share()

    def _share(self) -> None:
        """Hand free slots to the jobs that want them, fairly; ask for some back where a job has
        none.
        """
        hungry = 0
        for job_id, demand in self._demands.items():
            demand.held = self._ledger.held_by(job_id)
            hungry += max(0, demand.wanted - demand.held)
        if not hungry:
            return
        sharing = share_slots(self._demands, self._ledger.first_free(hungry))
        for job_id, slots in sharing.grants.items():
            for slot in slots:
                self._ledger.grant(slot, job_id)
            self._posts[job_id](sig.SlotsGranted(tuple(slots)))
        for job_id, count in sharing.reclaims.items():
            self._posts[job_id](sig.SlotsReclaimed(count))

    def slot_counts(self) -> tuple[int, int]:
        """(all slots, free slots)."""
        return self._ledger.counts()

    def slots_held(self) -> dict[str, int]:
        """How many slots each job holds that holds any."""
        return self._ledger.held()

    def starving(self) -> list[str]:
        """Jobs that want more slots although some are free: none, between two steps."""
        if not self._ledger.first_free(1):
            return []
        held = self._ledger.held_by
        return [job for job, demand in self._demands.items() if held(job) < demand.wanted]

    def describe(
        self, worker: WorkerConnection, partitions: int, partition_bytes: int
    ) -> jobmanager_pb2.TaskManagerStatus:
        """A TaskManager as a client sees it."""
        age_s = self._runtime.clock.monotonic_s() - worker.facts.last_heartbeat_s
        return jobmanager_pb2.TaskManagerStatus(
            resource_id=worker.worker_id,
            incarnation=worker.incarnation,
            address=worker.address,
            data_address=worker.data_address,
            slots=worker.slots,
            slots_free=self._ledger.free_at(worker.worker_id),
            heartbeat_age_ms=round(age_s * 1000),
            partitions=partitions,
            partition_bytes=partition_bytes,
            disk_free_bytes=worker.facts.disk_free_bytes,
            loop_lag_ms=worker.facts.loop_lag_ms,
            partition_bytes_over=worker.facts.partition_bytes_over,
        )

    def describe_shuffle_service(
        self, worker: WorkerConnection, partitions: int, partition_bytes: int
    ) -> jobmanager_pb2.ShuffleServiceStatus:
        """A shuffle service as a client sees it."""
        age_s = self._runtime.clock.monotonic_s() - worker.facts.last_heartbeat_s
        load = worker.facts.shuffle or taskmanager_pb2.ShuffleServiceLoad()
        return jobmanager_pb2.ShuffleServiceStatus(
            resource_id=worker.worker_id,
            incarnation=worker.incarnation,
            address=worker.address,
            data_address=worker.data_address,
            heartbeat_age_ms=round(age_s * 1000),
            partitions=partitions,
            partition_bytes=partition_bytes,
            room_bytes=load.room_bytes,
            open_puts=load.open_puts,
            draining=load.draining,
        )


def _loop_name(worker: WorkerConnection) -> str:
    return f"orders to {worker.worker_id} {worker.registration_id}"
