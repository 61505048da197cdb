"""Leadership by etcd (`high-availability.type: etcd`): a lease, an election and a watch.

The leader holds a lease in etcd and a key that ends with it; whoever makes the key leads
(`holdover.coordination.etcd_keys`). The epoch is the revision at which the key came to be. It is
larger than the newest one that etcd or the storage directory knows, too, so that it still grows
where etcd was restored from a backup, or made anew.

No clocks are compared. The leader counts its lease from before it sent the renewal that etcd
granted, etcd from after it has received it, and the leader gives up at a part of it. So it has
stopped before etcd can give the leadership to another, and without hearing from etcd (P29). Loss
of contact for less than that changes nothing (P33). The renewals are sent from the event loop that
runs the scheduler: a process whose loop stands still does not renew.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from holdover.coordination.cluster_storage import ClusterStorage
from holdover.coordination.etcd_client import EtcdClient, EtcdLeaseEnded, EtcdUnavailable
from holdover.coordination.etcd_keys import ClusterState, EtcdKeys, LeaderKey
from holdover.coordination.leader import LeaderRecord, Leadership
from holdover.runtime import (
    ObjectStoreFenced,
    ObjectStoreUnavailable,
    Runtime,
    is_object_url,
)
from holdover.runtime.log import Log
from holdover.runtime.supervisor import Supervisor

# Of the lease's duration: how long the leader trusts it, the longest pause between renewals, and
# the longest after one that failed.
_TRUSTED_PART = 0.8
_RENEWAL_PART = 0.2
_RETRY_PART = 0.05
# A call at one member, of the lease's duration: all of three are tried while the lease is trusted.
_CALL_PART = 0.15
_CALL_TIMEOUT_MIN_S = 0.3
_CALL_TIMEOUT_MAX_S = 2.0
_RELEASE_TIMEOUT_S = 1.0
# Of the lease's duration: how often the leader looks whether another has used its directory.
_STORAGE_LOOK_PART = 0.5

# What ends one attempt to lead, but not the campaign.
_TO_BE_RETRIED = (EtcdUnavailable, EtcdLeaseEnded, ObjectStoreUnavailable, ObjectStoreFenced)

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """A lease that is ours with the leader's key, and until when we trust it (monotonic)."""

    leader: LeaderKey
    until_s: float


