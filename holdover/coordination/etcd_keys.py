"""The keys of one cluster in etcd, all under `/holdover/<cluster-id>/`:

- `leader` belongs to the leader's lease, and is gone as soon as that has ended. Whoever makes the
  key leads; its value is `{"address": ..., "epoch": ...}`, without an epoch at first;
- `epoch` holds the newest epoch as decimal digits, and `storage` the word by which the cluster's
  storage directory is recognised. They stay.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from holdover.coordination import etcd_pb2
from holdover.coordination.etcd_client import EtcdClient, EtcdUnavailable, EtcdWatch
from holdover.coordination.leader import LeaderRecord, LeaderStateDamaged
from holdover.runtime import Randomness
from holdover.runtime.log import Log

# The keys are read anew after this time even if the watch is silent: a watch can be deaf (P32).
_READ_AGAIN_S = 5.0
_RETRY_S = 0.4

_REMEDY = "delete the key in etcd (etcdctl del) when no process of the cluster runs"

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class LeaderKey:
    """The leader's key. Its epoch is 0 until the leader has published it."""

    create_revision: int
    lease_id: int
    address: str
    epoch: int

    def record(self) -> LeaderRecord | None:
        """What others follow; None while there is no epoch."""
        return LeaderRecord(self.epoch, self.address) if self.epoch else None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All keys of a cluster, as they were at one revision."""

    leader: LeaderKey | None
    epoch: int
    storage_word: str


class EtcdKeys:
    """See the module."""

    def __init__(self, client: EtcdClient, randomness: Randomness, cluster_id: str) -> None:
        self.client = client
        self._randomness = randomness
        self._prefix = f"/holdover/{cluster_id}/".encode()
        self._prefix_end = self._prefix[:-1] + b"0"  # the byte after "/"
        self.leader_key = self._prefix + b"leader"
        self.epoch_key = self._prefix + b"epoch"
        self.storage_key = self._prefix + b"storage"

    async def read(self) -> tuple[ClusterState, int]:
        """The keys, and the revision. Raises `EtcdUnavailable`, `EtcdRefused`,
        `LeaderStateDamaged`.
        """
        answer = await self.client.range(self._prefix, self._prefix_end)
        return self._state(answer), answer.header.revision

    async def states(self) -> AsyncGenerator[ClusterState, None]:
        """The keys now, and whenever they have changed; never ends by itself.

        Where etcd cannot answer it is asked until it can. Raises `EtcdRefused`,
        `LeaderStateDamaged`.
        """
        known: ClusterState | None = None
        is_silent = has_rung = False
        while True:
            watch: EtcdWatch | None = None
            try:
                while True:
                    state, revision = await self.read()
                    if is_silent:
                        _log.info("etcd answers again")
                    is_silent = False
                    is_news, known = state != known, state
                    if is_news:
                        yield state
                    if watch is None:
                        watch = self.client.watch(self._prefix, self._prefix_end, revision + 1)
                    elif watch.end or (is_news and not has_rung):
                        break  # it has ended, or it is deaf
                    has_rung = await watch.wait(self._randomness.uniform(0.5, 1) * _READ_AGAIN_S)
            except EtcdUnavailable as error:
                if not is_silent:
                    _log.warning("cannot look for the leader, will retry", error=error)
                is_silent = True
            finally:
                if watch is not None:
                    watch.close()
            self.client.prefer_another()
            await self.pause()

    async def pause(self) -> None:
        """Between two attempts; not in step with others."""
        await asyncio.sleep(self._randomness.uniform(0.5 * _RETRY_S, _RETRY_S))

    async def take(self, lease_id: int, address: str) -> ClusterState | None:
        """Make the leader's key, if there is none; the keys after that, None if there is one.

        Raises `EtcdUnavailable` (it may nevertheless have been made), `EtcdLeaseEnded`, and what
        `read` raises.
        """
        value = json.dumps({"address": address}).encode()
        answer = await self.client.txn(
            etcd_pb2.TxnRequest(
                compare=[_created_at(self.leader_key, 0)],
                success=[_put(self.leader_key, value, lease_id), self._range()],
                failure=[self._range()],
            )
        )
        state = self._state(answer.responses[-1].response_range)
        # It is ours as well where the first answer was lost and the call was repeated.
        is_ours = state.leader is not None and state.leader.lease_id == lease_id
        return state if is_ours else None

    async def publish(self, leader: LeaderKey, storage_word: str) -> bool:
        """Tell all the leader's epoch and the cluster's word, if `leader` still leads; whether it
        does. Raises what `take` raises.
        """
        value = json.dumps({"address": leader.address, "epoch": leader.epoch}).encode()
        answer = await self.client.txn(
            etcd_pb2.TxnRequest(
                compare=[_created_at(self.leader_key, leader.create_revision)],
                success=[
                    _put(self.leader_key, value, leader.lease_id),
                    _put(self.epoch_key, b"%d" % leader.epoch),
                    _put(self.storage_key, storage_word.encode()),
                ],
            )
        )
        return answer.succeeded

    async def keep_alive(self, leader: LeaderKey) -> int:
        """Renew the leader's lease; how many seconds it has from now on. Raises `EtcdUnavailable`,
        `EtcdRefused`, `EtcdLeaseEnded`.
        """
        return await self.client.keep_alive(leader.lease_id, self.leader_key)

    def _range(self) -> etcd_pb2.RequestOp:
        request = etcd_pb2.RangeRequest(key=self._prefix, range_end=self._prefix_end)
        return etcd_pb2.RequestOp(request_range=request)

    def _state(self, answer: etcd_pb2.RangeResponse) -> ClusterState:
        found = {kv.key: kv for kv in answer.kvs}
        leader = found.get(self.leader_key)
        epoch = found.get(self.epoch_key)
        word = found.get(self.storage_key)
        if epoch is not None and not epoch.value.isdigit():
            raise self._damaged(self.epoch_key, "it does not hold a number")
        return ClusterState(
            leader=None if leader is None else self._leader(leader),
            epoch=0 if epoch is None else int(epoch.value),
            storage_word="" if word is None else word.value.decode(errors="replace"),
        )

    def _leader(self, kv: etcd_pb2.KeyValue) -> LeaderKey:
        try:
            fields = json.loads(kv.value)
            address, epoch = str(fields["address"]), int(fields.get("epoch", 0))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(self.leader_key, f"it is no leader record: {error}") from error
        return LeaderKey(kv.create_revision, kv.lease, address, epoch)

    def _damaged(self, key: bytes, reason: str) -> LeaderStateDamaged:
        return LeaderStateDamaged(f"key {key.decode()}", reason, _REMEDY)


def _created_at(key: bytes, revision: int) -> etcd_pb2.Compare:
    return etcd_pb2.Compare(
        key=key,
        target=etcd_pb2.Compare.CREATE,
        result=etcd_pb2.Compare.EQUAL,
        create_revision=revision,
    )


def _put(key: bytes, value: bytes, lease_id: int = 0) -> etcd_pb2.RequestOp:
    request = etcd_pb2.PutRequest(key=key, value=value, lease=lease_id)
    return etcd_pb2.RequestOp(request_put=request)
