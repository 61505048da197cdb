"""The way from a cancel command, which another thread reads, to a task that is deep in its work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taskmanager.operators.errors import TaskCancelled


class Cancellation:
    """One attempt's cancellation. `request` may be called from any thread, the rest by the task."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._lock = threading.Lock()
        self._interrupts: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        """Whether the attempt shall end."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ends every wait and interrupts every foreign library that computes for the attempt."""
        self._requested.set()
        with self._lock:
            interrupts = list(self._interrupts)
        for interrupt in interrupts:
            interrupt()

    def check(self) -> None:
        """Raises TaskCancelled when the attempt shall end."""
        if self._requested.is_set():
            raise TaskCancelled

    def wait(self, seconds: float) -> None:
        """Does nothing for a while; raises TaskCancelled as soon as the attempt shall end."""
        if self._requested.wait(seconds):
            raise TaskCancelled

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Within this context, `request` calls `interrupt`, from its own thread."""
        self.check()
        with self._lock:
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
