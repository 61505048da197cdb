"""The storages of a world: one in each host, and one that all hosts share.

Model: `/shared/` is mounted in every host; every other path is the host's own. An operation takes
its latency, more for each sync, and the time of its bytes on the storage's bandwidth, which all
operations on it share in the order in which they begin. A host that loses power loses what it had
not synced: in it, and, as the cache of a network file system's client is lost, on the shared
storage; the shared storage itself lives on. What a loss leaves of unsynced content the seed decides
for each file: nothing, a first part, or zeros.

Not modelled: a shared storage that cannot be reached (`faults.hang` is that).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.world.medium import finish
from simulator.world.storage import SimulatedStorage

if TYPE_CHECKING:
    from simulator.world.process import Host
    from simulator.world.world import World

SHARED = "/shared"
_BELOW_SHARED = f"{SHARED}/"


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """How fast and how large a storage is. `latency_s` varies by half around its value."""

    latency_s: float = 0.000_2
    sync_latency_s: float = 0.001
    bytes_per_s: float = 500e6
    capacity_bytes: int = 1 << 40


class Device:
    """A storage with its speed."""

    def __init__(
        self, storage: SimulatedStorage, settings: DiskSettings, chance: random.Random
    ) -> None:
        self.storage = storage
        self.settings = settings
        self._chance = chance
        self._busy_until_s = 0.0

    def duration_s(
        self, now_s: float, path: str, n_bytes: int, syncs: int, operations: int = 1
    ) -> float:
        """How long that many operations take, one after another, that begin now."""
        settings = self.settings
        faults = self.storage.faults
        factor = faults.factor(path) if faults.active else 1.0
        latency_s = operations * settings.latency_s * (0.5 + self._chance.random())
        latency_s += settings.sync_latency_s * syncs
        if n_bytes:
            begin_s = max(now_s, self._busy_until_s)
            self._busy_until_s = begin_s + factor * n_bytes / settings.bytes_per_s
            return factor * latency_s + self._busy_until_s - now_s
        return factor * latency_s


class Storages:
    """All storages of a world."""

    def __init__(self, world: World, settings: DiskSettings | None = None) -> None:
        #: For the storages of hosts that are made from now on.
        self.settings = settings or DiskSettings()
        #: Chance for everything that disks do.
        self.chance = world.random("disk")
        self._world = world
        self._devices: dict[str, Device] = {}
        self._shared = self._new_device()
        finish(self._shared.storage.make_directories_steps(SHARED))

    @property
    def shared(self) -> SimulatedStorage:
        """What all hosts see under `/shared/`."""
        return self._shared.storage

    def of(self, host: Host) -> SimulatedStorage:
        """What is in this host."""
        return (self._devices.get(host.name) or self._new_device_of(host)).storage

    def serve_shared(self, settings: DiskSettings) -> None:
        """Give the shared storage another speed and size."""
        self._shared.settings = settings
        self._shared.storage.capacity_bytes = settings.capacity_bytes

    def power_loss(self, host: Host) -> None:
        """Lose what this host has not synced, in it and on the shared storage. Its processes are
        dead already; its storage serves the next ones."""
        storage = self.of(host)
        storage.power_loss()
        storage.power_on()
        self.shared.lose_unsynced_of(host.name)
        self._world.trace.note(host.name, "forgets", f"{storage.used_bytes} bytes are left")

    def device(self, host: Host, path: str) -> Device:
        """Where a path of this host is."""
        if path.startswith(_BELOW_SHARED) or path == SHARED:
            return self._shared
        return self._devices.get(host.name) or self._new_device_of(host)

    def _new_device_of(self, host: Host) -> Device:
        device = self._devices[host.name] = self._new_device()
        return device

    def _new_device(self) -> Device:
        storage = SimulatedStorage(self._survivor, self.settings.capacity_bytes)
        storage.keep_operations = False
        return Device(storage, self.settings, self.chance)

    def _survivor(self, unsynced: bytes) -> bytes:
        """What a loss of power leaves of content that was not synced."""
        draw = self.chance.random()
        part = unsynced[: int(self.chance.random() * (len(unsynced) + 1))]
        if draw < 0.4:
            return b""
        return part if draw < 0.8 else bytes(len(part))
