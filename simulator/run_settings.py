"""What follows from a scenario before anything happens: the settings of its world and cluster, and
how long things may take in it. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

from holdover import config as options
from holdover.config import Configuration
from simulator.cluster import ClusterSettings
from simulator.quantities import Constant, Distribution, Exponential, Lognormal, Uniform
from simulator.scenario import JobSpec, Scenario, StageSpec
from simulator.world.links import LinkSettings
from simulator.world.storages import DiskSettings

#: Beyond what the options say: silence on a connection is found by then.
KEEPALIVE_S = 40.0
#: A healed cluster has so many times the time that its work needs, as each failure and loss makes
#: some of it again.
_WORK_AGAIN = 5
_SETTLING_S = 120.0
#: A stage of which more attempts fail by themselves has no more time than with so many.
_FAILURES_MAX = 0.9


def cluster_settings(scenario: Scenario, cluster_options: Mapping[str, str]) -> ClusterSettings:
    """The cluster of a scenario under these options."""
    spec = scenario.cluster
    return ClusterSettings(
        taskmanagers=spec.taskmanagers,
        slots=spec.slots,
        racks=spec.racks,
        jobmanagers=spec.jobmanagers,
        jobmanager_start_s=spec.jobmanager_start_s,
        taskmanager_start_s=spec.taskmanager_start_s,
        jobmanager_restart_s=_or_never(spec.jobmanager_restart_s),
        taskmanager_restart_s=_or_never(spec.taskmanager_restart_s),
        shuffle_services=spec.shuffle_services,
        shuffle_service_start_s=spec.shuffle_service_start_s,
        shuffle_service_restart_s=_or_never(spec.shuffle_service_restart_s),
        options=cluster_options,
        lease_ttl_s=spec.lease_ttl_s if spec.leader != "file" else None,
        by_etcd=spec.leader == "etcd",
    )


def link_settings(scenario: Scenario) -> LinkSettings:
    """The network between its hosts."""
    network = scenario.network
    return LinkSettings(
        latency_s=_range(network.latency_s),
        latency_draw=_draw(network.latency_s),
        bytes_per_s=network.bandwidth_bytes_per_s,
        loss=network.loss,
        message_cost_s=network.message_cost_s,
    )


def disk_settings(scenario: Scenario) -> DiskSettings:
    """Its storages."""
    disk = scenario.disk
    return DiskSettings(
        latency_s=disk.operation_s,
        sync_latency_s=disk.sync_s,
        bytes_per_s=disk.bandwidth_bytes_per_s,
        capacity_bytes=disk.capacity_bytes,
    )


def patience_s(scenario: Scenario, cluster_options: Mapping[str, str]) -> float:
    """How long after a fault its effects may show."""
    get = Configuration.of(cluster_options).get
    return (
        get(options.HEARTBEAT_TIMEOUT)
        + get(options.RPC_CALL_TIMEOUT)
        + get(options.BATCH_JOB_RECOVERY_PREVIOUS_WORKER_RECOVERY_TIMEOUT)
        + get(options.SHUFFLE_FETCH_RETRY_TIMEOUT)
        + scenario.cluster.lease_ttl_s
        + KEEPALIVE_S
    )


def settling_max_s(scenario: Scenario, cluster_options: Mapping[str, str]) -> float:
    """Within which a healed cluster ends its jobs, if it ever does, and forgets them."""
    slots = scenario.cluster.taskmanagers * scenario.cluster.slots
    work_s = path_s = 0.0
    for job in scenario.jobs:
        config = Configuration.of({**cluster_options, **job.options})
        for subtasks, subtask_s in _stages(scenario, job, config):
            work_s += subtasks * subtask_s
            path_s += subtask_s
    registration_s = Configuration.of(cluster_options).get(options.TASKMANAGER_REGISTRATION_TIMEOUT)
    patience = patience_s(scenario, cluster_options)
    return 4 * patience + registration_s + _WORK_AGAIN * (work_s / slots + path_s) + _SETTLING_S


def _stages(scenario: Scenario, job: JobSpec, config: Configuration) -> list[tuple[int, float]]:
    """Subtasks of each stage of a job, and how long one takes at most, failures included."""
    adaptive = config.get(options.AUTO_PARALLELISM_MAX_PARALLELISM)
    growing = config.get(options.RESTART_STRATEGY_TYPE) == "exponential-delay"
    pause_s = config.get(
        options.RESTART_STRATEGY_EXPONENTIAL_DELAY_MAX_BACKOFF
        if growing
        else options.RESTART_STRATEGY_FIXED_DELAY_DELAY
    )
    bytes_per_s = min(scenario.network.bandwidth_bytes_per_s, scenario.disk.bandwidth_bytes_per_s)
    # A stored graph is not looked into: as if it were one stage, as wide as one may be.
    graph = StageSpec(name="graph", seconds=job.seconds, output_bytes=job.output_bytes)
    found = []
    for stage in job.stages or (graph,):
        attempt_s = _range(stage.seconds)[1] + 2 * _range(stage.output_bytes)[1] / bytes_per_s
        failing = min(stage.failure_probability, _FAILURES_MAX)
        subtask_s = (attempt_s + failing * pause_s) / (1 - failing)
        found.append((stage.parallelism or adaptive, subtask_s))
    return found


def _or_never(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds


def _range(distribution: Distribution) -> tuple[float, float]:
    """Least and greatest value; of a distribution without an end, what is seen of it."""
    match distribution:
        case Constant(value):
            return value, value
        case Uniform(minimum, maximum):
            return minimum, maximum
        case Exponential(mean):
            return 0.0, 8 * mean
        case Lognormal(median, sigma):
            return median * math.exp(-3 * sigma), median * math.exp(3 * sigma)


def _draw(distribution: Distribution) -> Callable[[random.Random], float] | None:
    """Draws from what is not uniform."""
    match distribution:
        case Exponential(mean) if mean > 0:
            return lambda chance: chance.expovariate(1 / mean)
        case Lognormal(median, sigma) if median > 0:
            return lambda chance: chance.lognormvariate(math.log(median), sigma)
    return None
