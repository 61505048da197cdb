"""The simulated cluster as the invariants see it. See `simulator.invariants.view`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdover import config as options
from holdover.config import Configuration
from holdover.runtime import Disk
from jobmanager.event_store import JobEventWriter
from jobmanager.job_master import JobMaster
from simulator.cluster import JOBS_DIRECTORY, Node, SimulatedCluster
from simulator.faults import FaultInjector
from simulator.invariants.stored import archived, as_it_is
from simulator.invariants.view import (
    LeaderView,
    OrderQueue,
    RunningJob,
    ServiceFacts,
    SubmittedJob,
    WorkerView,
    WrittenLog,
)
from simulator.workloads import committed_output, expected_rows
from simulator.world.leader_client import MARGIN, RENEW_AFTER
from simulator.world.process import Process, ProcessState


class SimulatedClusterView:
    """Reads the services' own objects. Nothing here changes anything."""

    def __init__(
        self, cluster: SimulatedCluster, injector: FaultInjector, patience_s: float
    ) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._injector = injector
        self._patience_s = patience_s
        self._config = Configuration.of(cluster.settings.options)
        self._jobs: dict[str, SubmittedJob] = {}
        self._expected: dict[str, Sequence[int]] = {}

    def add_job(self, job: SubmittedJob) -> None:
        """A client gives a job to the cluster."""
        self._jobs[job.job_id] = job

    def change_job(self, job_id: str, **changes: Any) -> None:
        """A client wants something of a job, or learns something of it: fields of SubmittedJob."""
        self._jobs[job_id] = replace(self._jobs[job_id], **changes)

    @property
    def now_s(self) -> float:
        """See `ClusterView`."""
        return self._world.now_s

    @property
    def jobs(self) -> Mapping[str, SubmittedJob]:
        """See `ClusterView`."""
        for job_id in self._injector.logs_cut:
            if not self._jobs[job_id].log_damaged:
                self._jobs[job_id] = replace(self._jobs[job_id], log_damaged=True)
        return self._jobs

    @property
    def shared(self) -> Disk:
        """See `ClusterView`."""
        return as_it_is(self._world.storages.shared)

    @property
    def storage_directory(self) -> str:
        """See `ClusterView`."""
        return JOBS_DIRECTORY

    @property
    def calm_since_s(self) -> float | None:
        """See `ClusterView`. A process that is dead and will be started again is no calm."""
        if self._injector.active:
            return None
        return self._injector.changed_s or 0.0

    @property
    def patience_s(self) -> float:
        """See `ClusterView`."""
        return self._patience_s

    @property
    def leases_flap(self) -> bool:
        """See `ClusterView`."""
        links, ttl_s = self._world.network.settings, self._cluster.settings.lease_ttl_s
        if ttl_s is None or not links.loss:
            return False
        left_s = (1 - MARGIN - RENEW_AFTER) * ttl_s
        return left_s <= links.retransmission_s * (1 + 2 + 4)

    @property
    def registration_timeout_s(self) -> float:
        """See `ClusterView`."""
        return self._config.get(options.TASKMANAGER_REGISTRATION_TIMEOUT)

    @property
    def messages_in_flight(self) -> int:
        """See `ClusterView`."""
        return self._world.network.messages_in_flight

    @property
    def processes(self) -> int:
        """See `ClusterView`."""
        return sum(node.alive for node in self._cluster.nodes())

    def leaders(self) -> Sequence[LeaderView]:
        """See `ClusterView`."""
        return [
            view for node in self._cluster.jobmanagers if node.alive and (view := leader_view(node))
        ]

    def workers(self) -> Sequence[WorkerView]:
        """See `ClusterView`."""
        nodes = (*self._cluster.taskmanagers, *self._cluster.shuffle_services)
        return [view for node in nodes if (view := self._worker_view(node))]

    def worker(self, worker_id: str) -> WorkerView | None:
        """See `ClusterView`."""
        return self._worker_view(self._cluster.node(worker_id))

    def expected_rows(self, job: SubmittedJob) -> Sequence[int]:
        """See `ClusterView`."""
        if job.job_id not in self._expected:
            ended = archived(self, job.job_id)
            vertices = ended.status.vertices if ended is not None else ()
            decided = {vertex.vertex_id: vertex.parallelism for vertex in vertices}
            self._expected[job.job_id] = expected_rows(job.graph, decided)
        return self._expected[job.job_id]

    def committed_rows(self, job: SubmittedJob) -> Sequence[int]:
        """See `ClusterView`."""
        return committed_output(self._world.storages.shared, job.graph).ids

    def mixed_subtasks(self, job: SubmittedJob) -> Sequence[tuple[str, int]]:
        """See `ClusterView`."""
        mixed = committed_output(self._world.storages.shared, job.graph).mixed
        return [(job.graph.vertices[place].vertex_id, subtask) for place, subtask in mixed]

    def _service_view(self, node: Node, process: Process) -> WorkerView | None:
        """A shuffle service: a worker without slots."""
        service = node.shuffle_service.service if node.shuffle_service is not None else None
        if service is None:
            return None
        registration = service.connection.current
        storage = self._world.storages.of(node.host)
        sound = not storage.faults.active
        sound_since_s = self._injector.disk_changed_s(node.name) if sound else None
        return WorkerView(
            name=f"{node.name}#{process.life}",
            worker_id=node.name,
            disk=as_it_is(storage),
            finished=service.finished,
            paused=process.state is ProcessState.PAUSED,
            disk_sound_since_s=sound_since_s,
            epoch_seen=service.epoch_seen,
            registered_epoch=registration.epoch if registration is not None else None,
            slots=0,
            jobs=tuple(service.jobs),
            shuffle_directory=service.directory,
            service=ServiceFacts(service.draining, tuple(service.incoming)),
        )

    def _worker_view(self, node: Node) -> WorkerView | None:
        if node.role == "shuffle-service" and node.process is not None and node.process.alive:
            return self._service_view(node, node.process)
        taskmanager, process = node.taskmanager, node.process
        if taskmanager is None or process is None or not process.alive:
            return None
        executor, directory = taskmanager.executor, taskmanager.directory
        if executor is None or directory is None:
            return None
        registration = executor.connection.current
        storage = self._world.storages.of(node.host)
        sound = not storage.faults.active
        sound_since_s = self._injector.disk_changed_s(node.name) if sound else None
        return WorkerView(
            name=f"{node.name}#{process.life}",
            worker_id=taskmanager.resource_id,
            disk=as_it_is(storage),
            finished=taskmanager.finished,
            paused=process.state is ProcessState.PAUSED,
            disk_sound_since_s=sound_since_s,
            epoch_seen=executor.epoch_seen,
            registered_epoch=registration.epoch if registration is not None else None,
            occupants=tuple(executor.occupants),
            slots=self._cluster.settings.slots,
            jobs=tuple(executor.jobs),
            reports=executor.reports_waiting,
            deletions=executor.deletions_waiting,
            shuffle_directory=directory.shuffle,
            scratch_directory=directory.scratch,
            graphs_directory=directory.graphs,
        )


def leader_view(node: Node) -> LeaderView | None:
    """A JobManager that leads, as far as it knows, or did so when it died; None otherwise."""
    process, jobmanager = node.process, node.jobmanager
    services = jobmanager.services if jobmanager is not None else None
    if process is None or services is None:
        return None
    workers = services.resources.workers()
    return LeaderView(
        name=f"{node.name}#{process.life}",
        epoch=services.epoch,
        paused=process.state is ProcessState.PAUSED,
        jobs=tuple(running_job(master) for master in services.dispatcher.masters()),
        queues=tuple(OrderQueue(w.worker_id, w.orders_waiting, w.slots) for w in workers),
        slots_held=services.resources.slots_held(),
        starving=tuple(services.resources.starving()),
    )


def running_job(master: JobMaster) -> RunningJob:
    """A job as its leader runs it."""
    signals, releases, timers = master.waiting
    writer = master.events
    log = None
    if isinstance(writer, JobEventWriter):
        log = WrittenLog(
            writer.directory,
            writer.unwritten,
            writer.status.buffered_bytes,
            writer.settings.buffer_bytes_max,
        )
    return RunningJob(master.job_id, master.scheduler, log, signals, releases, timers)
