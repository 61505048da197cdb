"""With which failures a job of a scenario may end, so that they are no finding. Pure.

A job may fail only for a reason that the scenario gives it: it runs out of restarts where attempts
fail or their inputs get lost, and out of patience where no TaskManager may be there for that long.
Whatever else fails a job is a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdover import config as options
from holdover.config import Configuration
from jobmanager.job_options import restart_strategy
from simulator import fault_kinds as kinds
from simulator.scenario import JobSpec, Scenario

#: Parts of the failure messages.
RESTARTS_USED = "restarts it may have)"
NO_SLOTS = "slot.request.timeout has passed"

#: Faults that harm no attempt and no partition.
_HARMLESS = (kinds.ClockJump, kinds.CancelJob)


def failures_allowed(
    scenario: Scenario, job: JobSpec, cluster_options: Mapping[str, str], patience_s: float
) -> tuple[str, ...]:
    """Parts of the messages with which the job may fail.

    Args:
        scenario: whose job it is.
        job: the job.
        cluster_options: of the cluster, swept ones included.
        patience_s: how long after a fault its effects may show.
    """
    config = Configuration.of({**cluster_options, **job.options})
    allowed = []
    if failures_max(scenario, job) > restart_strategy(config).attempts_max:
        allowed.append(RESTARTS_USED)
    without_slots_s = _without_slots_max_s(scenario, job, patience_s)
    if without_slots_s >= config.get(options.SLOT_REQUEST_TIMEOUT):
        allowed.append(NO_SLOTS)
    return tuple(allowed)


def failures_max(scenario: Scenario, job: JobSpec) -> float:
    """How many failures of attempts there may be: as many as tasks are killed, and without bound
    where attempts fail by themselves, or a fault can reach what they read or write."""
    if any(stage.failure_probability for stage in job.stages):
        return math.inf
    failures = 0
    for fault in scenario.faults:
        if isinstance(fault, kinds.KillTask):
            failures += fault.repeat * _tasks_max(scenario, fault)
        elif not isinstance(fault, _HARMLESS):
            return math.inf
    return failures


def _tasks_max(scenario: Scenario, fault: kinds.KillTask) -> int:
    cluster = scenario.cluster
    one = fault.victims.role in ("one", "holders", "taskmanager")
    taskmanagers = 1 if one else cluster.taskmanagers
    return taskmanagers * (1 if fault.tasks == "one" else cluster.slots)


def _without_slots_max_s(scenario: Scenario, job: JobSpec, patience_s: float) -> float:
    """For how long the job may have no slot: while others have them all, and as long as faults
    last. None lasts longer than the first part of the run."""
    cluster = scenario.cluster
    if len(scenario.jobs) > 1:
        return math.inf
    waited_s = cluster.taskmanager_start_s + cluster.jobmanager_start_s
    for fault in scenario.faults:
        if not isinstance(fault, (*_HARMLESS, kinds.KillTask, kinds.LosePartitions)):
            waited_s += fault.repeat * (_lasts_s(scenario, fault) + patience_s)
    return waited_s if waited_s < math.inf else scenario.duration_max_s


def _lasts_s(scenario: Scenario, fault: kinds.Fault) -> float:
    cluster = scenario.cluster
    if isinstance(fault, kinds.Crash | kinds.Stop | kinds.PowerLoss | kinds.CutLog):
        if fault.restart_after_s is not None:
            return fault.restart_after_s
        services_s = cluster.shuffle_service_restart_s if cluster.shuffle_services else 0.0
        return max(cluster.jobmanager_restart_s, cluster.taskmanager_restart_s, services_s)
    lasts_s: float | None = getattr(fault, "for_s", 0.0)
    # A TaskManager that a fault makes give up stays away as long as one that has ended.
    return max(math.inf if lasts_s is None else lasts_s, cluster.taskmanager_restart_s)
