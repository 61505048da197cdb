"""What happened in a run, as one digest: the same seed must give the same (P64)."""

from __future__ import annotations

import hashlib

from simulator.world.loop import VirtualLoop

#: Events that are hashed together.
_BATCH_EVENTS = 4_096


class Trace:
    """Every event of the world in order: messages, disk operations, draws, deaths, log lines.

    `keep_lines_max` lines are kept for reading, the newest; the digest covers all.
    """

    def __init__(self, loop: VirtualLoop, keep_lines_max: int = 0) -> None:
        self._loop = loop
        self._hash = hashlib.blake2b(digest_size=16)
        self._batch: list[str] = []
        self._keep_lines_max = keep_lines_max
        #: When the last line was written, and that as text.
        self._line_s, self._line_time = 0.0, f"{0.0:.9f}"
        self.lines: list[str] = []
        self.events = 0

    def note(self, who: str, what: str, detail: str = "") -> None:
        """Add one event of `who`."""
        now_s = self._loop.now_s
        if now_s != self._line_s:
            # Much happens in one moment.
            self._line_s, self._line_time = now_s, f"{now_s:.9f}"
        line = f"{self._line_time} {who} {what} {detail}\n"
        self._batch.append(line)
        self.events += 1
        if not self.events % _BATCH_EVENTS:
            self._hash_batch()
        if self._keep_lines_max:
            self.lines.append(line)
            if len(self.lines) > 2 * self._keep_lines_max:
                del self.lines[: -self._keep_lines_max]

    def _hash_batch(self) -> None:
        self._hash.update("".join(self._batch).encode())
        self._batch.clear()

    @property
    def digest(self) -> str:
        """Of everything so far, hexadecimal."""
        self._hash_batch()
        return self._hash.hexdigest()
