"""A proxy before the JobManager, which goes silent in one direction, or breaks connections off."""

from __future__ import annotations

import asyncio
import enum
from types import TracebackType
from typing import Self

CHUNK_BYTES = 16 * 1024
CONNECT_TIMEOUT_S = 5.0


class Direction(enum.Enum):
    """Of the bytes."""

    TO_JOBMANAGER = "to the JobManager"
    FROM_JOBMANAGER = "from the JobManager"


class Proxy:
    """Listens at `address` and forwards to `target`, both host:port."""

    def __init__(self, address: str, target: str) -> None:
        self.address = address
        self._target = target
        self._server: asyncio.Server | None = None
        self._callers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._flowing = {direction: asyncio.Event() for direction in Direction}
        for flows in self._flowing.values():
            flows.set()
        #: Break off so many further connections, each once it has brought `cut_after_bytes`.
        self.cuts_left = 0
        self.cut_after_bytes = 0

    async def __aenter__(self) -> Self:
        host, port = self.address.split(":")
        self._server = await asyncio.start_server(self._accept, host, int(port))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.restore()
        for writer in list(self._callers.values()):
            writer.transport.abort()
        await asyncio.gather(*self._callers)

    def silence(self, direction: Direction) -> None:
        """Forward nothing in that direction; connections stay open, as if packets were lost."""
        self._flowing[direction].clear()

    def restore(self) -> None:
        """Forward again, also what was held back."""
        for flows in self._flowing.values():
            flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._callers[task] = writer
        try:
            await self._forward_both(reader, writer)
        except (OSError, TimeoutError):
            pass  # nobody listens behind the proxy: the caller's connection is closed, too
        finally:
            del self._callers[task]
            writer.transport.abort()

    async def _forward_both(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host, port = self._target.split(":")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        try:
            ways = (
                asyncio.ensure_future(self._forward(reader, far_writer, Direction.TO_JOBMANAGER)),
                asyncio.ensure_future(self._forward(far_reader, writer, Direction.FROM_JOBMANAGER)),
            )
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            far_writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Until the connection ends, or is cut."""
        forwarded = 0
        while data := await reader.read(CHUNK_BYTES):
            await self._flowing[direction].wait()
            cuts = self.cuts_left and direction is Direction.TO_JOBMANAGER
            if cuts and forwarded + len(data) > self.cut_after_bytes:
                self.cuts_left -= 1
                writer.write(data[: self.cut_after_bytes - forwarded])
                await writer.drain()
                return
            writer.write(data)
            await writer.drain()
            forwarded += len(data)
