"""The leader service that the options name."""

from __future__ import annotations

import posixpath

from holdover.config import (
    HIGH_AVAILABILITY_CLUSTER_ID,
    HIGH_AVAILABILITY_ETCD_ENDPOINTS,
    HIGH_AVAILABILITY_LEASE_DURATION,
    HIGH_AVAILABILITY_STORAGE_DIR,
    HIGH_AVAILABILITY_TYPE,
    SECURITY_SSL_ENABLED,
    Configuration,
)
from holdover.coordination.etcd_leader import EtcdLeaderService
from holdover.coordination.file_leader import FileLeaderService
from holdover.coordination.leader import LeaderService
from holdover.coordination.object_leader import ObjectLeaderService
from holdover.errors import ConfigurationError
from holdover.runtime import Runtime, is_object_url


def configured_leader_service(runtime: Runtime, configuration: Configuration) -> LeaderService:
    """Who elects and finds the leader: etcd, or a lock in the cluster's directory, or a lease there
    where that is in an object store.

    Raises ConfigurationError when etcd is to be reached by TLS, and there are no certificates.
    """
    directory = cluster_directory(configuration)
    duration_s = configuration.get(HIGH_AVAILABILITY_LEASE_DURATION)
    if configuration.get(HIGH_AVAILABILITY_TYPE) == "etcd":
        endpoints = _etcd_endpoints(configuration)
        cluster_id = configuration.get(HIGH_AVAILABILITY_CLUSTER_ID)
        return EtcdLeaderService(runtime, endpoints, cluster_id, directory, duration_s)
    if is_object_url(directory):
        return ObjectLeaderService(runtime, directory, duration_s)
    return FileLeaderService(runtime, directory)


def _etcd_endpoints(configuration: Configuration) -> tuple[str, ...]:
    endpoints = configuration.get(HIGH_AVAILABILITY_ETCD_ENDPOINTS)
    secured = [endpoint for endpoint in endpoints if endpoint.startswith("https://")]
    if secured and not configuration.get(SECURITY_SSL_ENABLED):
        key = HIGH_AVAILABILITY_ETCD_ENDPOINTS.key
        raise ConfigurationError(
            f"{key} names {secured[0]}, which needs {SECURITY_SSL_ENABLED.key}: true with the"
            " certificate, key and authorities by which this process and etcd know each other",
            key=key,
        )
    return endpoints


def cluster_directory(configuration: Configuration) -> str:
    """Where one cluster keeps what must outlive its JobManager, in the shared storage."""
    return posixpath.join(
        configuration.get(HIGH_AVAILABILITY_STORAGE_DIR),
        configuration.get(HIGH_AVAILABILITY_CLUSTER_ID),
    )
