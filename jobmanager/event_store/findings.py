"""What a replay has seen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FindingKind(Enum):
    """Traces of a crash or of an older leader, none of which is damage."""

    TORN_TAIL = "torn tail"
    INCOMPLETE_SNAPSHOT = "incomplete snapshot"
    FOREIGN_RECORDS = "records of an older leader"


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One trace: in which file, from which byte on, and what was ignored."""

    kind: FindingKind
    path: str
    offset: int
    text: str

    def __str__(self) -> str:
        """One line, for logs and recovery reports."""
        return f"{self.kind.value} in {self.path} at byte {self.offset}: {self.text}"


@dataclass(frozen=True, slots=True)
class LogFindings:
    """Attributes:
    last_sequence: of the last record that counts; 0 for an empty log. The next writer's
        `replayed_sequence`.
    last_epoch: the leader that wrote it; 0 for an empty log.
    last_wall_ms: when, by that leader's wall clock; 0 for an empty log.
    events: events that were handed out.
    segments: segment files that were found, superseded ones among them.
    began_with_snapshot: replay started from a snapshot.
    findings: in the order of the log.
    """

    last_sequence: int
    last_epoch: int
    last_wall_ms: int
    events: int
    segments: int
    began_with_snapshot: bool
    findings: tuple[LogFinding, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever recorded: the job starts from its beginning."""
        return self.last_sequence == 0
