"""A client of etcd's v3 API: the few calls that an election needs, at any of several members.

A call is made at one member, and at the next when that one cannot answer; the member that answered
is asked first the next time. Whoever uses this decides when to try again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from holdover.coordination import etcd_pb2
from holdover.runtime.network import Network

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
T = TypeVar("T")

# How long one watch lasts; it is then made anew.
_WATCH_TIMEOUT_S = 600.0
# Ends a watch at a member that has lost its fellows, which would otherwise be silent for ever.
_NEEDS_LEADER = (("hasleader", "true"),)
# Asking again, or another member, is no use.
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
_EXPLANATIONS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        "etcd is overloaded or its database is full; if it is full, compact and defragment it,"
        " then disarm its alarm (etcdctl alarm disarm)"
    ),
    grpc.StatusCode.UNIMPLEMENTED: "there is no etcd of version 3.4 or newer behind the endpoint",
    grpc.StatusCode.UNAUTHENTICATED: "etcd wants a user; only etcd without users is supported",
    grpc.StatusCode.INVALID_ARGUMENT: "etcd may want a user; only etcd without users is supported",
}


class EtcdUnavailable(OSError):
    """No member can do what it was asked just now. A change may have been made nevertheless."""

    def __init__(self, endpoints: Sequence[str], problem: str) -> None:
        super().__init__(errno.EAGAIN, f"etcd ({', '.join(endpoints)}) cannot answer: {problem}")


class EtcdRefused(OSError):
    """etcd does not allow it; asking again is no use."""

    def __init__(self, endpoint: str, problem: str) -> None:
        super().__init__(
            errno.EACCES,
            f"etcd at {endpoint} refuses: {problem}; check high-availability.etcd.endpoints",
        )


class EtcdLeaseEnded(OSError):
    """The lease does not exist, or not any more."""

    def __init__(self, lease_id: int) -> None:
        super().__init__(errno.ESTALE, f"etcd has ended lease {lease_id:x}")


@dataclass(frozen=True, slots=True)
class _Method(Generic[RequestT, ResponseT]):
    path: str
    request: type[RequestT]
    response: type[ResponseT]


_RANGE = _Method("/etcdserverpb.KV/Range", etcd_pb2.RangeRequest, etcd_pb2.RangeResponse)
_TXN = _Method("/etcdserverpb.KV/Txn", etcd_pb2.TxnRequest, etcd_pb2.TxnResponse)
_GRANT = _Method(
    "/etcdserverpb.Lease/LeaseGrant", etcd_pb2.LeaseGrantRequest, etcd_pb2.LeaseGrantResponse
)
_REVOKE = _Method(
    "/etcdserverpb.Lease/LeaseRevoke", etcd_pb2.LeaseRevokeRequest, etcd_pb2.LeaseRevokeResponse
)
_KEEP_ALIVE = _Method(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    etcd_pb2.LeaseKeepAliveRequest,
    etcd_pb2.LeaseKeepAliveResponse,
)
_WATCH = _Method("/etcdserverpb.Watch/Watch", etcd_pb2.WatchRequest, etcd_pb2.WatchResponse)


class EtcdClient:
    """See the module. Channels are made when they are first needed."""

    def __init__(self, network: Network, endpoints: Sequence[str], call_timeout_s: float) -> None:
        """`endpoints` are host:port of members: `http://` in front of one says that it is reached
        without TLS, `https://` with it, and neither: as the cluster's own processes.
        `call_timeout_s` is for one call at one member.
        """
        self._network = network
        self._endpoints = tuple(endpoints)
        self._call_timeout_s = call_timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._first = 0

    async def range(self, key: bytes, range_end: bytes) -> etcd_pb2.RangeResponse:
        """What is stored from `key` to before `range_end`, as a majority of the members knows it.

        Raises, like all that follow, `EtcdUnavailable` and `EtcdRefused`.
        """
        return await self._call(_RANGE, etcd_pb2.RangeRequest(key=key, range_end=range_end))

    async def txn(self, request: etcd_pb2.TxnRequest) -> etcd_pb2.TxnResponse:
        """A transaction. When an answer is lost it is made again at another member: its conditions
        must be such that the second time is recognised. Raises `EtcdLeaseEnded`, too."""
        return await self._call(_TXN, request)

    async def grant(self, ttl_s: int) -> etcd_pb2.LeaseGrantResponse:
        """A new lease, of at least so many seconds."""
        return await self._call(_GRANT, etcd_pb2.LeaseGrantRequest(TTL=ttl_s))

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys. Raises `EtcdLeaseEnded` when it has ended before."""
        await self._call(_REVOKE, etcd_pb2.LeaseRevokeRequest(ID=lease_id))

    async def keep_alive(self, lease_id: int, key: bytes) -> int:
        """Begin the time of the lease that `key` is bound to anew; how many seconds it has.

        It counts only if the same member can then read the key, which needs a majority: a member
        that was etcd's leader and has not noticed that it is no more would renew as well, and its
        successor would end the lease. Raises `EtcdLeaseEnded`, too.
        """
        renewal = etcd_pb2.LeaseKeepAliveRequest(ID=lease_id)

        async def renew(channel: grpc.aio.Channel) -> int:
            call = _stream(channel, _KEEP_ALIVE)(renewal, timeout=self._call_timeout_s)
            ttl_s = max([answer.TTL async for answer in call], default=0)
            found = await self._unary(channel, _RANGE, etcd_pb2.RangeRequest(key=key))
            return ttl_s if [kv.lease for kv in found.kvs] == [lease_id] else 0

        ttl_s = await self._ask(renew, lease_id)
        if ttl_s <= 0:
            raise EtcdLeaseEnded(lease_id)
        return ttl_s

    def watch(self, key: bytes, range_end: bytes, revision: int) -> EtcdWatch:
        """Watch the range from `revision` on, at the member that answered last; to be closed."""
        _, channel = self._member()
        return EtcdWatch(channel, key, range_end, revision)

    def prefer_another(self) -> None:
        """Ask the next member first, for instance since this one's watch has failed."""
        self._first = (self._first + 1) % len(self._endpoints)

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    # ------------------------------------------------------------------ members

    async def _call(self, method: _Method[RequestT, ResponseT], request: RequestT) -> ResponseT:
        async def call(channel: grpc.aio.Channel) -> ResponseT:
            return await self._unary(channel, method, request)

        return await self._ask(call, getattr(request, "ID", 0))

    async def _unary(
        self, channel: grpc.aio.Channel, method: _Method[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        call = channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        response: ResponseT = await call(request, timeout=self._call_timeout_s)
        return response

    async def _ask(self, call: Callable[[grpc.aio.Channel], Awaitable[T]], lease_id: int) -> T:
        """Make the call at one member after another, until one answers."""
        problem = ""
        for _ in self._endpoints:
            endpoint, channel = self._member()
            try:
                return await call(channel)
            except grpc.aio.AioRpcError as error:
                problem = _problem(endpoint, error, lease_id)
                if self._endpoints[self._first] == endpoint:  # no other call has turned away yet
                    self.prefer_another()
        raise EtcdUnavailable(self._endpoints, problem)

    def _member(self) -> tuple[str, grpc.aio.Channel]:
        endpoint = self._endpoints[self._first]
        if endpoint not in self._channels:
            scheme, _, address = endpoint.rpartition("://")
            self._channels[endpoint] = self._network.channel(
                address, in_clear=scheme == "http", idle_pings=False
            )
        return endpoint, self._channels[endpoint]


class EtcdWatch:
    """Tells that something has changed, but not what: whoever hears it reads anew. So nothing is
    lost with a revision that etcd has forgotten (compaction), or with a watch that ended."""

    def __init__(
        self, channel: grpc.aio.Channel, key: bytes, range_end: bytes, revision: int
    ) -> None:
        create = etcd_pb2.WatchCreateRequest(key=key, range_end=range_end, start_revision=revision)
        self._rung = asyncio.Event()
        #: Why nothing more comes; empty as long as something may.
        self.end = ""
        self._listening = asyncio.ensure_future(
            self._listen(channel, etcd_pb2.WatchRequest(create_request=create))
        )

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a change, the watch's end, or the time; whether there was a change."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return not self.end

    def close(self) -> None:
        """Watch no more."""
        self._listening.cancel()

    async def _listen(self, channel: grpc.aio.Channel, create: etcd_pb2.WatchRequest) -> None:
        call = _stream(channel, _WATCH)(create, timeout=_WATCH_TIMEOUT_S, metadata=_NEEDS_LEADER)
        try:
            async for answer in call:
                if answer.canceled:
                    self.end = answer.cancel_reason or f"compacted to {answer.compact_revision}"
                    break
                if answer.events:
                    self._rung.set()
        except grpc.aio.AioRpcError as error:
            self.end = str(error.code())
        finally:
            call.cancel()
            self.end = self.end or "etcd has ended it"
            self._rung.set()


def _stream(
    channel: grpc.aio.Channel, method: _Method[RequestT, ResponseT]
) -> grpc.aio.UnaryStreamMultiCallable[RequestT, ResponseT]:
    """A method of etcd that takes a stream of requests, of which one is enough: on the wire that is
    a call with one request. A stream would need somebody who writes it and, where the connection
    fails early, waits for ever."""
    return channel.unary_stream(
        method.path, method.request.SerializeToString, method.response.FromString
    )


def _problem(endpoint: str, error: grpc.aio.AioRpcError, lease_id: int) -> str:
    """What it was, if another member may do better; raises otherwise."""
    code = error.code()
    explanation = _EXPLANATIONS.get(code)
    text = f"{code.name} {error.details() or ''}".rstrip()
    problem = f"{text} ({explanation})" if explanation else text
    if code is grpc.StatusCode.NOT_FOUND:
        raise EtcdLeaseEnded(lease_id) from error
    if code in _REFUSALS:
        raise EtcdRefused(endpoint, problem) from error
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise EtcdUnavailable([endpoint], problem) from error
    return problem
