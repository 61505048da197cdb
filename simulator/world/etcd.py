"""An etcd of one member in a world: the calls that leader election makes, with etcd's answers.

Model: one process on one host, reached over the world's network with etcd's own messages, so that
the code that talks to a real one is what runs. A change is on the host's disk before it is
answered or told. A lease that is not renewed ends when its time has passed on the host's clock,
found at one of the looks that are half a second apart. After a start every lease has its whole time
again, and all older revisions are compacted.

Not modelled: streams of more than one request, several members and their elections, users, quota by
bytes (a full etcd is `is_full`).
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from holdover.coordination import etcd_pb2
from holdover.runtime import Runtime
from simulator.world.etcd_store import EtcdError, EtcdStore

if TYPE_CHECKING:
    from simulator.world.process import Host, Process
    from simulator.world.trace import Trace
    from simulator.world.world import World

    _Context = grpc.aio.ServicerContext[Any, Any]

T = TypeVar("T")

PORT = 2379

_NAME = "etcd"
_DIRECTORY = "/etcd"
_STATE_PATH = f"{_DIRECTORY}/state.json"
_LEASE_LOOK_S = 0.5


class SimulatedEtcd:
    """The etcd on its host, over all its lives."""

    def __init__(self, world: World, host: Host, *, port: int = PORT) -> None:
        self.host = host
        self.endpoint = f"{host.name}:{port}"
        #: The present life; None before the first.
        self.process: Process | None = None
        #: Whether it refuses all that needs space, as one whose quota is used up.
        self.is_full = False
        #: Whether its watches say nothing, without an error.
        self.is_deaf = False
        #: Whether it has no majority and does not know it: it goes on renewing leases, and nothing
        #: else is answered.
        self.is_alone = False
        self._world = world
        self._port = port
        self._server: _Server | None = None

    def start(self) -> Process:
        """Begin a life, with what the disk of the host has kept."""
        if self.process is not None and self.process.alive:
            raise RuntimeError(f"etcd runs already: {self.process!r}")
        process = self.process = self._world.process(self.host, _NAME)
        self._server = _Server(self, self._world.runtime(process), self._world.trace)
        serving = process.spawn(self._server.run(f"0.0.0.0:{self._port}"))
        # What ends it, without a death, is a failure of the world.
        serving.add_done_callback(asyncio.Task.result)
        return process

    @property
    def store(self) -> EtcdStore:
        """What it holds now, to be read."""
        assert self._server is not None
        return self._server.store

    def compact(self) -> None:
        """Forget all revisions so far."""
        self.store.compact(self.store.revision)


class _Server:
    """One life of the etcd."""

    def __init__(self, etcd: SimulatedEtcd, runtime: Runtime, trace: Trace) -> None:
        self.store = EtcdStore()
        self._etcd = etcd
        self._runtime = runtime
        self._trace = trace
        self._expires_s: dict[int, float] = {}
        self._changing = asyncio.Lock()
        self._watchers: dict[int, asyncio.Event] = {}
        self._watchers_seen = 0

    async def run(self, bind_address: str) -> None:
        """Serve until death."""
        disk = self._runtime.disk
        await disk.make_directories(_DIRECTORY)
        if await disk.stat(_STATE_PATH) is not None:
            self.store = EtcdStore.from_bytes(await disk.read(_STATE_PATH))
        for lease_id in self.store.lease_ttls_s:
            self._renew(lease_id)
        server = self._runtime.network.server(bind_address)
        server.add_generic_rpc_handlers(self._handlers())
        await server.start()
        while True:
            await asyncio.sleep(_LEASE_LOOK_S)
            now_s = self._runtime.clock.monotonic_s()
            for lease_id in [each for each, end_s in self._expires_s.items() if now_s >= end_s]:
                await self._expire(lease_id, now_s)

    def _handlers(self) -> list[grpc.GenericRpcHandler]:
        def unary(method: Callable[..., Any], request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                self._answered(method), request.FromString, _serialize
            )

        services = {
            "KV": {
                "Range": unary(self._range, etcd_pb2.RangeRequest),
                "Put": unary(self._put, etcd_pb2.PutRequest),
                "DeleteRange": unary(self._delete, etcd_pb2.DeleteRangeRequest),
                "Txn": unary(self._txn, etcd_pb2.TxnRequest),
                "Compact": unary(self._compact, etcd_pb2.CompactionRequest),
            },
            "Lease": {
                "LeaseGrant": unary(self._grant, etcd_pb2.LeaseGrantRequest),
                "LeaseRevoke": unary(self._revoke, etcd_pb2.LeaseRevokeRequest),
                "LeaseKeepAlive": grpc.unary_stream_rpc_method_handler(
                    self._keep_alive, etcd_pb2.LeaseKeepAliveRequest.FromString, _serialize
                ),
            },
            "Watch": {
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self._watch, etcd_pb2.WatchRequest.FromString, _serialize
                )
            },
        }
        return [
            grpc.method_handlers_generic_handler(f"etcdserverpb.{name}", methods)
            for name, methods in services.items()
        ]

    def _answered(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def handler(request: Any, context: _Context) -> Any:
            try:
                if self._etcd.is_alone:
                    raise EtcdError("UNAVAILABLE", "etcdserver: no leader")
                return await method(request)
            except EtcdError as error:
                await context.abort(grpc.StatusCode[error.code], error.details)
            except OSError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"etcdserver: {error}")

        return handler

    # ------------------------------------------------------------------ keys

    async def _range(self, request: etcd_pb2.RangeRequest) -> etcd_pb2.RangeResponse:
        return self.store.range(request)

    async def _put(self, request: etcd_pb2.PutRequest) -> etcd_pb2.PutResponse:
        self._needs_space()
        return await self._change(lambda store: store.put(request))

    async def _delete(self, request: etcd_pb2.DeleteRangeRequest) -> etcd_pb2.DeleteRangeResponse:
        return await self._change(lambda store: store.delete(request))

    async def _txn(self, request: etcd_pb2.TxnRequest) -> etcd_pb2.TxnResponse:
        if any(op.HasField("request_put") for op in (*request.success, *request.failure)):
            self._needs_space()
        return await self._change(lambda store: store.txn(request))

    async def _compact(self, request: etcd_pb2.CompactionRequest) -> etcd_pb2.CompactionResponse:
        self.store.compact(request.revision)
        return etcd_pb2.CompactionResponse(header=self.store.header())

    async def _change(self, change: Callable[[EtcdStore], T]) -> T:
        """Make a change that is durable before anybody hears of it."""
        async with self._changing:
            store = copy.deepcopy(self.store)
            answer = change(store)
            await self._runtime.disk.publish(_STATE_PATH, store.to_bytes())
            self.store = store
        for changed in self._watchers.values():
            changed.set()
        return answer

    def _needs_space(self) -> None:
        if self._etcd.is_full:
            raise EtcdError("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")

    # ------------------------------------------------------------------ leases

    async def _grant(self, request: etcd_pb2.LeaseGrantRequest) -> etcd_pb2.LeaseGrantResponse:
        self._needs_space()
        lease_id = await self._change(lambda store: store.grant(request.TTL))
        self._renew(lease_id)
        return etcd_pb2.LeaseGrantResponse(header=self.store.header(), ID=lease_id, TTL=request.TTL)

    async def _revoke(self, request: etcd_pb2.LeaseRevokeRequest) -> etcd_pb2.LeaseRevokeResponse:
        await self._change(lambda store: store.revoke(request.ID))
        self._expires_s.pop(request.ID, None)
        return etcd_pb2.LeaseRevokeResponse(header=self.store.header())

    async def _expire(self, lease_id: int, now_s: float) -> None:
        del self._expires_s[lease_id]  # from now on it is not renewed
        self._trace.note(_NAME, "expired", f"lease {lease_id}")
        try:
            await self._change(lambda store: store.revoke(lease_id))
        except EtcdError:
            pass  # it was given back in the meantime
        except OSError as error:
            self._trace.note(_NAME, "cannot store", str(error))
            self._expires_s[lease_id] = now_s

    async def _keep_alive(
        self, request: etcd_pb2.LeaseKeepAliveRequest, context: _Context
    ) -> AsyncIterator[etcd_pb2.LeaseKeepAliveResponse]:
        ttl_s = 0
        if request.ID in self._expires_s and request.ID in self.store.lease_ttls_s:
            ttl_s = self.store.lease_ttls_s[request.ID]
            self._renew(request.ID)
        yield etcd_pb2.LeaseKeepAliveResponse(header=self.store.header(), ID=request.ID, TTL=ttl_s)

    def _renew(self, lease_id: int) -> None:
        ttl_s = self.store.lease_ttls_s[lease_id]
        self._expires_s[lease_id] = self._runtime.clock.monotonic_s() + ttl_s

    # ------------------------------------------------------------------ watches

    async def _watch(
        self, request: etcd_pb2.WatchRequest, context: _Context
    ) -> AsyncIterator[etcd_pb2.WatchResponse]:
        create = request.create_request
        revision = create.start_revision or self.store.revision + 1
        self._watchers_seen += 1
        number, changed = self._watchers_seen, asyncio.Event()
        self._watchers[number] = changed
        try:
            yield etcd_pb2.WatchResponse(header=self.store.header(), created=True)
            while revision > self.store.compacted:
                changed.clear()
                events = self.store.events_since(revision, create.key, create.range_end)
                revision = max(revision, self.store.revision + 1)
                if events and not self._etcd.is_deaf:
                    yield etcd_pb2.WatchResponse(header=self.store.header(), events=events)
                await changed.wait()
            yield etcd_pb2.WatchResponse(
                header=self.store.header(), canceled=True, compact_revision=self.store.compacted
            )
        finally:
            del self._watchers[number]


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
