"""Encoded records that wait to be written."""

from __future__ import annotations

from typing import Final

# Joining so many bytes takes a millisecond or two; joining all of a large backlog at once would
# hold up the event loop. It is a little more than what is usually flushed, so that a flush is one
# write.
_BLOCK_BYTES: Final = 1280 * 1024


class WriteBuffer:
    """Collects frames, and joins them to blocks on the way."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self.bytes = 0
        self.records = 0

    def add(self, frame: bytes) -> None:
        """One more record."""
        size_bytes = len(frame)
        self._frames.append(frame)
        self._frames_bytes += size_bytes
        self.bytes += size_bytes
        self.records += 1
        if self._frames_bytes >= _BLOCK_BYTES:
            self._join()

    def take(self) -> list[bytes]:
        """All that was collected, in order; from now on the buffer is empty."""
        self._join()
        blocks, self._blocks = self._blocks, []
        self.bytes = 0
        self.records = 0
        return blocks

    def clear(self) -> None:
        """Forget all that was collected."""
        self.take()

    def parts(self) -> tuple[bytes, ...]:
        """All that was collected, which stays, in pieces of any size."""
        return (*self._blocks, *self._frames)

    def _join(self) -> None:
        if self._frames:
            self._blocks.append(b"".join(self._frames))
            self._frames.clear()
            self._frames_bytes = 0
