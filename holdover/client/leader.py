"""The way to the leading JobManager, over as many leaders as it takes.

A call is tried again, at the next leader, after everything that only means "not now": the
connection broke, the JobManager that answered does not lead, has not loaded its jobs, leads with an
older epoch than one already seen, or says nothing (P46, P54). How long is bounded: by
`ClientTimeouts.search_s` before the first leader was found, by `failover_s` afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
import grpc.aio

from holdover.client.refusals import Transience, transience, what_the_caller_did
from holdover.errors import ClusterError, ClusterUnreachable, NotReady
from holdover.runtime import Runtime, may_be_insecure
from holdover.v1.jobmanager_pb2 import GetClusterRequest, GetClusterResponse
from holdover.v1.jobmanager_pb2_grpc import JobManagerStub

if TYPE_CHECKING:  # a name that only the stub's types know
    from holdover.v1.jobmanager_pb2_grpc import JobManagerAsyncStub

# Pauses between rounds over all known addresses: a leader that came back is found within a second.
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 1.0
# Even an attempt at the very end of a search is given the time for an answer.
_ATTEMPT_MIN_S = 0.05
# How often as much time the last attempts of a slow call get.
_ATTEMPT_GROWTH_MAX = 8
# Leaders announce new addresses; no more connections than this are kept.
_CHANNELS_MAX = 16


class FromLeader(Protocol):
    """Every answer carries its leader's epoch."""

    @property
    def leader_epoch(self) -> int:
        """The epoch of the JobManager that answered."""
        ...


class ToLeader(Protocol):
    """Every request carries the highest epoch that its sender has seen."""

    leader_epoch: int


AnswerT = TypeVar("AnswerT", bound=FromLeader)
MessageT_co = TypeVar("MessageT_co", bound=FromLeader, covariant=True)


class AnswerStream(Protocol[MessageT_co]):
    """A running call that is answered by many messages."""

    def __aiter__(self) -> AsyncIterator[MessageT_co]:
        """The messages, in order."""
        ...

    def cancel(self) -> bool:
        """End the call."""
        ...


#: Finds the leader's address (`host:port`) somewhere else than at a JobManager; None when unknown.
LeaderLookup = Callable[[], Awaitable[str | None]]


