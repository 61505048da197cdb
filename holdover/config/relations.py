"""What must hold between options (P63)."""

from __future__ import annotations

from typing import Final

from holdover.config.options import (
    AUTO_PARALLELISM_MAX_PARALLELISM,
    AUTO_PARALLELISM_MIN_PARALLELISM,
    BATCH_JOB_RECOVERY_PREVIOUS_WORKER_RECOVERY_TIMEOUT,
    HEARTBEAT_INTERVAL,
    HEARTBEAT_TIMEOUT,
    JOB_EVENT_STORE_WRITE_BUFFER_MAX_SIZE,
    JOB_EVENT_STORE_WRITE_BUFFER_SIZE,
    RESTART_STRATEGY_EXPONENTIAL_DELAY_INITIAL_BACKOFF,
    RESTART_STRATEGY_EXPONENTIAL_DELAY_MAX_BACKOFF,
    TASKMANAGER_REGISTRATION_INITIAL_BACKOFF,
    TASKMANAGER_REGISTRATION_MAX_BACKOFF,
    TASKMANAGER_REGISTRATION_TIMEOUT,
)
from holdover.config.security_options import (
    SECURITY_SSL_CA,
    SECURITY_SSL_CERTIFICATE,
    SECURITY_SSL_ENABLED,
    SECURITY_SSL_EXPECTED_NAME,
    SECURITY_SSL_PRIVATE_KEY,
)
from holdover.config.values import Relation, Requirement

#: Pairs of which one must be below the other.
RELATIONS: Final = (
    Relation(
        HEARTBEAT_INTERVAL,
        HEARTBEAT_TIMEOUT,
        or_equal=False,
        reason="a peer would count as lost between two heartbeats",
    ),
    Relation(
        BATCH_JOB_RECOVERY_PREVIOUS_WORKER_RECOVERY_TIMEOUT,
        TASKMANAGER_REGISTRATION_TIMEOUT,
        or_equal=False,
        reason="workers would release their partitions while a new leader still waits for them",
    ),
    Relation(
        TASKMANAGER_REGISTRATION_INITIAL_BACKOFF,
        TASKMANAGER_REGISTRATION_MAX_BACKOFF,
        or_equal=True,
        reason="the first pause would be longer than the longest",
    ),
    Relation(
        RESTART_STRATEGY_EXPONENTIAL_DELAY_INITIAL_BACKOFF,
        RESTART_STRATEGY_EXPONENTIAL_DELAY_MAX_BACKOFF,
        or_equal=True,
        reason="the first pause would be longer than the longest",
    ),
    Relation(
        AUTO_PARALLELISM_MIN_PARALLELISM,
        AUTO_PARALLELISM_MAX_PARALLELISM,
        or_equal=True,
        reason="no number of subtasks would be allowed",
    ),
    Relation(
        JOB_EVENT_STORE_WRITE_BUFFER_SIZE,
        JOB_EVENT_STORE_WRITE_BUFFER_MAX_SIZE,
        or_equal=True,
        reason="the buffer would be full before it is written out",
    ),
)

#: Switches, and what is needed when they are on.
REQUIREMENTS: Final = (
    Requirement(
        SECURITY_SSL_ENABLED,
        (SECURITY_SSL_CERTIFICATE, SECURITY_SSL_PRIVATE_KEY, SECURITY_SSL_CA),
        (SECURITY_SSL_EXPECTED_NAME,),
    ),
)
