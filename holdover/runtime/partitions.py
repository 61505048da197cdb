"""Serving finished partitions to other processes, as services see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Partition name -> path of its data file, None when there is no such finished partition.
# Called from foreign threads, so it must be thread-safe.
PartitionLookup = Callable[[str], str | None]


class PartitionServer(Protocol):
    """A running server."""

    @property
    def port(self) -> int:
        """Where it listens."""
        ...

    async def stop(self) -> None:
        """Stop serving; running transfers are ended. Stopping twice is allowed."""
        ...


class PartitionServers(Protocol):
    """The way to serve partitions. The event loop is never on the data's path."""

    async def start(self, host: str, port: int, lookup: PartitionLookup) -> PartitionServer:
        """Serve on `host:port`, where port 0 asks for a free one. Raises `AddressInUse`."""
        ...
