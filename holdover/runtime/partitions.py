"""Serving finished partitions to other processes, as services see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdover.v1.common_pb2 import ExecutionAttempt, FinishedExecution

# Partition name -> path of its data file, None when there is no such finished partition.
# Called from foreign threads, so it must be thread-safe.
PartitionLookup = Callable[[str], str | None]


class PartitionReceiver(Protocol):
    """Who takes partitions that are put to a server, and where their files go.

    The server writes the data and the index of each under their temporary names in `directory`; to
    give them their names is what `publish` does. What is refused raises, with words for who puts.
    All but `publish` and `discard` are called from foreign threads.
    """

    @property
    def directory(self) -> str:
        """The shuffle directory."""
        ...

    def begin(self, partition_name: str, is_copy: bool) -> int:
        """A put begins, and ends an earlier one of the same partition; returns its number.

        A copy is finished output of another shuffle service, whichever leader's it is.
        """
        ...

    def take(self, put: int, wanted_bytes: int) -> None:
        """So many bytes are about to be written."""
        ...

    def complete(self, put: int) -> None:
        """All of it was written."""
        ...

    def end(self, put: int) -> bool:
        """Its stream is over. Whether its files are to be deleted by who wrote them."""
        ...

    async def publish(self, execution: FinishedExecution, is_copy: bool) -> FinishedExecution:
        """Hold what an attempt has put as its finished output; repeating changes nothing."""
        ...

    async def discard(self, attempt: ExecutionAttempt) -> None:
        """Delete what an attempt has put and not published."""
        ...


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

    async def start(
        self,
        host: str,
        port: int,
        lookup: PartitionLookup,
        receiver: PartitionReceiver | None = None,
    ) -> PartitionServer:
        """Serve on `host:port`, where port 0 asks for a free one. Raises `AddressInUse`.

        Without `receiver` nothing can be put.
        """
        ...

    async def copy(self, directory: str, execution: FinishedExecution, address: str) -> None:
        """Put the partitions of a finished attempt, as they lie in the shuffle directory, to the
        shuffle service at `address`, and publish them there. Repeating changes nothing.

        Raises what `shuffle.errors` has for the two cases: `OutputRefused` when the other does not
        take it, `PartitionLost` when it is not here or damaged. When this is cancelled, the attempt
        may still be copied to its end.
        """
        ...
