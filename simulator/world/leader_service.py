"""A leader service of the kind that clusters run beside them: a lease, a revision, a watch.

Model: one process on one host, reached over the world's network, so that it can be cut off, slow,
restarted or without power. One candidate at a time has the lease and renews it; candidates wait in
the order in which they came. The epoch is the service's revision: it is raised on the service's
disk before anybody is told, and with it the leader's address is published to all who watch. A lease
that is not renewed ends after its time to live on the clock of the service's host. A service that
comes back gives the lease it finds on its disk a whole time to live, as the one that leads may have
renewed it.

Not modelled: the several members of such a service and their elections (a failover of theirs is a
short cut), compaction, transactions, users.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import grpc

from holdover.coordination.leader import LeaderRecord
from holdover.runtime import Runtime
from simulator.world import leader_protocol as protocol
from simulator.world.leader_client import LeaderServiceClient

if TYPE_CHECKING:
    from simulator.world.process import Host, Process
    from simulator.world.trace import Trace
    from simulator.world.world import World

    _Context = grpc.aio.ServicerContext[bytes, bytes]

PORT = 2379
LEASE_TTL_S = 10.0

_NAME = "leader-service"
_DIRECTORY = "/leader-service"
_STATE_PATH = f"{_DIRECTORY}/state.json"
_DISK_RETRY_S = 0.5


class SimulatedLeaderService:
    """The service on its host, over all its lives."""

    def __init__(
        self, world: World, host: Host, *, lease_ttl_s: float = LEASE_TTL_S, port: int = PORT
    ) -> None:
        self.host = host
        self.lease_ttl_s = lease_ttl_s
        self.address = f"{host.name}:{port}"
        #: The present life; None before the first.
        self.process: Process | None = None
        self._world = world
        self._port = port

    def start(self) -> Process:
        """Begin a life, with what the disk of the host has kept."""
        if self.process is not None and self.process.alive:
            raise RuntimeError(f"the leader service runs already: {self.process!r}")
        world = self._world
        process = self.process = world.process(self.host, _NAME)
        server = _LeaseServer(world.runtime(process), world.trace, self.lease_ttl_s)
        serving = process.spawn(server.run(f"0.0.0.0:{self._port}"))
        # What ends it, without a death, is a failure of the world.
        serving.add_done_callback(asyncio.Task.result)
        return process

    def client(self, runtime: Runtime) -> LeaderServiceClient:
        """What a process with this runtime is given."""
        return LeaderServiceClient(runtime, self.address)


@dataclass(frozen=True, slots=True)
class _State:
    """What outlives the process. `candidate` has the lease, nobody where it is empty."""

    epoch: int = 0
    address: str = ""
    candidate: str = ""

    def record(self) -> LeaderRecord | None:
        return LeaderRecord(self.epoch, self.address) if self.epoch else None

    def freed(self) -> _State:
        return _State(self.epoch, self.address)


@dataclass(eq=False, slots=True)
class _Waiting:
    """A candidate that waits for the lease."""

    address: str
    granted: asyncio.Future[int]


class _LeaseServer:
    """One life of the service."""

    def __init__(self, runtime: Runtime, trace: Trace, lease_ttl_s: float) -> None:
        self._runtime = runtime
        self._trace = trace
        self._lease_ttl_s = lease_ttl_s
        self._state = _State()
        self._stored = _State()
        self._expires_s = 0.0
        self._waiting: dict[str, _Waiting] = {}
        self._watchers: dict[int, asyncio.Event] = {}
        self._watchers_seen = 0
        self._changed = asyncio.Event()

    async def run(self, bind_address: str) -> None:
        """Serve until death."""
        await self._load()
        self._renew_lease()
        server = self._runtime.network.server(bind_address)
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    protocol.SERVICE,
                    {
                        protocol.ACQUIRE: grpc.unary_unary_rpc_method_handler(self._acquire),
                        protocol.RENEW: grpc.unary_unary_rpc_method_handler(self._renew),
                        protocol.RESIGN: grpc.unary_unary_rpc_method_handler(self._resign),
                        protocol.CURRENT: grpc.unary_unary_rpc_method_handler(self._current),
                        protocol.WATCH: grpc.unary_stream_rpc_method_handler(self._watch),
                    },
                )
            ]
        )
        await server.start()
        while True:
            await self._step()

    async def _load(self) -> None:
        """Take up what the disk has kept, as soon as it can be read."""
        disk = self._runtime.disk
        while True:
            try:
                await disk.make_directories(_DIRECTORY)
                if await disk.stat(_STATE_PATH) is not None:
                    self._state = self._stored = _State(**json.loads(await disk.read(_STATE_PATH)))
                return
            except OSError as error:
                self._note("cannot load", str(error))
                await asyncio.sleep(_DISK_RETRY_S)

    # ------------------------------------------------------------------ methods

    async def _acquire(self, request: bytes, context: _Context) -> bytes:
        fields = protocol.decode(request)
        candidate = fields["candidate"]
        if self._state.candidate == candidate:
            epoch = self._state.epoch
        else:
            granted = asyncio.get_running_loop().create_future()
            self._waiting[candidate] = _Waiting(fields["address"], granted)
            self._changed.set()
            try:
                epoch = await granted
            finally:
                self._stops_waiting(candidate, granted)
        return protocol.encode(epoch=epoch, ttl_s=self._lease_ttl_s)

    async def _renew(self, request: bytes, context: _Context) -> bytes:
        held = self._state.candidate == protocol.decode(request)["candidate"]
        if held:
            self._renew_lease()
        return protocol.encode(held=held)

    async def _resign(self, request: bytes, context: _Context) -> bytes:
        candidate = protocol.decode(request)["candidate"]
        self._waiting.pop(candidate, None)
        if self._state.candidate == candidate:
            self._note("resigned", candidate)
            self._state = self._state.freed()
            self._changed.set()
        return protocol.encode()

    async def _current(self, request: bytes, context: _Context) -> bytes:
        return protocol.encode_record(self._state.record())

    async def _watch(self, request: bytes, context: _Context) -> AsyncIterator[bytes]:
        after: int = protocol.decode(request)["after"]
        self._watchers_seen += 1
        number, changed = self._watchers_seen, asyncio.Event()
        self._watchers[number] = changed
        try:
            while True:
                changed.clear()
                record = self._state.record()
                if record is not None and record.epoch > after:
                    after = record.epoch
                    yield protocol.encode_record(record)
                await changed.wait()
        finally:
            del self._watchers[number]

    # ------------------------------------------------------------------ the lease

    async def _step(self) -> None:
        """End the lease when its time is over, give it to the next, or wait for a reason to.

        Only this changes the disk, so that what is stored is never older than what was told.
        """
        now_s = self._runtime.clock.monotonic_s()
        if self._state.candidate and now_s >= self._expires_s:
            self._note("expired", self._state.candidate)
            self._state = self._state.freed()
        try:
            if not self._state.candidate and self._waiting:
                await self._grant(next(iter(self._waiting)))
            elif self._state != self._stored:
                await self._store(self._state)
            else:
                await self._wait(self._expires_s - now_s if self._state.candidate else None)
        except OSError as error:
            self._note("cannot store", str(error))
            await asyncio.sleep(_DISK_RETRY_S)

    async def _grant(self, candidate: str) -> None:
        state = _State(self._state.epoch + 1, self._waiting[candidate].address, candidate)
        await self._store(state)
        self._note("granted", f"{candidate} epoch {state.epoch}")
        self._renew_lease()
        told = self._waiting.pop(candidate, None)
        if told is None:
            # It withdrew meanwhile. Its epoch is gone for good, but nobody leads.
            self._state = state.freed()
            return
        self._state = state
        if not told.granted.done():
            told.granted.set_result(state.epoch)
        for changed in self._watchers.values():
            changed.set()

    async def _store(self, state: _State) -> None:
        await self._runtime.disk.publish(_STATE_PATH, json.dumps(asdict(state)).encode())
        self._stored = state

    async def _wait(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def _renew_lease(self) -> None:
        self._expires_s = self._runtime.clock.monotonic_s() + self._lease_ttl_s

    def _stops_waiting(self, candidate: str, granted: asyncio.Future[int]) -> None:
        waiting = self._waiting.get(candidate)
        if waiting is not None and waiting.granted is granted:
            del self._waiting[candidate]

    def _note(self, what: str, detail: str) -> None:
        self._trace.note(_NAME, what, detail)
