"""Leadership by a lease in an object store, for a storage directory that is a URL.

Under `<storage directory>/leader`:

- `lease.json` holds epoch, address, holder and beat of the present leadership. It is changed only
  by whoever knows its present version, so of any number of candidates one wins, and the epoch
  only grows;
- `epoch` holds the newest epoch as well, so that it does not come back where the lease was lost.

No clocks are compared. The leader renews the lease by a new beat, and counts its leadership from
before it sent the last renewal that succeeded; a candidate counts from after it has read a
beat, and takes the lease when that has stood for the whole duration. The leader gives up at a
part of it, which leaves the rest for requests on their way.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from holdover.coordination.leader import (
    LeaderRecord,
    Leadership,
    LeaderStateDamaged,
    polled_changes,
)
from holdover.runtime import (
    ObjectConflict,
    ObjectStoreUnavailable,
    ObjectVersion,
    Runtime,
    StorageNotWritable,
)
from holdover.runtime.log import Log
from holdover.runtime.supervisor import Supervisor

# Of the lease's duration: how long the leader trusts it, and the longest pause between renewals.
_TRUSTED_PART = 0.7
_RENEWAL_PART = 0.2
# How long a candidate, or somebody who looks for the leader, waits at most before it looks again.
_POLL_PART = 0.1
_POLL_MAX_S = 1.0
_RELEASE_TIMEOUT_S = 3.0

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class _Lease:
    epoch: int
    address: str
    holder: str
    beat: int
    is_released: bool

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "epoch": self.epoch,
                "address": self.address,
                "holder": self.holder,
                "beat": self.beat,
                "released": self.is_released,
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class _Held:
    """A lease that is ours, and until when we trust it (monotonic clock)."""

    lease: _Lease
    version: ObjectVersion
    until_s: float


class ObjectLeaderElection:
    """A candidate among the processes that share one storage directory. See `LeaderElection`."""

    def __init__(self, runtime: Runtime, storage_directory: str, lease_duration_s: float) -> None:
        self._runtime = runtime
        self._objects = runtime.objects
        self._directory = storage_directory
        self._leases = _Leases(runtime, storage_directory)
        self._duration_s = lease_duration_s
        self._held: _Held | None = None
        self._lost = asyncio.Event()
        self._supervisor: Supervisor | None = None

    @property
    def lost(self) -> asyncio.Event:
        """See `LeaderElection.lost`."""
        return self._lost

    def is_leader(self) -> bool:
        """See `LeaderElection.is_leader`. False, too, once the lease may have run out."""
        held = self._held
        return (
            held is not None
            and not self._lost.is_set()
            and self._runtime.clock.monotonic_s() < held.until_s
        )

    async def campaign(self, address: str) -> Leadership:
        """See `LeaderElection.campaign`."""
        if self._held is not None:
            raise RuntimeError("step down before campaigning again")
        self._lost = asyncio.Event()
        holder = self._runtime.randomness.token_hex(8)
        try:
            held = await self._take(address, holder)
        except LeaderStateDamaged:
            raise
        except OSError as error:
            raise StorageNotWritable(self._leases.directory, error) from error
        self._held = held
        self._objects.fence(self._directory, self.is_leader)
        self._supervisor = Supervisor("object leader election", on_fatal=self._on_fatal)
        self._supervisor.run("renew the lease", self._renew)
        _log.info("leadership won", epoch=held.lease.epoch, address=address)
        return Leadership(held.lease.epoch)

    async def step_down(self) -> None:
        """See `LeaderElection.step_down`. If the lease cannot be released it runs out by itself."""
        held = self._held
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.close()
            held = self._held  # the last renewal may just have succeeded
        self._held = None
        if held is None:
            return
        was_lost = self._lost.is_set()
        self._lost.set()
        if was_lost:
            return
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                released = replace(held.lease, beat=held.lease.beat + 1, is_released=True)
                await self._leases.replace(released, held.version)
        except (OSError, TimeoutError) as error:
            _log.warning("the lease could not be released, it runs out by itself", error=error)
        _log.info("leadership given up", epoch=held.lease.epoch)

    # Winning

    async def _take(self, address: str, holder: str) -> _Held:
        clock = self._runtime.clock
        seen: ObjectVersion | None = None
        seen_s = clock.monotonic_s()
        waits = False
        while True:
            try:
                found = await self._leases.read()
                now_s = clock.monotonic_s()
                if found is not None and found[1] != seen:
                    seen, seen_s = found[1], now_s
                is_free = (
                    found is None
                    or found[0].is_released
                    or found[0].holder == holder  # a request of ours whose answer was lost
                    or now_s - seen_s >= self._duration_s
                )
                if is_free:
                    held = await self._try_to_take(found, address, holder)
                    if held is not None:
                        return held
                elif not waits:
                    _log.info(
                        "waiting for leadership: another process leads", lease=self._directory
                    )
                    waits = True
            except ObjectStoreUnavailable as error:
                _log.warning("cannot campaign just now, will retry", error=error)
            await asyncio.sleep(_poll_delay_s(self._runtime, self._duration_s))

    async def _try_to_take(
        self, found: tuple[_Lease, ObjectVersion] | None, address: str, holder: str
    ) -> _Held | None:
        """None when somebody else was faster."""
        stored_epoch, epoch_version = await self._leases.stored_epoch()
        epoch = max(stored_epoch, found[0].epoch if found is not None else 0) + 1
        lease = _Lease(epoch, address, holder, beat=1, is_released=False)
        until_s = self._trusted_from(self._runtime.clock.monotonic_s())
        try:
            version = await self._leases.replace(lease, found[1] if found is not None else None)
            await self._leases.store_epoch(epoch, epoch_version)
        except ObjectConflict:
            return None
        if self._runtime.clock.monotonic_s() >= until_s:
            return None  # it took so long that somebody else may lead; look again
        return _Held(lease, version, until_s)

    def _trusted_from(self, sent_s: float) -> float:
        return sent_s + self._duration_s * _TRUSTED_PART

    # Keeping

    async def _renew(self) -> None:
        """Until the leadership is lost; then there is nothing more to do."""
        pause_s = self._duration_s * _RENEWAL_PART
        while (held := self._held) is not None and not self._lost.is_set():
            await asyncio.sleep(self._runtime.randomness.uniform(0.5 * pause_s, pause_s))
            left_s = held.until_s - self._runtime.clock.monotonic_s()
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    if left_s > 0:
                        self._held = await self._renewed(held)
            except (OSError, TimeoutError) as error:
                _log.warning("the lease could not be renewed", error=error)
            if self._held is None or not self.is_leader():
                self._lose("it could not be renewed in time, or another process has it")
        await asyncio.get_running_loop().create_future()

    async def _renewed(self, held: _Held) -> _Held | None:
        """The lease after a renewal; None when it is somebody else's."""
        sent_s = self._runtime.clock.monotonic_s()
        lease = replace(held.lease, beat=held.lease.beat + 1)
        try:
            version = await self._leases.replace(lease, held.version)
        except ObjectConflict:
            found = await self._leases.read()
            if found is None or found[0].holder != held.lease.holder or found[0].is_released:
                return None
            # A renewal whose answer was lost: it is not counted, but built on.
            return replace(held, lease=found[0], version=found[1])
        return _Held(lease, version, self._trusted_from(sent_s))

    def _lose(self, reason: str) -> None:
        epoch = self._held.lease.epoch if self._held is not None else 0
        _log.error("leadership lost", epoch=epoch, reason=reason)
        self._lost.set()

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        """A lease that nobody renews is lost."""
        self._lose(f"{name} has failed: {exception!r}")


