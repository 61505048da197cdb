"""What a shuffle service does: take output of tasks, hold what is finished, follow leaders.

To a leader it is a worker without slots. It keeps what it holds through the loss of the leader as
a TaskManager does, by the same state machine for each job, and is no less strict: what an outdated
attempt sends is refused, and nothing is deleted on a guess (P36, P39). All state changes on the
event loop, but for the books of what is being put.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from holdover import config as options
from holdover.config import Configuration
from holdover.coordination.jobmanager_connection import JobManagerConnection
from holdover.coordination.leader import LeaderRetrieval
from holdover.coordination.leader_finder import LeaderFinder
from holdover.coordination.registration import Inventory, RegistrationAnswer
from holdover.ids import AttemptKey, partition_name
from holdover.runtime import Runtime
from holdover.runtime.log import Log
from holdover.runtime.loop_lag import LoopLagMonitor
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.v1.common_pb2 import (
    WORKER_KIND_SHUFFLE_SERVICE,
    ExecutionAttempt,
    FinishedExecution,
)
from holdover.v1.taskmanager_pb2 import HeartbeatRequest, RegisterHeader, ShuffleServiceLoad
from shuffle.deletions import Deletions, delete_attempt
from shuffle.errors import OutputRefused, PartitionNotFound
from shuffle.held_jobs import HeldJobs
from shuffle.incoming_partitions import IncomingPartitions
from shuffle.partition_name import DATA_SUFFIX, INDEX_SUFFIX, PART_SUFFIX
from shuffle.partition_store import PartitionStore
from shuffle.publication import PartsDiffer, publish_parts
from shuffle.room import Room
from shuffle.stocktaking import Stock

_LAG_INTERVAL_S = 0.5
_LAG_WARN_ABOVE_S = 0.5
#: Attempts that are remembered to have been released before they published; what is forgotten costs
#: room until its job ends.
GIVEN_UP_MAX = 10_000

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """Who this shuffle service is: a stable name, and this run of the process."""

    resource_id: str
    incarnation: str


class ShuffleService:
    """See the module. Implements `PartitionReceiver` for the partition server, `ShuffleCalls` for
    the gRPC service, `JobManagerListener` for the connection, `JobOwner` for what it holds of jobs.
    """

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        identity: ServiceIdentity,
        shuffle_directory: str,
        supervisor: Supervisor,
        retrieval: LeaderRetrieval | None,
    ) -> None:
        self._disk = runtime.disk
        self._partition_servers = runtime.partition_servers
        self._identity = identity
        self._directory = shuffle_directory
        self._supervisor = supervisor
        self._call_timeout_s = configuration.get(options.RPC_CALL_TIMEOUT)
        self._address = self._data_address = ""
        self._finished = PartitionStore(shuffle_directory)
        self._room = Room(
            configuration.get(options.SHUFFLE_SERVICE_MAX_BYTES),
            configuration.get(options.SHUFFLE_SERVICE_DISK_RESERVE),
        )
        self._incoming = IncomingPartitions(self._room, self._refusal)
        self._jobs = HeldJobs(
            self,
            self._finished,
            runtime.clock,
            supervisor,
            configuration.get(options.TASKMANAGER_REGISTRATION_TIMEOUT),
        )
        #: Jobs that have switched recovery off: nothing of them is kept for another leader.
        self._unrecovered: dict[str, None] = {}
        self._publishing: dict[AttemptKey, asyncio.Task[None]] = {}
        #: Attempts that were released while they were being published.
        self._unwanted: dict[AttemptKey, None] = {}
        #: Attempts that were released before they had published anything, the oldest first: what
        #: their tasks still send is not taken, until their job ends.
        self._given_up: dict[AttemptKey, None] = {}
        self._deletions = Deletions(runtime.disk, shuffle_directory)
        self._lag = LoopLagMonitor(_LAG_INTERVAL_S, _LAG_WARN_ABOVE_S)
        self._disk_free_bytes = 0
        self._disk_told = asyncio.Event()
        self._newest_epoch = 0
        #: Whether it takes nothing new, and leaves when no live job needs what it holds.
        self.draining = False
        #: Whether it is about to end.
        self.leaving = False
        #: Set when a leader has said that nothing of what is held is needed.
        self.drained = asyncio.Event()
        address = configuration.get(options.JOBMANAGER_RPC_ADDRESS)
        port = configuration.get(options.JOBMANAGER_RPC_PORT)
        self.connection = JobManagerConnection(
            runtime,
            configuration,
            identity.resource_id,
            LeaderFinder(f"{address}:{port}" if port else "", retrieval),
            self,
            retrieval,
            on_drained=self.drained.set,
        )

    @property
    def finished(self) -> PartitionStore:
        """What is held of finished attempts, to be read only."""
        return self._finished

    @property
    def jobs(self) -> list[str]:
        """Jobs of which anything is known here, those that are just being released included."""
        held = (*self._jobs.ids, *self._incoming.jobs, *self._jobs.being_released)
        return list(dict.fromkeys(held))

    @property
    def incoming(self) -> list[AttemptKey]:
        """Attempts of which something is being put, or waits to be published."""
        return self._incoming.attempts

    def take_up_found(self, stock: Stock) -> None:
        """Before `start`: keep what was found on the disk, as after the loss of a leader."""
        for key, execution in stock.found.items():
            self._finished.add(key, execution)
        self._room.found(stock.bytes)
        for job_id in self._finished.jobs:
            self._jobs.keep(job_id)

    async def measure(self) -> None:
        """Look how much of the disk is free. Raises `OSError`."""
        self._disk_free_bytes = await self._disk.free_bytes(self._directory)
        self._room.measured(self._disk_free_bytes)

    def start(self, address: str, data_address: str) -> None:
        """Begin to look for a leader; the addresses are host:port of the two servers."""
        self._address, self._data_address = address, data_address
        run = self._supervisor.run
        run("loop lag", self._lag.run)
        run("disk space", self._watch_disk, RestartPolicy())
        run("connection", self.connection.run, RestartPolicy())
        run("leader record", self.connection.watch_leader, RestartPolicy())
        run("deletions", self._deletions.run, RestartPolicy())
        run("registration timeout", lambda: self._jobs.watch_deadlines(self._settled))

    async def leave(self, reason: str, timeout_s: float) -> None:
        """Tell the leader that this service goes. From now on it takes nothing and no orders."""
        self.leaving = True
        self._room.close(reason)
        await self._supervisor.cancel("connection")
        await self.connection.unregister(reason, timeout_s)

    async def close(self) -> None:
        """After the supervisor was closed: end what is under way, and let go of the network."""
        publishing = list(self._publishing.values())
        for task in publishing:
            task.cancel()
        if publishing:
            await asyncio.wait(publishing)
        await self.connection.close()

    def drain(self) -> tuple[int, int]:
        """Take nothing from now on, and tell the leader; the attempts that are held, and their
        bytes. Repeating it changes nothing."""
        if not self.draining:
            self.draining = True
            self._room.close("it is being drained")
            self.connection.suspect()  # a heartbeat now, instead of when the next is due
            _log.info("draining", executions=len(self._finished.inventory()))
        return len(self._finished.inventory()), self._finished.bytes

    # ------------------------------------------------------------------ what tasks put

    @property
    def directory(self) -> str:
        """See `PartitionReceiver`."""
        return self._directory

    def begin(self, partition_name: str, is_copy: bool) -> int:
        """See `PartitionReceiver`. Raises ValueError for a bad name, and OutputRefused."""
        return self._incoming.begin(partition_name, is_copy)

    def take(self, put: int, wanted_bytes: int) -> None:
        """See `PartitionReceiver`. Raises OutputRefused."""
        self._incoming.take(put, wanted_bytes)

    def complete(self, put: int) -> None:
        """See `PartitionReceiver`. Raises OutputRefused."""
        self._incoming.complete(put)

    def end(self, put: int) -> bool:
        """See `PartitionReceiver`."""
        return self._incoming.end(put)

    def _refusal(self, key: AttemptKey, is_copy: bool) -> str | None:
        """Why output of an attempt is not taken. Called from any thread, so it only looks."""
        if self.leaving:
            return "the shuffle service leaves the cluster"
        if self._jobs.is_released(key.job_id):
            return "its job is being released"
        if key.epoch < self._newest_epoch and not is_copy:
            return f"epoch {self._newest_epoch} leads"
        if key in self._unwanted or (key in self._given_up and not is_copy):
            return "it was released"
        if self._finished.get(key) is not None:
            return "it is published already"
        return None

    async def publish(self, execution: FinishedExecution, is_copy: bool) -> FinishedExecution:
        """See `PartitionReceiver`. Raises OutputRefused, InvalidId."""
        key = AttemptKey.from_proto(execution.attempt)
        known = self._finished.get(key)
        if known is not None:
            return known
        publishing = self._publishing.get(key)
        if publishing is None:
            publishing = asyncio.ensure_future(self._publish(key, execution, is_copy))
            self._publishing[key] = publishing
            publishing.add_done_callback(lambda done: self._published(key, done))
        # Who asked may give up meanwhile, and ask again.
        await asyncio.shield(publishing)
        held = self._finished.get(key)
        if held is None:
            raise OutputRefused(f"{key} was released as soon as it was published")
        return held

    def _published(self, key: AttemptKey, publishing: asyncio.Task[None]) -> None:
        del self._publishing[key]
        self._unwanted.pop(key, None)
        if not publishing.cancelled() and publishing.exception() is not None:
            # Whoever asked has been told, or has gone.
            _log.info("not published", attempt=str(key), reason=publishing.exception())

    async def _publish(self, key: AttemptKey, execution: FinishedExecution, is_copy: bool) -> None:
        # A leader that is just being registered with was told what is held: this is not among it.
        await self._settled()
        names = [partition_name(key, partition.output) for partition in execution.partitions]
        await self._check_wanted(key, len(names), is_copy)
        self._incoming.check_complete(key, names, is_copy)
        try:
            await publish_parts(self._disk, self._directory, execution)
        except (PartsDiffer, OSError) as error:
            await self._delete_unpublished(key, len(names))
            raise OutputRefused(f"{key} cannot be published: {error}") from error
        await self._check_wanted(key, len(names), is_copy)
        self._incoming.published(names)
        self._finished.add(key, execution)
        if execution.recovery_disabled:
            self._unrecovered[key.job_id] = None
        if self.connection.current is not None:
            self._jobs.begin(key.job_id, self.connection.current.epoch)
        elif self._jobs.state(key.job_id) is None:
            self._jobs.keep(key.job_id)

    async def discard(self, attempt: ExecutionAttempt) -> None:
        """See `PartitionReceiver`. Raises InvalidId."""
        key = AttemptKey.from_proto(attempt)
        if key not in self._publishing:
            self._deletions.add([_part_files(self._incoming.give_up(key))])

    async def _check_wanted(self, key: AttemptKey, outputs: int, is_copy: bool) -> None:
        """Raises OutputRefused when an attempt has no claim to be published any more; then what it
        has put is deleted, for who asked may be gone."""
        refusal = self._refusal(key, is_copy)
        if refusal is not None:
            await self._delete_unpublished(key, outputs)
            raise OutputRefused(f"{key} cannot be published: {refusal}")

    async def _delete_unpublished(self, key: AttemptKey, outputs: int) -> None:
        self._incoming.give_up(key)
        try:
            await delete_attempt(self._disk, self._directory, key, outputs)
        except OSError as error:
            _log.error("cannot delete what is not published", attempt=str(key), error=error)

    # ------------------------------------------------------------------ what the leader asks

    @property
    def epoch_seen(self) -> int:
        """See `ShuffleCalls`."""
        return self.connection.epoch_seen

    def admit(self, epoch: int) -> None:
        """See `ShuffleCalls`."""
        self.connection.admit(epoch)

    def registered(self, registration_id: str) -> bool:
        """See `ShuffleCalls`."""
        current = self.connection.current
        return current is not None and current.registration_id == registration_id

    def release_attempts(self, keys: Sequence[AttemptKey]) -> None:
        """See `ShuffleCalls`."""
        self._give_up([key for key in keys if self._finished.get(key) is None])
        held_bytes = self._finished.bytes
        files = self._finished.release(keys)
        self._room.give_back(held_bytes - self._finished.bytes)
        self._deletions.add(files)
        self._drop_unpublished(keys)

    def _drop_unpublished(self, keys: Sequence[AttemptKey]) -> None:
        for key in keys:
            if key in self._publishing:
                self._unwanted[key] = None
            else:
                self._deletions.add([_part_files(self._incoming.give_up(key))])

    def _give_up(self, keys: Sequence[AttemptKey]) -> None:
        self._given_up.update(dict.fromkeys(keys))
        for key in list(islice(self._given_up, max(0, len(self._given_up) - GIVEN_UP_MAX))):
            del self._given_up[key]

    async def copy(self, key: AttemptKey, address: str) -> None:
        """See `ShuffleCalls`. Raises PartitionLost, OutputRefused."""
        execution = self._finished.get(key)
        if execution is None:
            raise PartitionNotFound(str(key), "this shuffle service does not hold the attempt")
        await self._partition_servers.copy(self._directory, execution, address)

    async def release_job(self, job_id: str, reason: str) -> None:
        """See `ShuffleCalls`."""
        current = self.connection.current
        if current is None or not self._jobs.outranks(job_id, current.epoch):
            self._release(job_id, reason)
        await self._jobs.until_released(job_id)

    # ------------------------------------------------------------------ what the connection tells

    def header(self) -> RegisterHeader:
        """See `JobManagerListener`."""
        return RegisterHeader(
            resource_id=self._identity.resource_id,
            incarnation=self._identity.incarnation,
            address=self._address,
            data_address=self._data_address,
            kind=WORKER_KIND_SHUFFLE_SERVICE,
            shuffle=self._load(),
        )

    def inventory(self) -> Inventory:
        """See `JobManagerListener`."""
        return Inventory(self._finished.inventory(), [])

    def registration_failed(self) -> None:
        """See `JobManagerListener`. Nothing was promised."""

    def registered_with(self, answer: RegistrationAnswer) -> None:
        """See `JobManagerListener`."""
        epoch = answer.accepted.leader_epoch
        if epoch > self._newest_epoch:
            self._newest_epoch = epoch
            # What was told is what is finished: nobody else will have the rest deleted.
            self._drop_unpublished(self._incoming.outdated(epoch))
        self._jobs.registered(epoch)
        rejected = [(key, why) for key, why in answer.rejected if key.epoch <= epoch]
        for reason in dict.fromkeys(reason for _, reason in rejected):
            keys = [key for key, why in rejected if why == reason]
            self.release_attempts(keys)
            _log.info("the JobManager rejected executions", reason=reason, count=len(keys))
        for job_id in dict.fromkeys(key.job_id for key, _ in rejected):
            if not self._finished.holds(job_id):
                self._release(job_id, "the JobManager rejected all that was held")

    def jobmanager_lost(self, reason: str) -> None:
        """See `JobManagerListener`. Each job decides for itself (P36, P37)."""
        _log.warning("JobManager lost", reason=reason, jobs=len(self._jobs.ids))
        self._jobs.jobmanager_lost()
        for job_id in self._incoming.jobs:
            if self._jobs.state(job_id) is None and not self._jobs.is_released(job_id):
                self._jobs.keep(job_id)

    def job_ended(self, job_id: str) -> None:
        """See `JobManagerListener`."""
        current = self.connection.current
        if current is None or not self._jobs.outranks(job_id, current.epoch):
            self._release(job_id, "the JobManager says that it has ended")

    def heartbeat(self) -> HeartbeatRequest:
        """See `JobManagerListener`."""
        self._disk_told.set()
        return HeartbeatRequest(
            job_ids=list(dict.fromkeys((*self._jobs.ids, *self._incoming.jobs))),
            loop_lag_ms=round(self._lag.take_recent_max_lag_s() * 1000),
            disk_free_bytes=self._disk_free_bytes,
            shuffle=self._load(),
        )

    def _load(self) -> ShuffleServiceLoad:
        return ShuffleServiceLoad(
            room_bytes=self._room.left_bytes,
            held_bytes=self._room.held_bytes,
            open_puts=self._incoming.open_puts,
            draining=self.draining,
        )

    # ------------------------------------------------------------------ jobs

    def recovery_enabled(self, job_id: str) -> bool:
        """See `JobOwner`."""
        return job_id not in self._unrecovered

    def fail_tasks(self, job_id: str) -> None:
        """See `JobOwner`. They run elsewhere, and are failed there."""

    def let_go(self, job_id: str) -> None:
        """See `JobOwner`."""
        self._unrecovered.pop(job_id, None)
        self._given_up = {key: None for key in self._given_up if key.job_id != job_id}
        held_bytes = self._finished.bytes
        self._finished.release_job(job_id)
        self._room.give_back(held_bytes - self._finished.bytes)
        self._incoming.give_up_job(job_id)

    async def delete(self, job_id: str) -> None:
        """See `JobOwner`."""
        publishing = [task for key, task in self._publishing.items() if key.job_id == job_id]
        if publishing:
            await asyncio.wait(publishing)
        path = posixpath.join(self._directory, job_id)
        await self._disk.remove_tree(path, missing_ok=True)

    def _release(self, job_id: str, reason: str) -> None:
        if self._jobs.state(job_id) is None and job_id in self._incoming.jobs:
            self._jobs.release_unheld(job_id, reason)
        else:
            self._jobs.release(job_id, reason)

    async def _settled(self) -> None:
        await self.connection.settled(self._call_timeout_s)

    async def _watch_disk(self) -> None:
        """Measure for each heartbeat, as soon as the one before has told what was known."""
        while True:
            self._disk_told.clear()
            await self.measure()
            await self._disk_told.wait()


def _part_files(names: Sequence[str]) -> list[str]:
    return [name + suffix + PART_SUFFIX for name in names for suffix in (INDEX_SUFFIX, DATA_SUFFIX)]
