"""What the event store tells its callers, one branch for each decision they can make.

StorageError
|-- EventStoreDegraded        events are not durable in time; the writer keeps trying
|   `-- EventStoreFenced      ... and never will be: this process leads no longer
|-- EventTooLarge             the event cannot be written at all; do not append it
`-- LogUnreadable             the job cannot be recovered from its log
    |-- LogDamaged            set the log aside and start the job from the beginning
    |   `-- UnknownEventType  ... or rather run the version that wrote it
    `-- UnsupportedLogVersion run the version that wrote it; the files stay as they are
"""

from __future__ import annotations

from holdover.errors import StorageError


class EventStoreDegraded(StorageError):
    """Events could not be made durable in time. The writer goes on trying."""


class EventStoreFenced(EventStoreDegraded):
    """Events will not become durable: another process leads. The writer has given up."""


class EventTooLarge(StorageError):
    """One event is larger than a record may be."""


class LogUnreadable(StorageError):
    """The log cannot be replayed. `offset` is where in the file, in bytes; `text` says why."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, f"at byte {offset}: {reason}")
        self.offset = offset
        self.text = reason


class LogDamaged(LogUnreadable):
    """Records are missing or unreadable at a place where no crash can be the cause (case P03)."""


class UnknownEventType(LogDamaged):
    """A record is whole but of a kind that this version does not know (case P07)."""


class UnsupportedLogVersion(LogUnreadable):
    """A newer version has written the segment; nothing is touched (case P07)."""

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(
            path,
            0,
            f"event log format version {found} is not supported, only up to {supported};"
            " run the version of Holdover that wrote it, or cancel the job",
        )
        self.found = found
        self.supported = supported
