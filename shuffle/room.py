"""How much a shuffle service still takes: its quota, and what it leaves free on the disk."""

from __future__ import annotations

import threading

from shuffle.errors import OutputRefused


class Room:
    """Bytes of partitions, those that are being written included. Thread-safe.

    The disk is measured from time to time only: what was taken since then counts as gone from what
    was free. A room that was never measured goes by its quota alone.
    """

    def __init__(self, bytes_max: int, reserve_bytes: int) -> None:
        """`bytes_max` is the quota, 0 for none; `reserve_bytes` of the disk are left free."""
        self._bytes_max = bytes_max
        self._reserve_bytes = reserve_bytes
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._free_bytes: int | None = None
        self._closed = ""

    @property
    def held_bytes(self) -> int:
        """What was taken and not given back."""
        return self._held_bytes

    @property
    def left_bytes(self) -> int:
        """What can still be taken; 0 when the room is closed."""
        with self._lock:
            return 0 if self._closed else max(0, min(self._left().values(), default=1 << 62))

    def measured(self, free_bytes: int) -> None:
        """So many bytes are free on the disk now."""
        with self._lock:
            self._free_bytes = free_bytes

    def close(self, reason: str) -> None:
        """Take nothing from now on."""
        with self._lock:
            self._closed = reason

    def found(self, held_bytes: int) -> None:
        """So much is there already, whatever the limits say."""
        with self._lock:
            self._held_bytes += held_bytes

    def take(self, wanted_bytes: int) -> None:
        """Make room for bytes that are about to be written. Raises `OutputRefused`."""
        with self._lock:
            if self._closed:
                raise OutputRefused(f"the shuffle service takes nothing: {self._closed}")
            for limit, left_bytes in self._left().items():
                if wanted_bytes > left_bytes:
                    raise OutputRefused(
                        f"the shuffle service is full: {wanted_bytes} bytes are more than the"
                        f" {max(0, left_bytes)} that {limit} leaves"
                    )
            self._held_bytes += wanted_bytes
            if self._free_bytes is not None:
                self._free_bytes -= wanted_bytes

    def give_back(self, freed_bytes: int) -> None:
        """So much is deleted. That the disk has it again, only the next measurement tells."""
        with self._lock:
            self._held_bytes -= freed_bytes

    def _left(self) -> dict[str, int]:
        """What each limit leaves, by the option that sets it."""
        left: dict[str, int] = {}
        if self._bytes_max > 0:
            left["shuffle.service.max-bytes"] = self._bytes_max - self._held_bytes
        if self._free_bytes is not None:
            left["shuffle.service.disk-reserve"] = self._free_bytes - self._reserve_bytes
        return left
