"""How processes use the leader service of a world: campaign, keep the lease, watch.

A leader holds itself for one only while its lease surely lasts: for a time to live, less a margin
for clocks that run apart, from the moment at which it *sent* the last renewal that was granted. It
says so before the service can give the lease to another, without hearing from the service. A
paused process cannot: what it does when it goes on is for the epoch to fence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from holdover.coordination.leader import LeaderRecord, Leadership
from holdover.runtime import Runtime
from holdover.runtime.log import Log
from holdover.runtime.supervisor import Supervisor
from simulator.world import leader_protocol as protocol

#: How much sooner than the service a leader takes its lease for ended, as a part of the TTL.
MARGIN = 0.1
#: A lease is renewed when this part of its TTL has passed, and after a failure sooner.
RENEW_AFTER = 1 / 3
_RENEW_RETRY_AFTER = 1 / 12
_CALL_TIMEOUT_S = 2.0
_RESIGN_TIMEOUT_S = 1.0
#: Calls that wait for something to happen are made anew after so long.
_ACQUIRE_TIMEOUT_S = 60.0
_WATCH_TIMEOUT_S = 600.0
_RETRY_S = 0.5

if TYPE_CHECKING:
    _Unary = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    _Stream = grpc.aio.UnaryStreamMultiCallable[bytes, bytes]

_log = Log(__name__)


class LeaderServiceClient:
    """The leader service, as one process has it. See `LeaderService`."""

    def __init__(self, runtime: Runtime, address: str) -> None:
        self._runtime = runtime
        self._channel = runtime.network.channel(address)

    def election(self) -> LeaseElection:
        """See `LeaderService.election`."""
        return LeaseElection(self._runtime, self._channel)

    def retrieval(self) -> LeaderWatch:
        """See `LeaderService.retrieval`."""
        return LeaderWatch(self._runtime, self._channel)


class LeaseElection:
    """A candidate for the lease. See `LeaderElection`."""

    def __init__(self, runtime: Runtime, channel: grpc.aio.Channel) -> None:
        self._clock = runtime.clock
        self._randomness = runtime.randomness
        self._acquire: _Unary = channel.unary_unary(protocol.method_path(protocol.ACQUIRE))
        self._renew: _Unary = channel.unary_unary(protocol.method_path(protocol.RENEW))
        self._resign: _Unary = channel.unary_unary(protocol.method_path(protocol.RESIGN))
        self._candidate = ""
        self._epoch = 0
        self._ttl_s = 0.0
        self._valid_until_s = 0.0
        # Whether the last call failed: each loss of the service is logged once.
        self._failing = False
        self._lost = asyncio.Event()
        self._supervisor: Supervisor | None = None

    @property
    def lost(self) -> asyncio.Event:
        """See `LeaderElection.lost`."""
        return self._lost

    def is_leader(self) -> bool:
        """See `LeaderElection.is_leader`. Never after the lease could have ended."""
        return (
            self._supervisor is not None
            and not self._lost.is_set()
            and self._clock.monotonic_s() < self._valid_until_s
        )

    async def campaign(self, address: str) -> Leadership:
        """See `LeaderElection.campaign`."""
        if self._candidate:
            raise RuntimeError("step down before campaigning again")
        self._lost = asyncio.Event()
        self._candidate = candidate = self._randomness.token_hex(8)
        try:
            while True:
                if await self._won(address):
                    break
                await asyncio.sleep(self._randomness.uniform(0.5 * _RETRY_S, _RETRY_S))
        except BaseException:
            self._candidate = ""
            await self._give_up(candidate)
            raise
        supervisor = self._supervisor = Supervisor("lease election", self._on_fatal)
        supervisor.run("keep the lease", self._keep)
        supervisor.run("watch the lease end", self._watch_the_end)
        _log.info("leadership won", epoch=self._epoch, address=address)
        return Leadership(self._epoch)

    async def step_down(self) -> None:
        """See `LeaderElection.step_down`. Where the service cannot be reached, the lease ends by
        itself."""
        candidate, self._candidate = self._candidate, ""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            self._lost.set()
            await supervisor.close()
            await self._give_up(candidate)
            _log.info("leadership given up", epoch=self._epoch)

    async def _won(self, address: str) -> bool:
        """Wait for the lease, and make sure that it lasts: it may have been granted long before
        this process heard of it."""
        try:
            request = protocol.encode(candidate=self._candidate, address=address)
            granted = protocol.decode(await self._acquire(request, timeout=_ACQUIRE_TIMEOUT_S))
            self._epoch, self._ttl_s = granted["epoch"], granted["ttl_s"]
            return await self._renewed()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED and not self._failing:
                _log.warning("the leader service does not answer, will retry", error=error.code())
                self._failing = True
            return False

    async def _renewed(self) -> bool:
        sent_s = self._clock.monotonic_s()
        timeout_s = min(_CALL_TIMEOUT_S, RENEW_AFTER * self._ttl_s)
        answer = await self._renew(protocol.encode(candidate=self._candidate), timeout=timeout_s)
        held: bool = protocol.decode(answer)["held"]
        self._failing = False
        if held:
            self._valid_until_s = sent_s + (1 - MARGIN) * self._ttl_s
        return held

    async def _keep(self) -> None:
        wait_s = RENEW_AFTER * self._ttl_s
        while True:
            await asyncio.sleep(wait_s)
            if self._lost.is_set():
                continue  # there is nothing to keep before `step_down` ends this
            try:
                if not await self._renewed():
                    self._lose("the service has ended the lease")
                wait_s = RENEW_AFTER * self._ttl_s
            except grpc.aio.AioRpcError as error:
                if not self._failing:
                    _log.warning("cannot renew the lease, will retry", error=error.code())
                self._failing = True
                wait_s = _RENEW_RETRY_AFTER * self._ttl_s

    async def _watch_the_end(self) -> None:
        while True:
            remaining_s = self._valid_until_s - self._clock.monotonic_s()
            if remaining_s <= 0:
                self._lose("the lease was not renewed in time")
                remaining_s = self._ttl_s
            await asyncio.sleep(remaining_s)

    def _lose(self, reason: str) -> None:
        if not self._lost.is_set():
            _log.error("leadership lost", epoch=self._epoch, reason=reason)
            self._lost.set()

    async def _give_up(self, candidate: str) -> None:
        try:
            await self._resign(protocol.encode(candidate=candidate), timeout=_RESIGN_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            _log.warning("the lease ends by itself", error=error.code())

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        raise AssertionError(f"{name!r} ended") from exception


class LeaderWatch:
    """Is told of each leader. See `LeaderRetrieval`."""

    def __init__(self, runtime: Runtime, channel: grpc.aio.Channel) -> None:
        self._randomness = runtime.randomness
        self._current: _Unary = channel.unary_unary(protocol.method_path(protocol.CURRENT))
        self._watch: _Stream = channel.unary_stream(protocol.method_path(protocol.WATCH))

    async def current(self) -> LeaderRecord | None:
        """See `LeaderRetrieval.current`. Raises `ConnectionError`: the service does not answer."""
        try:
            answer = await self._current(
                protocol.encode(), timeout=_CALL_TIMEOUT_S, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(f"the leader service does not answer: {error.code()}") from error
        return protocol.decode_record(answer)

    async def changes(self) -> AsyncIterator[LeaderRecord]:
        """See `LeaderRetrieval.changes`."""
        epoch = 0
        failing = False
        while True:
            timeout_s = self._randomness.uniform(0.5 * _WATCH_TIMEOUT_S, _WATCH_TIMEOUT_S)
            call = self._watch(protocol.encode(after=epoch), timeout=timeout_s)
            try:
                async for message in call:
                    failing = False
                    record = protocol.decode_record(message)
                    if record is not None and record.epoch > epoch:
                        epoch = record.epoch
                        yield record
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
                if not failing:
                    _log.warning("the leader service is lost, will retry", error=error.code())
                failing = True
            finally:
                call.cancel()
            await asyncio.sleep(self._randomness.uniform(0.5 * _RETRY_S, _RETRY_S))
