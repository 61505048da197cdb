"""The words between the leader service of a world and its clients: small JSON objects."""

from __future__ import annotations

import json
from typing import Any

from holdover.coordination.leader import LeaderRecord

SERVICE = "simulator.LeaderService"
#: Waits until the candidate has the lease: {candidate, address} -> {epoch, ttl_s}. Repeating it is
#: safe: who has the lease is told so at once.
ACQUIRE = "Acquire"
#: {candidate} -> {held}: if the candidate still has the lease, it lasts for a whole TTL from now.
RENEW = "Renew"
#: {candidate} -> {}: gives the lease, or the place among those who wait for it, up.
RESIGN = "Resign"
#: {} -> record
CURRENT = "Current"
#: {after} -> records with an epoch larger than `after`, the present one first; never ends.
WATCH = "Watch"


def method_path(method: str) -> str:
    """A method as channels name it."""
    return f"/{SERVICE}/{method}"


def encode(**fields: str | float | bool) -> bytes:
    """A message."""
    return json.dumps(fields, sort_keys=True).encode()


def decode(message: bytes) -> dict[str, Any]:
    """Its fields."""
    fields: dict[str, Any] = json.loads(message)
    return fields


def encode_record(record: LeaderRecord | None) -> bytes:
    """A record, or that there is none."""
    return encode(epoch=0) if record is None else encode(epoch=record.epoch, address=record.address)


def decode_record(message: bytes) -> LeaderRecord | None:
    """The record of a message, if any."""
    fields = decode(message)
    return LeaderRecord(fields["epoch"], fields["address"]) if fields["epoch"] else None
