"""When the garbage of worlds is collected: at counted moments, so that every run collects alike.

While a world runs, Python's collector is off. A large world has its garbage collected after so many
callbacks; what is left of worlds that are over is collected before another one begins. Python would
do that seldom by itself: it counts next to nothing of what is made while it is off.
"""

from __future__ import annotations

import asyncio.events
import atexit
import gc
from collections.abc import Generator
from contextlib import contextmanager

#: Callbacks of a world between two collections. A collection walks through all of a world, and what
#: it finds is what dead processes have left: some objects for each subtask that a dead JobManager
#: knew, next to nothing for each callback.
CALLBACKS_PER_COLLECTION = 16_000_000
#: Callbacks of worlds that are over, whose remains are left where they are. A large world is most
#: often the last of its process, and need not be walked through when it is over.
CALLBACKS_OVER_MAX = 100_000

_callbacks_over = 0


@contextmanager
def no_collections() -> Generator[None, None, None]:
    """Nothing is collected but by `collect`. What there is at the end is left in peace until
    `world_over`: a record is made of it, and a collection would walk through the whole world."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


def collect() -> None:
    """Collect the garbage of a world that goes on. What survives is not looked at again while it
    runs: most of it stays to the end, and there is more of it each time."""
    gc.collect()
    gc.freeze()


def world_begins() -> None:
    """Let go of worlds that are over, if they were large or many and no world runs."""
    global _callbacks_over
    if _callbacks_over > CALLBACKS_OVER_MAX and asyncio.events._get_running_loop() is None:
        _callbacks_over = 0
        gc.collect()


def world_over(callbacks: int) -> None:
    """A world that has made so many callbacks was closed: all of it may be collected, but not when
    the process ends, where that would take as long as a sixth of the run."""
    global _callbacks_over
    gc.unfreeze()
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    _callbacks_over += callbacks