class EtcdLeaderElection:
    """A candidate. See `LeaderElection`."""

    def __init__(
        self, runtime: Runtime, keys: EtcdKeys, storage_directory: str, lease_duration_s: float
    ) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._keys = keys
        self._storage_directory = storage_directory
        self._storage = ClusterStorage(runtime.disk, storage_directory)
        self._lease_duration_s = math.ceil(lease_duration_s)
        self._held: _Held | None = None
        self._is_failing = False
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
            and self._clock.monotonic_s() < held.until_s
        )

    async def campaign(self, address: str) -> Leadership:
        """See `LeaderElection.campaign`. Raises `ForeignStorage` and `EtcdRefused`, too."""
        if self._held is not None:
            raise RuntimeError("step down before campaigning again")
        self._lost = asyncio.Event()
        leader = None
        while leader is None:
            try:
                await self._until_nobody_leads()
                leader = await self._try_to_lead(address)
            except _TO_BE_RETRIED as error:
                if not self._is_failing:
                    _log.warning("cannot campaign just now, will retry", error=error)
                self._is_failing = True
            if leader is None:
                await self._keys.pause()
        self._is_failing = False
        self._supervisor = Supervisor("etcd leader election", on_fatal=self._on_fatal)
        self._supervisor.run("renew the lease", self._renew)
        self._supervisor.run("watch the leader's key", self._watch)
        self._supervisor.run("watch the storage directory", self._watch_storage)
        _log.info("leadership won", epoch=leader.epoch, address=address)
        return Leadership(leader.epoch)

    async def step_down(self) -> None:
        """See `LeaderElection.step_down`. If etcd cannot be told, the lease ends by itself."""
        supervisor, self._supervisor = self._supervisor, None
        held, self._held = self._held, None
        if held is None:
            return
        self._lost.set()
        if supervisor is not None:
            await supervisor.close()
        await self._release(held.leader.lease_id)
        _log.info("leadership given up", epoch=held.leader.epoch)

    # ------------------------------------------------------------------ winning

    async def _until_nobody_leads(self) -> None:
        waits = False
        key = self._keys.storage_key.decode()
        async with contextlib.aclosing(self._keys.states()) as states:
            async for state in states:
                await self._storage.check(state.storage_word, key)
                if state.leader is None:
                    return
                if not waits:
                    leader = state.leader.address
                    _log.info("waiting for leadership: another process leads", leader=leader)
                waits = True

    async def _try_to_lead(self, address: str) -> LeaderKey | None:
        """The key, once this process leads and all can know; None if that did not succeed."""
        sent_s = self._clock.monotonic_s()
        lease = await self._keys.client.grant(self._lease_duration_s)
        leader = None
        try:
            state = await self._keys.take(lease.ID, address)
            if state is not None and state.leader is not None:
                self._held = _Held(state.leader, sent_s + _TRUSTED_PART * lease.TTL)
                if is_object_url(self._storage_directory):
                    self._runtime.objects.fence(self._storage_directory, self.is_leader)
                leader = await self._take_office(state, state.leader)
        finally:
            if leader is None:
                self._held = None
                await self._release(lease.ID)
        return leader

    async def _take_office(self, state: ClusterState, leader: LeaderKey) -> LeaderKey | None:
        """Find an epoch that is larger than all before, and tell it all; None if it was too late.

        The storage directory learns it last: nobody has led with what etcd does not know.
        """
        assert self._held is not None
        word = await self._cluster_word(state)
        newest = max(state.epoch, await self._storage.newest_epoch())
        epoch = max(leader.create_revision, newest + 1)
        if epoch > leader.create_revision:
            _log.warning(
                "etcd's revision is not larger than the epochs so far, going on after them",
                revision=leader.create_revision,
                epoch=epoch,
            )
        leader = replace(leader, epoch=epoch)
        if not await self._keys.publish(leader, word):
            return None
        self._held = replace(self._held, leader=leader)
        await self._storage.publish_epoch(epoch)
        return leader if self.is_leader() else None

    async def _cluster_word(self, state: ClusterState) -> str:
        """The word by which etcd and the storage directory know each other."""
        await self._storage.check(state.storage_word, self._keys.storage_key.decode())
        word = await self._storage.word()
        if not word:
            word = self._runtime.randomness.token_hex(8)
            await self._storage.publish_word(word)
        elif not state.storage_word:
            _log.warning("etcd does not know this cluster, its storage does", cluster=word)
        return word

    # ------------------------------------------------------------------ keeping

    async def _renew(self) -> None:
        """Until the leadership is lost; then there is nothing more to do."""
        duration_s = float(self._lease_duration_s)
        pause_s = _RENEWAL_PART * duration_s
        while (held := self._held) is not None and not self._lost.is_set():
            left_s = max(0.0, held.until_s - self._clock.monotonic_s())
            await asyncio.sleep(min(left_s, self._runtime.randomness.uniform(0.5, 1) * pause_s))
            sent_s = self._clock.monotonic_s()
            try:
                async with asyncio.timeout(max(0.0, held.until_s - sent_s)):
                    duration_s = await self._keys.keep_alive(held.leader)
                self._held = replace(held, until_s=sent_s + _TRUSTED_PART * duration_s)
                self._is_failing = False
                pause_s = _RENEWAL_PART * duration_s
            except EtcdLeaseEnded as error:
                self._lose(str(error.strerror))
            except (OSError, TimeoutError) as error:
                if not self._is_failing:
                    _log.warning("the lease could not be renewed, will retry", error=error)
                self._is_failing = True
                pause_s = _RETRY_PART * duration_s
            if not self.is_leader():
                self._lose("the lease could not be renewed in time")
        await asyncio.get_running_loop().create_future()

    async def _watch(self) -> None:
        """The key can be taken away before the lease ends: by a user, or with etcd's data."""
        async for state in self._keys.states():
            held = self._held
            if held is None:
                continue
            found = state.leader
            if found is None:
                self._lose("its key in etcd was deleted")
            elif found.create_revision != held.leader.create_revision:
                self._lose(f"{found.address} leads")

    async def _watch_storage(self) -> None:
        """Another etcd may have made somebody leader of the same directory, who has then raised the
        epoch there."""
        while True:
            pause_s = _STORAGE_LOOK_PART * self._lease_duration_s
            await asyncio.sleep(self._runtime.randomness.uniform(0.5, 1) * pause_s)
            try:
                newest = await self._storage.newest_epoch()
            except OSError as error:
                _log.warning("cannot read the newest epoch, will retry", error=error)
                continue
            if self._held is not None and newest > self._held.leader.epoch:
                self._lose(f"epoch {newest} leads in the same storage directory, by another etcd")

    def _lose(self, reason: str) -> None:
        if not self._lost.is_set():
            epoch = self._held.leader.epoch if self._held is not None else 0
            _log.error("leadership lost", epoch=epoch, reason=reason)
            self._lost.set()

    def _on_fatal(self, name: str, exception: BaseException) -> None:
        """A lease that nobody renews, or a key that nobody watches, is lost."""
        self._lose(f"{name} has failed: {exception!r}")

    async def _release(self, lease_id: int) -> None:
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await self._keys.client.revoke(lease_id)
        except EtcdLeaseEnded:
            pass  # then nobody has to wait for it
        except (OSError, TimeoutError) as error:
            _log.warning("the lease could not be given back, it ends by itself", error=error)


