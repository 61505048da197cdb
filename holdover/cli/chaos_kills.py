"""Who is killed when: drawn from a seed, and done to a local cluster with `kill -9`."""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from holdover.cli.local_cluster import JOBMANAGER, LocalCluster

# How often a process that has ended without being killed is looked for.
_WATCH_S = 0.2


class KillKind(enum.Enum):
    """What is killed at one stroke."""

    JOBMANAGER = "the JobManager"
    TASKMANAGER = "a TaskManager"
    BOTH = "the JobManager and a TaskManager"
    TASKMANAGERS = "two TaskManagers"
    EVERYTHING = "every process"


# Out of a hundred strokes.
_WEIGHTS = {
    KillKind.JOBMANAGER: 40,
    KillKind.TASKMANAGER: 35,
    KillKind.BOTH: 15,
    KillKind.TASKMANAGERS: 5,
    KillKind.EVERYTHING: 5,
}


@dataclass(frozen=True, slots=True)
class Stroke:
    """Processes that are killed together, so long after the stroke before."""

    pause_s: float
    kind: KillKind
    jobmanager: bool
    taskmanagers: tuple[int, ...]


def strokes(seed: int, taskmanagers: int, pause_s: tuple[float, float]) -> Iterator[Stroke]:
    """Endless; the same seed draws the same strokes."""
    chance = random.Random(f"strokes of {seed}")
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    while True:
        pause = chance.uniform(*pause_s)
        (kind,) = chance.choices(kinds, weights)
        counts = {
            KillKind.JOBMANAGER: 0,
            KillKind.TASKMANAGERS: min(2, taskmanagers),
            KillKind.EVERYTHING: taskmanagers,
        }
        victims = sorted(chance.sample(range(taskmanagers), counts.get(kind, 1)))
        jobmanager = kind in (KillKind.JOBMANAGER, KillKind.BOTH, KillKind.EVERYTHING)
        yield Stroke(pause, kind, jobmanager, tuple(victims))


class Killer:
    """Kills processes of a cluster and starts them again at once, as a supervisor would."""

    def __init__(
        self, cluster: LocalCluster, say: Callable[[str], None], look: Callable[[Stroke], None]
    ) -> None:
        """
        Args:
            cluster: running.
            say: is told every stroke.
            look: is called when a stroke's victims are dead and none has been started again.
        """
        self._cluster = cluster
        self._say = say
        self._look = look
        # Held while processes are dead that are to be started again.
        self._at_work = asyncio.Lock()
        #: Strokes so far.
        self.made: dict[KillKind, int] = dict.fromkeys(KillKind, 0)
        #: Processes killed so far.
        self.killed = 0
        #: Processes that have ended without being killed.
        self.unexpected_ends: list[str] = []

    async def run(self, planned: Iterator[Stroke], over: asyncio.Event) -> None:
        """Make one stroke after the other until it is over; then everything runs again."""
        for stroke in planned:
            with suppress(TimeoutError):
                async with asyncio.timeout(stroke.pause_s):
                    await over.wait()
                return
            async with self._at_work:
                await self._make(stroke)

    async def watch(self) -> None:
        """Start again what has ended by itself, and remember that; for ever."""
        while True:
            await asyncio.sleep(_WATCH_S)
            async with self._at_work:
                for name in sorted(set(self._cluster.recorded()) - set(self._cluster.processes())):
                    self.unexpected_ends.append(f"{name}\n{self._cluster.log_tail(name)}")
                    self._say(f"{name} has ended by itself")
                    self._start(name)

    async def _make(self, stroke: Stroke) -> None:
        names = [self._cluster.taskmanager_name(index) for index in stroke.taskmanagers]
        if stroke.jobmanager:
            names.insert(0, JOBMANAGER)
        self._say(f"kill -9 {' '.join(names)}")
        await asyncio.gather(
            *([self._cluster.kill_jobmanager()] if stroke.jobmanager else []),
            *(self._cluster.kill_taskmanager(index) for index in stroke.taskmanagers),
        )
        self.made[stroke.kind] += 1
        self.killed += len(names)
        self._look(stroke)
        for name in names:
            self._start(name)

    def _start(self, name: str) -> None:
        if name == JOBMANAGER:
            self._cluster.start_jobmanager()
            return
        names = [
            self._cluster.taskmanager_name(index) for index in range(self._cluster.taskmanagers)
        ]
        self._cluster.start_taskmanager(names.index(name))
