"""The payload of a record, from an event."""

from __future__ import annotations

from typing import Final

from holdover.v1.events_pb2 import JobEvent, JobEventRecord

_LENGTH_DELIMITED: Final = 2
_EVENT_TAG: Final = bytes(
    [JobEventRecord.DESCRIPTOR.fields_by_name["event"].number << 3 | _LENGTH_DELIMITED]
)


class RecordEncoder:
    """Encodes the records of one leader, about twice as fast as by making a `JobEventRecord` each.

    The event is encoded by itself and put behind the record's other fields, which is what protobuf
    makes of it too. A record that is filled again and again would keep the memory of all the events
    that were ever copied into it.
    """

    def __init__(self, leader_epoch: int) -> None:
        self._record = JobEventRecord(leader_epoch=leader_epoch)

    def encode(self, sequence: int, wall_ms: int, event: JobEvent) -> bytes:
        """The bytes of `JobEventRecord(sequence, leader_epoch, wall_ms, event)`."""
        record = self._record
        record.sequence = sequence
        record.wall_ms = wall_ms
        body = event.SerializeToString()
        length = len(body)
        prefix = _EVENT_PREFIXES[length] if length < _PREPARED else _event_prefix(length)
        return record.SerializeToString() + prefix + body


def _event_prefix(length: int) -> bytes:
    """What stands before an event: its tag, and its length as protobuf writes it, seven bits a
    byte, the lowest first."""
    groups = []
    while length >= 0x80:
        groups.append(length & 0x7F | 0x80)
        length >>= 7
    return _EVENT_TAG + bytes([*groups, length])


#: Of events up to this size, which most are, the prefix is at hand.
_PREPARED: Final = 1024
_EVENT_PREFIXES: Final = [_event_prefix(length) for length in range(_PREPARED)]
