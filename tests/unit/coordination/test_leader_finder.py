"""Where a TaskManager looks for the leader, and in which order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from holdover.coordination.leader import LeaderRecord
from holdover.coordination.leader_finder import LeaderCandidate, LeaderFinder


@dataclass
class Records:
    """A leader service with one record, or none, or none that can be read."""

    record: LeaderRecord | OSError | None = None

    async def current(self) -> LeaderRecord | None:
        """See `LeaderRetrieval.current`."""
        if isinstance(self.record, OSError):
            raise self.record
        return self.record

    async def changes(self) -> AsyncIterator[LeaderRecord]:
        """Not used here."""
        for record in [self.record] if isinstance(self.record, LeaderRecord) else []:
            yield record


CONFIGURED = LeaderCandidate("configured:1")


async def test_without_a_record_the_configured_address_is_tried() -> None:
    assert await LeaderFinder("configured:1").candidates() == [CONFIGURED]
    assert await LeaderFinder("configured:1", Records()).candidates() == [CONFIGURED]


async def test_the_record_comes_first_and_an_address_only_once() -> None:
    records = Records(LeaderRecord(3, "elsewhere:1"))
    finder = LeaderFinder("configured:1", records)
    assert await finder.candidates() == [LeaderCandidate("elsewhere:1", 3), CONFIGURED]
    records.record = LeaderRecord(4, "configured:1")
    assert await finder.candidates() == [LeaderCandidate("configured:1", 4)]


async def test_a_hint_is_tried_once_before_the_configured_address() -> None:
    finder = LeaderFinder("configured:1")
    finder.hint("hinted:1")
    finder.hint("")
    assert await finder.candidates() == [LeaderCandidate("hinted:1"), CONFIGURED]
    assert await finder.candidates() == [CONFIGURED]


async def test_an_unreadable_record_leaves_the_configured_address() -> None:
    finder = LeaderFinder("configured:1", Records(PermissionError(13, "not yours")))
    assert await finder.candidates() == [CONFIGURED]