class LeaderObserver(Protocol):
    """Is told when the leader is lost and found, to tell its user."""

    def leader_lost(self, reason: str) -> None:
        """No leader answers (any more), and the client goes on looking. Once per loss."""
        ...

    def leader_found(self, address: str, epoch: int) -> None:
        """A leader answers again, or for the first time."""
        ...


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long a client waits, seconds.

    Attributes:
        call_s: for the answer to one attempt of one call.
        search_s: for a cluster from which no answer was ever had.
        failover_s: for the next leader, after one was lost.
        silence_s: for the next message of a watch, three times the interval in which the
            JobManager sends one at the latest; after it the leader counts as lost (P54).
        stream_s: life of one streaming call; after it the stream is opened anew where it was.
    """

    call_s: float = 10.0
    search_s: float = 30.0
    failover_s: float = 600.0
    silence_s: float = 6.0
    stream_s: float = 600.0


@dataclass(slots=True)
class _Search:
    """The attempts of one call, or of one reopening of a stream."""

    deadline_s: float
    pause_s: float = _PAUSE_FIRST_S
    rounds: int = 0
    queue: list[str] = field(default_factory=list)
    hints_followed: list[str] = field(default_factory=list)
    #: A ready leader that has said "not found" was confirmed to be one at this address.
    confirmed: str = ""
    problem: ClusterError | None = None
    #: Why there is no secure connection, by address; finding out costs an attempt of its own.
    obstacles: dict[str, str] = field(default_factory=dict)


class LeaderConnection:
    """Calls to whichever JobManager leads.

    Raises from its calls `ClusterUnreachable` or `NotReady` when time is up, and what
    `what_the_caller_did` makes of a leader's refusal.
    """

    def __init__(
        self,
        runtime: Runtime,
        addresses: Sequence[str],
        timeouts: ClientTimeouts,
        leader_lookup: LeaderLookup | None = None,
        observer: LeaderObserver | None = None,
    ) -> None:
        self._runtime = runtime
        self._addresses = tuple(addresses)
        self.timeouts = timeouts
        self._leader_lookup = leader_lookup
        self._observer = observer
        self._channels: dict[str, tuple[grpc.aio.Channel, JobManagerAsyncStub]] = {}
        self._leader = ""
        self._found_once = False
        self._lost = False
        #: The highest epoch seen; sent with every call.
        self.epoch = 0

    async def close(self) -> None:
        """Close all connections; running calls end."""
        channels = [channel for channel, _ in self._channels.values()]
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def ask(
        self,
        method: Callable[[JobManagerAsyncStub], Callable[..., Awaitable[AnswerT]]],
        request: ToLeader,
        *,
        job_id: str = "",
    ) -> AnswerT:
        """The leader's answer to a request, which must be safe to repeat.

        `method` picks the stub's method; `job_id` is for error messages.
        """

        def invoke(stub: JobManagerAsyncStub, timeout_s: float) -> Awaitable[AnswerT]:
            request.leader_epoch = self.epoch
            return method(stub)(request, timeout=timeout_s)

        return await self.call(invoke, job_id=job_id)

    async def call(
        self,
        invoke: Callable[[JobManagerAsyncStub, float], Awaitable[AnswerT]],
        *,
        job_id: str = "",
        attempt_timeout_s: float = 0.0,
    ) -> AnswerT:
        """The leader's answer to `invoke(stub, timeout_s)`, which must be safe to repeat.

        `attempt_timeout_s` is for attempts that may take longer than `ClientTimeouts.call_s`. An
        attempt whose time was up is given twice as much at the next, within limits: work that the
        leader needs longer for, as it does on a busy machine, is not begun anew for ever.
        """
        await self._find()
        search = self._search()
        attempt_s = max(attempt_timeout_s, self.timeouts.call_s)
        attempt_max_s = attempt_s * _ATTEMPT_GROWTH_MAX
        while True:
            address = await self._next_address(search)
            left_s = max(_ATTEMPT_MIN_S, search.deadline_s - self._runtime.clock.monotonic_s())
            try:
                answer = await invoke(self._stub(address), min(attempt_s, left_s))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    attempt_s = min(2 * attempt_s, attempt_max_s)
                await self._after_error(search, address, error, job_id)
                continue
            if self._accepts(search, address, answer.leader_epoch):
                return answer

    async def cluster(self) -> GetClusterResponse:
        """What the leader says about its cluster; it says so before it has loaded its jobs too."""
        search = self._search()
        while True:
            address = await self._next_address(search)
            request = GetClusterRequest(leader_epoch=self.epoch)
            try:
                answer = await self._stub(address).GetCluster(request, timeout=self.timeouts.call_s)
            except grpc.aio.AioRpcError as error:
                await self._after_error(search, address, error, "")
                continue
            if not answer.is_leader:
                self._note_problem(search, address, "it does not lead")
                self._follow(search, address, answer.leader_address)
            elif self._accepts(search, address, answer.leader_epoch):
                return answer

    async def listen(
        self,
        method: Callable[[JobManagerAsyncStub], Callable[..., AnswerStream[AnswerT]]],
        request: ToLeader,
        *,
        job_id: str,
        is_complete: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[AnswerT, None]:
        """The messages of a streaming call, over as many leaders as it takes.

        `request` is sent again after a break; the caller changes it meanwhile, so that it asks for
        what is still missing. The end of the stream is a break too, unless `is_complete()`.
        """
        await self._find()
        search = self._search()
        while True:
            address = await self._next_address(search)
            request.leader_epoch = self.epoch
            call = method(self._stub(address))(request, timeout=self.timeouts.stream_s)
            received = False
            try:
                messages = aiter(call)
                while True:
                    async with asyncio.timeout(self.timeouts.silence_s):
                        message = await anext(messages)
                    if not self._accepts(search, address, message.leader_epoch):
                        break
                    received = True
                    yield message
            except StopAsyncIteration:
                if is_complete():
                    return
                self._note_problem(search, address, "the stream ended before its time")
            except TimeoutError:
                silence = f"no message for {self.timeouts.silence_s:g} s"
                self._note_problem(search, address, silence)
            except grpc.aio.AioRpcError as error:
                if received and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    search = self._search(first=address)  # its time was up, nothing is wrong
                    continue
                await self._after_error(search, address, error, job_id)
            finally:
                call.cancel()
            if received:  # the time for the next leader runs from the loss of this one
                search = self._search(search.problem)

    async def _find(self) -> None:
        """Reach the cluster a first time, so that from then on a silence is a failover."""
        if not self._found_once:
            await self.cluster()

    def _search(self, problem: ClusterError | None = None, first: str = "") -> _Search:
        timeouts = self.timeouts
        patience_s = timeouts.failover_s if self._found_once else timeouts.search_s
        search = _Search(self._runtime.clock.monotonic_s() + patience_s, problem=problem)
        if first:
            search.queue.append(first)
        return search

    async def _next_address(self, search: _Search) -> str:
        """Where to try next; pauses between rounds. Raises when the time is up."""
        while not search.queue:
            if search.rounds:
                await self._pause(search)
            search.rounds += 1
            search.hints_followed.clear()
            search.queue = await self._candidates()
            if not search.queue:
                search.problem = ClusterUnreachable((), "no leader is recorded")
        return search.queue.pop(0)

    async def _pause(self, search: _Search) -> None:
        left_s = search.deadline_s - self._runtime.clock.monotonic_s()
        if left_s <= 0:
            raise search.problem or ClusterUnreachable(self._addresses, "no answer")
        pause_s = search.pause_s * self._runtime.randomness.uniform(0.5, 1.0)
        search.pause_s = min(2 * search.pause_s, _PAUSE_MAX_S)
        await asyncio.sleep(min(pause_s, left_s))

    async def _candidates(self) -> list[str]:
        """Addresses for one round: the last leader, the recorded one, then the configured ones."""
        recorded = await self._leader_lookup() if self._leader_lookup is not None else None
        candidates: list[str] = []
        for address in (recorded, self._leader, *self._addresses):
            if address and address not in candidates:
                candidates.append(address)
        return candidates

    def _stub(self, address: str) -> JobManagerAsyncStub:
        if address not in self._channels:
            channel = self._runtime.network.channel(address)
            self._channels[address] = (channel, JobManagerStub(channel))
        return self._channels[address][1]

    def _accepts(self, search: _Search, address: str, epoch: int) -> bool:
        """Whether an answer counts: not when it comes from a leader that has a successor."""
        if epoch < self.epoch:
            stale = f"it leads with epoch {epoch}, and epoch {self.epoch} was seen already"
            self._note_problem(search, address, stale)
            return False
        self.epoch = epoch
        self._leader = address
        if self._lost or not self._found_once:
            self._lost, self._found_once = False, True
            if self._observer is not None:
                self._observer.leader_found(address, epoch)
        return True

    async def _after_error(
        self, search: _Search, address: str, error: grpc.aio.AioRpcError, job_id: str
    ) -> None:
        """Note a failed attempt, or raise what the caller must know."""
        what = transience(error)
        if what.kind is Transience.FINAL:
            raise what_the_caller_did(error, job_id)
        if what.kind is Transience.IF_NOT_READY:
            if search.confirmed == address:
                raise what_the_caller_did(error, job_id)
            if await self._is_ready_leader(address):
                search.confirmed = address
                search.queue.insert(0, address)  # asked once more, now that it is known to be ready
                return
        search.confirmed = ""
        reason = what.reason
        if may_be_insecure(error.details() or ""):
            if address not in search.obstacles:
                search.obstacles[address] = await self._runtime.network.obstacle(address)
            reason = search.obstacles[address] or reason
        self._note_problem(search, address, reason, not_ready=what.not_ready)
        self._follow(search, address, what.leader_address)
        await self._drop_surplus_channels(keep=(*search.queue, self._leader, *self._addresses))

    def _follow(self, search: _Search, address: str, hint: str) -> None:
        """Try next where a JobManager that does not lead points to, once in a round."""
        if hint and hint != address and hint not in search.hints_followed:
            search.hints_followed.append(hint)
            search.queue.insert(0, hint)

    async def _is_ready_leader(self, address: str) -> bool:
        request = GetClusterRequest(leader_epoch=self.epoch)
        try:
            cluster = await self._stub(address).GetCluster(request, timeout=self.timeouts.call_s)
        except grpc.aio.AioRpcError:
            return False  # whoever asks treats the job's absence as not proven
        return cluster.is_leader and cluster.ready and cluster.leader_epoch >= self.epoch

    def _note_problem(
        self, search: _Search, address: str, reason: str, *, not_ready: bool = False
    ) -> None:
        if not_ready:
            search.problem = NotReady(f"the JobManager at {address} does not answer yet: {reason}")
        else:
            tried = self._addresses if address in self._addresses else (*self._addresses, address)
            search.problem = ClusterUnreachable(tried, reason)
        if not self._lost:
            self._lost = True
            if self._observer is not None:
                self._observer.leader_lost(f"{address}: {reason}")

    async def _drop_surplus_channels(self, keep: Sequence[str]) -> None:
        for address in list(self._channels):
            if len(self._channels) <= _CHANNELS_MAX:
                return
            if address not in keep:
                channel, _ = self._channels.pop(address)
                await channel.close()
