"""Which scenarios local processes can run, and when a fault is due."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdover.cli.real_faults import Progress, ScenarioRefused, check_runnable
from holdover.cli.real_record import LogLine
from holdover.v1 import common_pb2
from holdover.v1.jobmanager_pb2 import JobStatus, VertexStatus
from simulator.scenario import Scenario

JOB = {"name": "job", "stages": [{"name": "map", "parallelism": 2}]}


def scenario(*faults: dict[str, Any], **fields: Any) -> Scenario:
    return Scenario.model_validate({"jobs": [JOB], "faults": list(faults), **fields})


def test_signals_can_be_sent_to_local_processes() -> None:
    check_runnable(
        scenario(
            {"kind": "crash", "victims": "leader", "at": "1 s"},
            {"kind": "pause", "victims": "one", "at": "1 s", "for": "2 s"},
            {"kind": "lose-partitions", "victims": "holders", "at": "2 s"},
        )
    )


def test_other_faults_are_refused_by_name() -> None:
    disk_full = {"kind": "disk-full", "victims": "one", "at": "1 s"}
    with pytest.raises(ScenarioRefused, match=r"faults\[0\]: disk-full"):
        check_runnable(scenario(disk_full))


def test_shuffle_services_are_processes_like_others() -> None:
    kill = {"kind": "crash", "victims": "shuffle:holders", "at": "1 s"}
    cluster = {"taskmanagers": 2, "shuffle_services": 2}
    drain = {"kind": "drain", "victims": "shuffle:1", "at": "1 s"}
    check_runnable(scenario(kill, drain, cluster=cluster))
    with pytest.raises(ScenarioRefused, match="25 processes"):
        check_runnable(scenario(cluster={**cluster, "shuffle_services": 22}))


def test_a_cluster_that_is_too_large_is_refused() -> None:
    with pytest.raises(ScenarioRefused, match="501 processes"):
        check_runnable(scenario(cluster={"taskmanagers": 500}))


async def is_due(progress: Progress, when: dict[str, Any]) -> bool:
    (fault,) = scenario({"kind": "crash", "victims": "leader", "when": when}).faults
    waiting = asyncio.create_task(progress.until(fault, ["job"]))
    await asyncio.sleep(0)
    due = waiting.done()
    waiting.cancel()
    return due


def status(finished: int) -> JobStatus:
    counts = [0] * 8
    counts[common_pb2.EXECUTION_STATE_FINISHED] = finished
    vertex = VertexStatus(name="read -> map", parallelism=4, state_counts=counts)
    return JobStatus(job_id="job", state=common_pb2.JOB_STATE_RUNNING, vertices=[vertex])


async def test_stage_is_due_when_that_part_of_it_has_finished() -> None:
    progress = Progress()
    progress.status(status(1))
    assert not await is_due(progress, {"stage": "map", "finished": "50 %"})
    progress.status(status(2))
    assert await is_due(progress, {"stage": "map", "finished": "50 %"})


async def test_state_that_has_come_and_gone_was_there() -> None:
    progress = Progress()
    for state in ("RECONCILING", "RUNNING"):
        progress.log_line("jm-0", LogLine(0.0, "job state", {"job": "job", "state": state}))
    assert await is_due(progress, {"job": "RECONCILING"})
    assert not await is_due(progress, {"jobs": "RECONCILING"})
    assert await is_due(progress, {"jobs": "RUNNING"})


async def test_waiting_fault_wakes_when_the_job_gets_on() -> None:
    progress = Progress()
    when = {"stage": "map", "finished": "50 %"}
    (fault,) = scenario({"kind": "crash", "victims": "leader", "when": when}).faults
    waiting = asyncio.create_task(progress.until(fault, ["job"]))
    await asyncio.sleep(0)
    progress.status(status(3))
    async with asyncio.timeout(60):
        await waiting