class EtcdLeaderRetrieval:
    """Finds the leader by watching its key. See `LeaderRetrieval`."""

    def __init__(self, keys: EtcdKeys) -> None:
        self._keys = keys

    async def current(self) -> LeaderRecord | None:
        """See `LeaderRetrieval.current`. None, too, while nobody leads."""
        state, _ = await self._keys.read()
        return None if state.leader is None else state.leader.record()

    async def changes(self) -> AsyncIterator[LeaderRecord]:
        """See `LeaderRetrieval.changes`."""
        epoch = 0
        while True:
            try:
                async for state in self._keys.states():
                    record = None if state.leader is None else state.leader.record()
                    if record is not None and record.epoch > epoch:
                        epoch = record.epoch
                        yield record
            except OSError as error:
                _log.warning("cannot look for the leader, will retry", error=error)
            await self._keys.pause()


class EtcdLeaderService:
    """Leadership among the processes that use one etcd and one cluster id. See `LeaderService`."""

    def __init__(
        self,
        runtime: Runtime,
        endpoints: Sequence[str],
        cluster_id: str,
        storage_directory: str,
        lease_duration_s: float,
    ) -> None:
        """`endpoints` are host:port of etcd's members; `storage_directory` is the cluster's, of
        which candidates alone make use.
        """
        timeout_s = min(_CALL_TIMEOUT_MAX_S, _CALL_PART * lease_duration_s)
        self._runtime = runtime
        self._client = EtcdClient(runtime.network, endpoints, max(_CALL_TIMEOUT_MIN_S, timeout_s))
        self._keys = EtcdKeys(self._client, runtime.randomness, cluster_id)
        self._storage_directory = storage_directory
        self._lease_duration_s = lease_duration_s

    def election(self) -> EtcdLeaderElection:
        """See `LeaderService.election`."""
        return EtcdLeaderElection(
            self._runtime, self._keys, self._storage_directory, self._lease_duration_s
        )

    def retrieval(self) -> EtcdLeaderRetrieval:
        """See `LeaderService.retrieval`."""
        return EtcdLeaderRetrieval(self._keys)

    async def close(self) -> None:
        """Close the connections to etcd."""
        await self._client.close()
