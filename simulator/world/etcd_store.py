"""What an etcd holds: keys with revisions, leases, and the changes since the last compaction.

Pure, so that etcd's rules can be read in one place: every change of keys is one revision, a key
that was deleted begins anew, a lease takes its keys with it.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field

from holdover.coordination import etcd_pb2


class EtcdError(Exception):
    """A request that etcd does not fulfil; the name is one of gRPC's status codes."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


@dataclass(slots=True)
class EtcdStore:
    """See the module. Times are on the clock of the server."""

    revision: int = 1
    compacted: int = 0
    keys: dict[bytes, etcd_pb2.KeyValue] = field(default_factory=dict)
    #: How long each lease lasts, by its id.
    lease_ttls_s: dict[int, int] = field(default_factory=dict)
    leases_made: int = 0
    #: Changes by revision, from the one after `compacted` on.
    changes: list[tuple[int, list[etcd_pb2.Event]]] = field(default_factory=list)

    def header(self) -> etcd_pb2.ResponseHeader:
        """What comes with every answer."""
        return etcd_pb2.ResponseHeader(cluster_id=1, member_id=1, revision=self.revision)

    def range(self, request: etcd_pb2.RangeRequest) -> etcd_pb2.RangeResponse:
        """The keys of a range."""
        found = [self.keys[key] for key in self._keys_in(request.key, request.range_end)]
        limited = found[: request.limit] if request.limit else found
        return etcd_pb2.RangeResponse(
            header=self.header(), kvs=limited, more=len(limited) < len(found), count=len(found)
        )

    def put(self, request: etcd_pb2.PutRequest) -> etcd_pb2.PutResponse:
        """Write a key, as a revision of its own."""
        answer = self.txn(etcd_pb2.TxnRequest(success=[etcd_pb2.RequestOp(request_put=request)]))
        return answer.responses[0].response_put

    def delete(self, request: etcd_pb2.DeleteRangeRequest) -> etcd_pb2.DeleteRangeResponse:
        """Delete keys, as a revision of their own."""
        op = etcd_pb2.RequestOp(request_delete_range=request)
        return self.txn(etcd_pb2.TxnRequest(success=[op])).responses[0].response_delete_range

    def txn(self, request: etcd_pb2.TxnRequest) -> etcd_pb2.TxnResponse:
        """A transaction; all its changes are one revision."""
        succeeded = all(self._holds(compare) for compare in request.compare)
        operations = request.success if succeeded else request.failure
        for operation in operations:
            lease = operation.request_put.lease
            if lease and lease not in self.lease_ttls_s:
                raise EtcdError("NOT_FOUND", "etcdserver: requested lease not found")
        events: list[etcd_pb2.Event] = []
        responses = [self._apply(operation, events) for operation in operations]
        self._record(events)
        return etcd_pb2.TxnResponse(header=self.header(), succeeded=succeeded, responses=responses)

    def grant(self, ttl_s: int) -> int:
        """A new lease; its id."""
        self.leases_made += 1
        self.lease_ttls_s[self.leases_made] = ttl_s
        return self.leases_made

    def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys."""
        if self.lease_ttls_s.pop(lease_id, None) is None:
            raise EtcdError("NOT_FOUND", "etcdserver: requested lease not found")
        events: list[etcd_pb2.Event] = []
        for key in [key for key, kv in self.keys.items() if kv.lease == lease_id]:
            self._delete(key, events)
        self._record(events)

    def compact(self, revision: int) -> None:
        """Forget the changes up to and with this revision."""
        if not self.compacted < revision <= self.revision:
            raise EtcdError("OUT_OF_RANGE", "etcdserver: mvcc: required revision is unavailable")
        self.compacted = revision
        self.changes = [change for change in self.changes if change[0] > revision]

    def events_since(self, revision: int, key: bytes, range_end: bytes) -> list[etcd_pb2.Event]:
        """What has changed in a range from `revision` on."""
        return [
            event
            for changed_at, events in self.changes
            if changed_at >= revision
            for event in events
            if _is_in(event.kv.key, key, range_end)
        ]

    def to_bytes(self) -> bytes:
        """For the disk. The changes are not kept: after a start all before it is compacted."""
        keys = [base64.b64encode(kv.SerializeToString()).decode() for kv in self.keys.values()]
        leases = [[lease_id, ttl_s] for lease_id, ttl_s in self.lease_ttls_s.items()]
        return json.dumps(
            {"revision": self.revision, "made": self.leases_made, "keys": keys, "leases": leases}
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> EtcdStore:
        """What `to_bytes` gave."""
        fields = json.loads(data)
        values = [etcd_pb2.KeyValue.FromString(base64.b64decode(kv)) for kv in fields["keys"]]
        return cls(
            revision=fields["revision"],
            compacted=fields["revision"],
            keys={kv.key: kv for kv in values},
            lease_ttls_s=dict(fields["leases"]),
            leases_made=fields["made"],
        )

    def _keys_in(self, key: bytes, range_end: bytes) -> list[bytes]:
        return sorted(each for each in self.keys if _is_in(each, key, range_end))

    def _holds(self, compare: etcd_pb2.Compare) -> bool:
        kv = self.keys.get(compare.key, etcd_pb2.KeyValue())
        seen, wanted = {
            etcd_pb2.Compare.VERSION: (kv.version, compare.version),
            etcd_pb2.Compare.CREATE: (kv.create_revision, compare.create_revision),
            etcd_pb2.Compare.MOD: (kv.mod_revision, compare.mod_revision),
        }[compare.target]
        return {
            etcd_pb2.Compare.EQUAL: seen == wanted,
            etcd_pb2.Compare.GREATER: seen > wanted,
            etcd_pb2.Compare.LESS: seen < wanted,
            etcd_pb2.Compare.NOT_EQUAL: seen != wanted,
        }[compare.result]

    def _apply(
        self, operation: etcd_pb2.RequestOp, events: list[etcd_pb2.Event]
    ) -> etcd_pb2.ResponseOp:
        match operation.WhichOneof("request"):
            case "request_range":
                return etcd_pb2.ResponseOp(response_range=self.range(operation.request_range))
            case "request_put":
                self._put(operation.request_put, events)
                return etcd_pb2.ResponseOp(response_put=etcd_pb2.PutResponse())
            case _:
                request = operation.request_delete_range
                keys = self._keys_in(request.key, request.range_end)
                for key in keys:
                    self._delete(key, events)
                deleted = etcd_pb2.DeleteRangeResponse(deleted=len(keys))
                return etcd_pb2.ResponseOp(response_delete_range=deleted)

    def _put(self, request: etcd_pb2.PutRequest, events: list[etcd_pb2.Event]) -> None:
        old = self.keys.get(request.key)
        kv = etcd_pb2.KeyValue(
            key=request.key,
            create_revision=self.revision + 1 if old is None else old.create_revision,
            mod_revision=self.revision + 1,
            version=1 if old is None else old.version + 1,
            value=request.value,
            lease=request.lease,
        )
        self.keys[request.key] = kv
        events.append(etcd_pb2.Event(type=etcd_pb2.Event.PUT, kv=kv))

    def _delete(self, key: bytes, events: list[etcd_pb2.Event]) -> None:
        del self.keys[key]
        gone = etcd_pb2.KeyValue(key=key, mod_revision=self.revision + 1)
        events.append(etcd_pb2.Event(type=etcd_pb2.Event.DELETE, kv=gone))

    def _record(self, events: list[etcd_pb2.Event]) -> None:
        if events:
            self.revision += 1
            self.changes.append((self.revision, events))


def _is_in(key: bytes, first: bytes, range_end: bytes) -> bool:
    return first <= key < range_end if range_end else key == first
