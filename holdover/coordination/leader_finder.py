"""Where to look for the leading JobManager."""

from __future__ import annotations

from dataclasses import dataclass

from holdover.coordination.leader import LeaderRecord, LeaderRetrieval
from holdover.runtime.log import Log

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class LeaderCandidate:
    """An address that may lead. `epoch` is what its record says, 0 when there is no record."""

    address: str
    epoch: int = 0


class LeaderFinder:
    """Candidates in the order in which they are worth trying.

    First the leader service's record, where it can be read; then what a JobManager that does not
    lead has told; then the configured address. A record that is stale costs one refused call.
    """

    def __init__(self, configured_address: str, retrieval: LeaderRetrieval | None = None) -> None:
        self._configured_address = configured_address
        self._retrieval = retrieval
        self._hint = ""
        self._unreadable = False

    def hint(self, address: str) -> None:
        """Remember an address that another JobManager named, if it did; the newest counts."""
        self._hint = address or self._hint

    async def candidates(self) -> list[LeaderCandidate]:
        """Whom to try now; never empty, no address twice."""
        record = await self._record()
        found = {} if record is None else {record.address: LeaderCandidate(*_fields(record))}
        for address in (self._hint, self._configured_address):
            if address and address not in found:
                found[address] = LeaderCandidate(address)
        self._hint = ""
        return list(found.values())

    async def _record(self) -> LeaderRecord | None:
        if self._retrieval is None:
            return None
        try:
            record = await self._retrieval.current()
        except OSError as error:
            if not self._unreadable:
                _log.warning("cannot read the leader record", error=error)
            self._unreadable = True
            return None
        self._unreadable = False
        return record


def _fields(record: LeaderRecord) -> tuple[str, int]:
    return record.address, record.epoch
