"""When a log is rewritten as a snapshot because it has grown."""

from __future__ import annotations

#: After so many flushes a snapshot is due, unless the state is large.
FLUSHES_MAX = 4096


class LogGrowth:
    """Counts the bytes of a log since its last snapshot.

    A snapshot is due once they are more than `growth_bytes_min` and more than that snapshot itself:
    however large the state, what is written is then at most twice what is appended, and what a
    leader has to replay is at most twice the state, or the state and `growth_bytes_min`. A flush
    counts as a 4096th of that minimum, however little it writes: where each leaves an object of its
    own, there are not many more of them.
    """

    def __init__(self, growth_bytes_min: int) -> None:
        self._growth_bytes_min = growth_bytes_min
        self._snapshot_bytes = 0
        self._grown_bytes = 0

    @property
    def is_due(self) -> bool:
        """Whether the log should be rewritten now."""
        return self._grown_bytes > max(self._growth_bytes_min, self._snapshot_bytes)

    def written(self, size_bytes: int) -> None:
        """Records were appended."""
        self._grown_bytes += max(size_bytes, self._growth_bytes_min // FLUSHES_MAX)

    def snapshot_written(self, size_bytes: int) -> None:
        """A snapshot has superseded all that was there before."""
        self._snapshot_bytes = size_bytes
        self._grown_bytes = 0
