"""Who is killed when: drawn from a seed, and done to a local cluster with `kill -9`."""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from holdover.cli.local_cluster import JOBMANAGER, LocalCluster

# How often a process that has ended without being killed is looked for.
_WATCH_S = 0.2


class KillKind(enum.Enum):
    """What is killed at one stroke."""

    JOBMANAGER = "the JobManager"
    TASKMANAGER = "a TaskManager"
    BOTH = "the JobManager and a TaskManager"
    TASKMANAGERS = "two TaskManagers"
    SERVICE = "a shuffle service"
    JOBMANAGER_AND_SERVICE = "the JobManager and a shuffle service"
    ALL_BUT_SERVICES = "the JobManager and every TaskManager"
    EVERYTHING = "every process"


# Out of a hundred strokes, without and with shuffle services.
_WEIGHTS = {
    KillKind.JOBMANAGER: 40,
    KillKind.TASKMANAGER: 35,
    KillKind.BOTH: 15,
    KillKind.TASKMANAGERS: 5,
    KillKind.EVERYTHING: 5,
}
_WEIGHTS_EXTERNAL = {
    KillKind.JOBMANAGER: 25,
    KillKind.TASKMANAGER: 15,
    KillKind.BOTH: 10,
    KillKind.TASKMANAGERS: 5,
    KillKind.SERVICE: 20,
    KillKind.JOBMANAGER_AND_SERVICE: 10,
    KillKind.ALL_BUT_SERVICES: 10,
    KillKind.EVERYTHING: 5,
}
_WITH_JOBMANAGER = (
    KillKind.JOBMANAGER,
    KillKind.BOTH,
    KillKind.JOBMANAGER_AND_SERVICE,
    KillKind.ALL_BUT_SERVICES,
    KillKind.EVERYTHING,
)


@dataclass(frozen=True, slots=True)
class Stroke:
    """Processes that are killed together, so long after the stroke before."""

    pause_s: float
    kind: KillKind
    jobmanager: bool
    taskmanagers: tuple[int, ...]
    shuffle_services: tuple[int, ...] = ()


def _weights(shuffle_services: int) -> dict[KillKind, int]:
    return _WEIGHTS_EXTERNAL if shuffle_services else _WEIGHTS


def strokes(
    seed: int, taskmanagers: int, pause_s: tuple[float, float], shuffle_services: int = 0
) -> Iterator[Stroke]:
    """Endless; the same seed draws the same strokes."""
    chance = random.Random(f"strokes of {seed}")
    drawn = _weights(shuffle_services)
    kinds, weights = list(drawn), list(drawn.values())
    while True:
        pause = chance.uniform(*pause_s)
        (kind,) = chance.choices(kinds, weights)
        counts = {
            KillKind.JOBMANAGER: 0,
            KillKind.TASKMANAGERS: min(2, taskmanagers),
            KillKind.SERVICE: 0,
            KillKind.JOBMANAGER_AND_SERVICE: 0,
            KillKind.ALL_BUT_SERVICES: taskmanagers,
            KillKind.EVERYTHING: taskmanagers,
        }
        services = {
            KillKind.SERVICE: 1,
            KillKind.JOBMANAGER_AND_SERVICE: 1,
            KillKind.EVERYTHING: shuffle_services,
        }
        victims = sorted(chance.sample(range(taskmanagers), counts.get(kind, 1)))
        also = sorted(chance.sample(range(shuffle_services), services.get(kind, 0)))
        yield Stroke(pause, kind, kind in _WITH_JOBMANAGER, tuple(victims), tuple(also))


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
        self._starts: dict[str, Callable[[], int]] = {JOBMANAGER: cluster.start_jobmanager}
        for index in range(cluster.taskmanagers):
            name = cluster.taskmanager_name(index)
            self._starts[name] = partial(cluster.start_taskmanager, index)
        for index in range(cluster.shuffle_services):
            name = cluster.shuffle_service_name(index)
            self._starts[name] = partial(cluster.start_shuffle_service, index)
        self._say = say
        self._look = look
        # Held while processes are dead that are to be started again.
        self._at_work = asyncio.Lock()
        #: Strokes so far.
        self.made: dict[KillKind, int] = dict.fromkeys(_weights(cluster.shuffle_services), 0)
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
                    self._starts[name]()

    async def _make(self, stroke: Stroke) -> None:
        names = [*([JOBMANAGER] if stroke.jobmanager else []), *self.workers_of(stroke)]
        self._say(f"kill -9 {' '.join(names)}")
        await asyncio.gather(
            *([self._cluster.kill_jobmanager()] if stroke.jobmanager else []),
            *(self._cluster.kill_taskmanager(index) for index in stroke.taskmanagers),
            *(self._cluster.kill_shuffle_service(index) for index in stroke.shuffle_services),
        )
        self.made[stroke.kind] += 1
        self.killed += len(names)
        self._look(stroke)
        for name in names:
            self._starts[name]()

    def workers_of(self, stroke: Stroke) -> list[str]:
        """Names of the TaskManagers and shuffle services that a stroke kills."""
        return [
            *map(self._cluster.taskmanager_name, stroke.taskmanagers),
            *map(self._cluster.shuffle_service_name, stroke.shuffle_services),
        ]
