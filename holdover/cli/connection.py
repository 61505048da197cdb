"""From a command's options to a client, and what is told when the leader is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdover.cli.command_line import local_directory, tell
from holdover.cli.local_cluster import LocalCluster, leader_lookup
from holdover.client import Client, LeaderObserver
from holdover.config import (
    HIGH_AVAILABILITY_ETCD_ENDPOINTS,
    HIGH_AVAILABILITY_STORAGE_DIR,
    JOBMANAGER_RPC_ADDRESS,
    JOBMANAGER_RPC_PORT,
    OPTIONS,
    Configuration,
)
from holdover.errors import ClusterError
from holdover.runtime.real import real_runtime
from holdover.runtime.transport_security import credential_files

# A leader that is found within this time is not worth a message.
_PATIENCE_S = 1.0
# Options that say where the leader's record is, and where a cluster is.
_RECORDS = (HIGH_AVAILABILITY_STORAGE_DIR, HIGH_AVAILABILITY_ETCD_ENDPOINTS)
_PLACES = (JOBMANAGER_RPC_ADDRESS, JOBMANAGER_RPC_PORT, *_RECORDS)


class NoClusterKnown(ClusterError):
    """Nothing says where the cluster is."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command finds its cluster, as its user said."""

    addresses: Sequence[str]
    directory: Path | None
    config_file: Path | None
    defines: Sequence[str]

    def configuration(self) -> Configuration:
        """Options from file, environment and `-D`, without those that are meant for a job."""
        file = self.config_file or os.environ.get("HOLDOVER_CONFIG") or None
        own = [text for text in self.defines if not is_for_job(text)]
        return Configuration.load(str(file) if file is not None else None, os.environ, own)

    def job_options(self) -> dict[str, str]:
        """What `-D` sets for a job."""
        pairs = (text.partition("=") for text in self.defines if is_for_job(text))
        return {key.strip(): value.strip() for key, _, value in pairs}

    def is_local(self) -> bool:
        """Whether nothing but the local cluster's record says where the cluster is."""
        if self.addresses:
            return False
        configured = [entry.key for entry in self.configuration().to_entries()]
        return not any(option.key in configured for option in _PLACES)

    def client(self, observer: LeaderObserver | None = None) -> Client:
        """A client of the cluster; `--address` first, then the configuration, then the local one.

        Raises NoClusterKnown.
        """
        config = self.configuration()
        observer = observer or LeaderNotices()
        if self.addresses:
            return Client(self.addresses, config, observer=observer)
        if not self.is_local():
            runtime = real_runtime(credentials=credential_files(config))
            configured = [entry.key for entry in config.to_entries()]
            lookup = None
            if any(option.key in configured for option in _RECORDS):
                lookup = leader_lookup(runtime, config)
            address = f"{config.get(JOBMANAGER_RPC_ADDRESS)}:{config.get(JOBMANAGER_RPC_PORT)}"
            return Client(address, config, runtime, leader_lookup=lookup, observer=observer)
        directory = local_directory(self.directory)
        local = LocalCluster(directory)
        if not local.recorded():
            state = "is stopped" if local.address else "was never started"
            raise NoClusterKnown(
                f"the local cluster in {directory} {state}: start it with `holdover cluster start`,"
                " or name another's JobManager with --address HOST:PORT"
            )
        lookup = local.leader_lookup()
        return Client(local.address, config, local.runtime, leader_lookup=lookup, observer=observer)


def is_for_job(define: str) -> bool:
    """Whether `key=value` sets an option that a job may set for itself."""
    option = OPTIONS.get(define.partition("=")[0].strip())
    return option is not None and option.job_level


class LeaderNotices:
    """Tells that the leader is lost, if it is not found again quickly, and that it was found."""

    def __init__(self, say: Callable[[str], None] = tell, patience_s: float = _PATIENCE_S) -> None:
        self._say = say
        self._patience_s = patience_s
        self._found_before = False
        self._pending: asyncio.TimerHandle | None = None
        self._told = False

    def leader_lost(self, reason: str) -> None:
        """See `LeaderObserver.leader_lost`."""
        text = (
            f"JobManager lost ({reason}), waiting for the next leader ..."
            if self._found_before
            else f"no JobManager yet ({reason}), looking for it ..."
        )
        loop = asyncio.get_running_loop()
        self._pending = loop.call_later(self._patience_s, self._tell, text)

    def leader_found(self, address: str, epoch: int) -> None:
        """See `LeaderObserver.leader_found`."""
        if self._pending is not None:
            self._pending.cancel()
        if self._told:
            self._say(f"JobManager found at {address}, epoch {epoch}")
        self._found_before, self._told = True, False

    def _tell(self, text: str) -> None:
        self._told = True
        self._say(text)
