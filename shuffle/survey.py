"""Which partitions of a task's inputs are lost, asked once the first of them was found so.

A task that fails for one lost partition would otherwise find the next one only in its next attempt
(P16, P34): named together, their producers run again together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from holdover.runtime.transport_security import CredentialFiles
from shuffle.environment import PartitionSource
from shuffle.errors import PartitionLost
from shuffle.flight import FetchInterrupted, FlightPartitionClient
from shuffle.partition_file import PartitionFile
from shuffle.partition_name import partition_base

#: A survey is a courtesy: it ends after this time, with what it has found.
SURVEY_TIMEOUT_S = 5.0
_CALL_TIMEOUT_S = 2.0


def lost_partitions(
    sources: Sequence[PartitionSource],
    *,
    shuffle_dir: str,
    local_address: str,
    timeout_s: float = SURVEY_TIMEOUT_S,
    credentials: CredentialFiles | None = None,
) -> list[str]:
    """Names of the partitions that are clearly lost, in the order of `sources`.

    Indexes and sizes are looked at, not contents: damage within a block is found by reading it. A
    holder that does not answer says nothing about its partitions, and is not asked again.
    """
    deadline_s = time.monotonic() + timeout_s
    clients: dict[str, FlightPartitionClient] = {}
    silent: set[str] = set()
    lost: list[str] = []
    try:
        for source in sources:
            if time.monotonic() > deadline_s:
                break
            if source.address in silent:
                continue
            try:
                if source.address == local_address:
                    PartitionFile.open(partition_base(shuffle_dir, source.name), source.name)
                    continue
                client = clients.get(source.address)
                if client is None:
                    client = FlightPartitionClient(
                        source.address, call_timeout_s=_CALL_TIMEOUT_S, files=credentials
                    )
                    clients[source.address] = client
                client.fetch(source.name, 0, 0).cancel()
            except PartitionLost:
                lost.append(source.name)
            except FetchInterrupted:
                silent.add(source.address)
    finally:
        for client in clients.values():
            client.close()
    return lost
