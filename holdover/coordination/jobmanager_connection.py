"""The worker's connection to whoever leads: find, register, stay, notice the loss.

One supervised loop. Leaders are told apart by epoch, never by address (P26): whatever shows a newer
epoch, a call, an answer or the leader record, ends the present connection and registers in full.
A leader that lives but does not know the registration any more is registered with again at once,
which is no loss (P20, P22).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import grpc.aio

from holdover import config as options
from holdover.config import Configuration
from holdover.coordination.heartbeat import RpcFailureCounter
from holdover.coordination.interrupt import Interrupt, Interrupted
from holdover.coordination.leader import LeaderRetrieval
from holdover.coordination.leader_finder import LeaderCandidate, LeaderFinder
from holdover.coordination.registration import Inventory, RegistrationAnswer, register
from holdover.coordination.registration_pace import RegistrationPace
from holdover.coordination.rpc_call import CallFailed, answer
from holdover.runtime import Runtime, may_be_insecure
from holdover.runtime.log import Log
from holdover.runtime.supervisor import RestartPolicy, Supervisor
from holdover.v1.taskmanager_pb2 import (
    HeartbeatRequest,
    RegisterHeader,
    SessionRequest,
    UnregisterRequest,
)
from holdover.v1.taskmanager_pb2_grpc import ResourceManagerStub

if TYPE_CHECKING:
    from holdover.v1.taskmanager_pb2_grpc import ResourceManagerAsyncStub

#: After a failed heartbeat the next follows this soon, or a tenth of the interval if that is less.
_RETRY_S = 0.2
#: A session stream is opened again after this time at the latest, so that it has a deadline (P54).
_SESSION_MAX_S = 3_600.0

_log = Log(__name__)


class EpochOver(Exception):
    """A call or an answer carries an epoch below one that was seen before."""

    def __init__(self, epoch: int, newest: int) -> None:
        super().__init__(f"epoch {epoch} is over; {newest} leads")
        self.newest = newest


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration that a leader has accepted. Valid while it is `JobManagerConnection.current`.

    Calls through a stub of an older registration fail, they never reach another leader.
    """

    address: str
    epoch: int
    registration_id: str
    heartbeat_interval_s: float
    heartbeat_timeout_s: float


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why a connection ended; `again` when the leader is the same and merely forgot."""

    reason: str
    again: bool = False


class JobManagerListener(Protocol):
    """What the TaskExecutor does about its connection. None of it blocks."""

    def header(self) -> RegisterHeader:
        """Who registers; the connection adds the epoch."""
        ...

    def inventory(self) -> Inventory:
        """All that is held now."""
        ...

    def registration_failed(self) -> None:
        """The inventory that was asked for last has reached nobody."""
        ...

    def registered_with(self, answer: RegistrationAnswer) -> None:
        """A leader has taken the registration."""
        ...

    def jobmanager_lost(self, reason: str) -> None:
        """The leader is lost, or another one leads."""
        ...

    def job_ended(self, job_id: str) -> None:
        """The leader says that a job is over."""
        ...

    def heartbeat(self) -> HeartbeatRequest:
        """What a heartbeat tells; the connection adds who and to whom."""
        ...


class JobManagerConnection:
    """See the module. `run` and `watch_leader` are loops for a `Supervisor`."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        resource_id: str,
        finder: LeaderFinder,
        listener: JobManagerListener,
        retrieval: LeaderRetrieval | None = None,
        on_drained: Callable[[], None] | None = None,
    ) -> None:
        """`on_drained` is called when the leader says that nothing here is needed any more."""
        self._runtime = runtime
        self._resource_id = resource_id
        self._finder = finder
        self._listener = listener
        self._on_drained = on_drained
        self._retrieval = retrieval
        self._call_timeout_s = configuration.get(options.RPC_CALL_TIMEOUT)
        self._register_timeout_s = configuration.get(options.TASKMANAGER_REGISTRATION_CALL_TIMEOUT)
        self._pace = RegistrationPace(
            configuration.get(options.TASKMANAGER_REGISTRATION_INITIAL_BACKOFF),
            configuration.get(options.TASKMANAGER_REGISTRATION_MAX_BACKOFF),
        )
        self._failure_threshold = configuration.get(options.HEARTBEAT_RPC_FAILURE_THRESHOLD)
        self._epoch_seen = 0
        self._registrations_tried = 0
        self._epoch_registered = 0
        self._lost = True  # before the first registration there is nothing to lose
        self._current: Registration | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: ResourceManagerAsyncStub | None = None
        self._connected = asyncio.Event()
        self._not_registering = asyncio.Event()
        self._not_registering.set()
        self._beat_now = asyncio.Event()
        self._newer_leader = Interrupt()
        self._record_changed = asyncio.Event()
        self._trying: LeaderCandidate | None = None
        self._end: asyncio.Future[_Ended] | None = None

    # ------------------------------------------------------------------ what others may ask

    @property
    def current(self) -> Registration | None:
        """The registration that holds, None while there is none."""
        return self._current

    @property
    def epoch_seen(self) -> int:
        """The highest epoch seen so far, 0 at first."""
        return self._epoch_seen

    def admit(self, epoch: int) -> None:
        """Note the epoch of a call or record; raises `EpochOver` when a newer one was seen.

        A newer one ends the connection to the old leader.
        """
        if epoch < self._epoch_seen:
            raise EpochOver(epoch, self._epoch_seen)
        if epoch > self._epoch_seen:
            self._epoch_seen = epoch
            if self._current is not None and epoch > self._current.epoch:
                self._finish(_Ended(f"epoch {epoch} leads"))

    async def settled(self, timeout_s: float) -> None:
        """Wait until no attempt to register is in flight, at most `timeout_s`.

        A leader may call as soon as it has sent its answer, before that was read here.
        """
        if self._not_registering.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._not_registering.wait()
        except TimeoutError:
            return

    async def connected(self) -> tuple[Registration, ResourceManagerAsyncStub]:
        """Wait for a registration, however long it takes; the stub is good for one call."""
        while True:
            await self._connected.wait()
            if self._current is not None and self._stub is not None:
                return self._current, self._stub
            await asyncio.sleep(0)

    def suspect(self) -> None:
        """A call has failed: find out at once whether the leader lives."""
        self._beat_now.set()

    def register_again(self, registration_id: str) -> None:
        """The leader has said that it does not know this registration."""
        if self._current is not None and self._current.registration_id == registration_id:
            self._finish(_Ended("the JobManager does not know the registration", again=True))

    async def unregister(self, reason: str, timeout_s: float) -> None:
        """Leave in an orderly way, if there is a leader to tell. `run` must have ended."""
        registration, stub = self._current, self._stub
        if registration is None or stub is None:
            return
        request = UnregisterRequest(
            leader_epoch=registration.epoch,
            resource_id=self._resource_id,
            registration_id=registration.registration_id,
            reason=reason,
        )
        try:
            await answer(lambda: stub.Unregister(request, timeout=timeout_s))
        except CallFailed as error:
            _log.warning("could not unregister", error=error)

    async def close(self) -> None:
        """Close the channel."""
        await self._close_channel()

    # ------------------------------------------------------------------ the loops

    async def watch_leader(self) -> None:
        """Follow the leader record, where there is one, for ever."""
        if self._retrieval is None:
            await asyncio.Event().wait()
            return
        async for record in self._retrieval.changes():
            self._record_changed.set()
            trying = self._trying
            if trying is None or record.address != trying.address:
                self._newer_leader.happen()
            if record.epoch >= self._epoch_seen:
                self.admit(record.epoch)

    async def run(self) -> None:
        """Register, stay, and again, for ever."""
        while True:
            await self._register_with_someone()
            ended = await self._stay()
            self._connected.clear()
            if not ended.again:
                self._lose(ended.reason)
            self._current = None
            _log.info("connection to the JobManager ended", reason=ended.reason, again=ended.again)

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._current = None
            self._listener.jobmanager_lost(reason)

    def _finish(self, ended: _Ended) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(ended)

    # ------------------------------------------------------------------ registering

    async def _register_with_someone(self) -> None:
        pace, draw = self._pace, self._runtime.randomness.uniform
        pace.start_anew()
        failures = 0
        while True:
            self._newer_leader.clear()
            self._record_changed.clear()
            spread_s = pace.spread_s(self._epoch_seen, draw)
            if spread_s:
                await asyncio.sleep(spread_s)
            for candidate in await self._finder.candidates():
                failure = await self._try(candidate)
                if failure is None:
                    return
                if self._newer_leader.happened:
                    break
                if failures == 0 and may_be_insecure(failure):
                    failure = await self._runtime.network.obstacle(candidate.address) or failure
                level = _log.info if failures == 0 else _log.debug
                level("cannot register", address=candidate.address, reason=failure)
            if not self._newer_leader.happened:
                failures = 0 if pace.put_off else failures + 1
                if failures >= self._failures_max():
                    # It had only forgotten the registration; now it does not answer either.
                    self._lose("the JobManager does not answer while registering again")
                if self._record_changed.is_set():
                    # It appeared while its address was tried: the next attempt is due at once.
                    pace.start_anew()
                with contextlib.suppress(Interrupted):
                    await self._newer_leader.over(partial(asyncio.sleep, pace.pause_s(draw)))
            if self._newer_leader.happened:
                # Another leader: it is about to be ready, however long its predecessor was away.
                pace.start_anew()

    async def _try(self, candidate: LeaderCandidate) -> str | None:
        """One attempt; the reason when it failed."""
        self._trying = candidate
        try:
            return await self._newer_leader.over(partial(self._attempt, candidate))
        except Interrupted:
            return "a newer leader was seen"
        finally:
            self._trying = None

    async def _attempt(self, candidate: LeaderCandidate) -> str | None:
        self._not_registering.clear()
        taken = False
        try:
            stub = await self._open_channel(candidate.address)
            header = self._listener.header()
            # Tells a leader whose time is over that it is.
            header.leader_epoch = max(candidate.epoch, self._epoch_seen)
            self._registrations_tried += 1
            header.number = self._registrations_tried
            answered = await register(
                stub, header, self._listener.inventory, self._register_timeout_s
            )
            self.admit(answered.accepted.leader_epoch)
            taken = True
            self._accepted(candidate.address, answered)
            return None
        except EpochOver as over:
            return str(over)
        except CallFailed as failed:
            self._finder.hint(failed.leader_hint)
            self._pace.put_off_for(failed.retry_after_s)
            return str(failed)
        finally:
            if not taken:
                self._listener.registration_failed()
            self._not_registering.set()

    def _accepted(self, address: str, answered: RegistrationAnswer) -> None:
        accepted = answered.accepted
        if accepted.leader_epoch > self._epoch_registered:
            self._lose(f"epoch {accepted.leader_epoch} leads")
        registration = Registration(
            address,
            accepted.leader_epoch,
            accepted.registration_id,
            accepted.heartbeat_interval_ms / 1000,
            accepted.heartbeat_timeout_ms / 1000,
        )
        self._epoch_registered = accepted.leader_epoch
        self._pace.registered(accepted.leader_epoch, accepted.reconnect_spread_ms / 1000)
        self._lost = False
        self._current = registration
        self._end = asyncio.get_running_loop().create_future()
        self._listener.registered_with(answered)
        self._connected.set()
        _log.info(
            "registered",
            address=address,
            leader_epoch=registration.epoch,
            registration_id=registration.registration_id,
            rejected=len(answered.rejected),
        )

    def _failures_max(self) -> int:
        return max(1, self._failure_threshold)

    async def _open_channel(self, address: str) -> ResourceManagerAsyncStub:
        """A new channel: it resolves the name anew and has no back-off behind it (P51, P57)."""
        await self._close_channel()
        self._channel = self._runtime.network.channel(address)
        self._stub = ResourceManagerStub(self._channel)
        return self._stub

    async def _close_channel(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    # ------------------------------------------------------------------ staying

    async def _stay(self) -> _Ended:
        registration, end = self._current, self._end
        assert registration is not None
        assert end is not None
        supervisor = Supervisor("connection", on_fatal=self._loop_ended)
        self._beat_now.set()  # the first heartbeat tells at once what registration does not
        try:
            supervisor.run("heartbeats", lambda: self._heartbeats(registration))
            supervisor.run("session", lambda: self._session(registration), RestartPolicy())
            return await end
        finally:
            await supervisor.close()

    def _loop_ended(self, name: str, exception: BaseException) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(exception)

    async def _heartbeats(self, registration: Registration) -> None:
        clock = self._runtime.clock
        failures = RpcFailureCounter(self._failure_threshold)
        interval_s = registration.heartbeat_interval_s
        answered_s = clock.monotonic_s()
        pause_s = interval_s
        while True:
            if failures.failures:
                await asyncio.sleep(pause_s)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._beat_now.wait()
            self._beat_now.clear()
            left_s = answered_s + registration.heartbeat_timeout_s - clock.monotonic_s()
            if left_s <= 0:
                self._finish(_Ended(f"silent for {registration.heartbeat_timeout_s} s"))
                return await _for_ever()
            try:
                await self._beat(registration, min(self._call_timeout_s, left_s))
            except CallFailed as failed:
                self._finder.hint(failed.leader_hint)
                pause_s = min(_RETRY_S, interval_s / 10)
                if failed.silent:
                    continue  # heartbeat.timeout decides about silence
                if failures.failure():
                    self._finish(_Ended(f"{failures.failures} calls in a row failed: {failed}"))
                    return await _for_ever()
                await self._open_channel(registration.address)
                continue
            failures.success()
            answered_s = clock.monotonic_s()
            pause_s = interval_s

    async def _beat(self, registration: Registration, timeout_s: float) -> None:
        stub = self._stub
        if stub is None:
            raise CallFailed("there is no channel")
        request = self._listener.heartbeat()
        request.leader_epoch = registration.epoch
        request.resource_id = self._resource_id
        request.registration_id = registration.registration_id
        response = await answer(lambda: stub.Heartbeat(request, timeout=timeout_s))
        if response.leader_epoch < registration.epoch:
            raise CallFailed(f"a JobManager of epoch {response.leader_epoch} answered")
        self.admit(response.leader_epoch)
        for job_id in response.ended_job_ids:
            self._listener.job_ended(job_id)
        if response.drained and self._on_drained is not None:
            self._on_drained()
        if response.register_again and response.leader_epoch == registration.epoch:
            self.register_again(registration.registration_id)

    async def _session(self, registration: Registration) -> None:
        """Hold a stream open: its break shows at once what the next heartbeat would show later."""
        request = SessionRequest(
            leader_epoch=registration.epoch,
            resource_id=self._resource_id,
            registration_id=registration.registration_id,
        )
        interval_s = registration.heartbeat_interval_s
        pause_s = min(_RETRY_S, interval_s)
        while True:
            opened_s = self._runtime.clock.monotonic_s()
            try:
                await self._read_session(request, registration.heartbeat_timeout_s)
            except (CallFailed, TimeoutError) as error:
                _log.debug("session ended", error=error)
            if self._runtime.clock.monotonic_s() - opened_s > interval_s:
                pause_s = min(_RETRY_S, interval_s)
            self._beat_now.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, interval_s)

    async def _read_session(self, request: SessionRequest, silence_max_s: float) -> None:
        stub = self._stub
        if stub is None:
            return
        call = stub.Session(request, timeout=_SESSION_MAX_S)
        try:
            while True:
                async with asyncio.timeout(silence_max_s):
                    pulse = await answer(call.read)
                if pulse is grpc.aio.EOF:
                    return
        finally:
            call.cancel()


async def _for_ever() -> None:
    """Wait to be cancelled: the owner has been told."""
    await asyncio.Event().wait()
