"""The job event store: what makes a job's finished work known to the next leader.

`JobEventWriter` writes under one leader epoch, `replay` reads what all leaders have written.
Byte format and rules: docs/event-log.md.
"""

from __future__ import annotations

from jobmanager.event_store.errors import (
    EventStoreDegraded,
    EventStoreFenced,
    EventTooLarge,
    LogDamaged,
    LogUnreadable,
    UnknownEventType,
    UnsupportedLogVersion,
)
from jobmanager.event_store.findings import FindingKind, LogFinding, LogFindings
from jobmanager.event_store.reader import replay, settled, stream_log
from jobmanager.event_store.segments import set_aside
from jobmanager.event_store.settings import EventWriterSettings
from jobmanager.event_store.status import EventStoreMode, EventStoreStatus
from jobmanager.event_store.writer import JobEventWriter

__all__ = [
    "EventStoreDegraded",
    "EventStoreFenced",
    "EventStoreMode",
    "EventStoreStatus",
    "EventTooLarge",
    "EventWriterSettings",
    "FindingKind",
    "JobEventWriter",
    "LogDamaged",
    "LogFinding",
    "LogFindings",
    "LogUnreadable",
    "UnknownEventType",
    "UnsupportedLogVersion",
    "replay",
    "set_aside",
    "settled",
    "stream_log",
]