class ObjectLeaderRetrieval:
    """Finds the leader by polling the lease. See `LeaderRetrieval`."""

    def __init__(self, runtime: Runtime, storage_directory: str, lease_duration_s: float) -> None:
        self._runtime = runtime
        self._leases = _Leases(runtime, storage_directory)
        self._duration_s = lease_duration_s

    async def current(self) -> LeaderRecord | None:
        """See `LeaderRetrieval.current`."""
        found = await self._leases.read()
        return None if found is None else LeaderRecord(found[0].epoch, found[0].address)

    def changes(self) -> AsyncIterator[LeaderRecord]:
        """See `LeaderRetrieval.changes`."""
        return polled_changes(self.current, lambda: _poll_delay_s(self._runtime, self._duration_s))


class ObjectLeaderService:
    """Leadership among the processes that share one URL. See `LeaderService`."""

    def __init__(self, runtime: Runtime, storage_directory: str, lease_duration_s: float) -> None:
        self._runtime = runtime
        self._storage_directory = storage_directory
        self._duration_s = lease_duration_s

    def election(self) -> ObjectLeaderElection:
        """See `LeaderService.election`."""
        return ObjectLeaderElection(self._runtime, self._storage_directory, self._duration_s)

    def retrieval(self) -> ObjectLeaderRetrieval:
        """See `LeaderService.retrieval`."""
        return ObjectLeaderRetrieval(self._runtime, self._storage_directory, self._duration_s)


class _Leases:
    """The lease and the epoch in the store."""

    def __init__(self, runtime: Runtime, storage_directory: str) -> None:
        self._objects = runtime.objects
        self.directory = posixpath.join(storage_directory, "leader")
        self._lease_url = posixpath.join(self.directory, "lease.json")
        self._epoch_url = posixpath.join(self.directory, "epoch")

    async def read(self) -> tuple[_Lease, ObjectVersion] | None:
        found = await self._objects.read(self._lease_url)
        if found is None:
            return None
        try:
            fields = json.loads(found.data)
            lease = _Lease(
                int(fields["epoch"]),
                str(fields["address"]),
                str(fields["holder"]),
                int(fields["beat"]),
                bool(fields["released"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LeaderStateDamaged(self._lease_url, f"it is no lease: {error}") from error
        return lease, found.version

    async def replace(self, lease: _Lease, version: ObjectVersion | None) -> ObjectVersion:
        return await self._objects.replace(self._lease_url, lease.to_bytes(), version)

    async def stored_epoch(self) -> tuple[int, ObjectVersion | None]:
        found = await self._objects.read(self._epoch_url)
        if found is None:
            return 0, None
        digits = found.data.strip()
        if not digits.isdigit():
            raise LeaderStateDamaged(self._epoch_url, "it does not hold a number")
        return int(digits), found.version

    async def store_epoch(self, epoch: int, version: ObjectVersion | None) -> None:
        await self._objects.replace(self._epoch_url, b"%d\n" % epoch, version)


def _poll_delay_s(runtime: Runtime, duration_s: float) -> float:
    longest_s = min(_POLL_MAX_S, duration_s * _POLL_PART)
    return runtime.randomness.uniform(0.5 * longest_s, longest_s)
