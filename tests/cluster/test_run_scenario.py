"""`holdover run`: a scenario on real processes, from the file to the record."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

from holdover.cli.local_processes import processes_with_environment
from holdover.cli.real_cluster import RealCluster
from holdover.cli.real_faults import Progress, RealFaults
from holdover.cli.real_record import Chronicle
from simulator.record import RunRecord
from simulator.scenario import Scenario
from simulator.scenario_file import load_scenario
from simulator.simulate import run_scenario

TIMEOUT_S = 400.0

CRASH = """
cluster: {taskmanagers: 2, slots: 2, leader: file, jobmanager_restart: 500 ms}
options:
  execution.batch.job-recovery.previous-worker.recovery.timeout: 4 min
  execution.batch.job-recovery.adoption-timeout: 4 min
jobs:
  - name: job
    stages:
      - {name: map, parallelism: 8, seconds: 500 ms, output_bytes: 64 kb}
      - {name: reduce, parallelism: 4, seconds: 4 s}
faults:
  - {kind: crash, victims: leader, when: {stage: map, finished: 50 %}}
duration_max: 5 min
"""
STANDBY = """
cluster: {taskmanagers: 2, slots: 2, leader: file, jobmanagers: 2, jobmanager_restart: never}
jobs: [{name: job, stages: [{name: map, parallelism: 4, seconds: 5 s}]}]
faults:
  - {kind: pause, victims: "taskmanager:1", at: 1 s, for: 1 s}
  - {kind: crash, victims: leader, when: {job: RUNNING, after: 500 ms}}
duration_max: 5 min
"""
EXTERNAL = """
cluster:
  taskmanagers: 2
  slots: 2
  shuffle_services: 2
  leader: file
  jobmanager_restart: 500 ms
  taskmanager_restart: 500 ms
  shuffle_service_restart: 500 ms
options:
  shuffle.mode: external
  execution.batch.job-recovery.previous-worker.recovery.timeout: 4 min
  execution.batch.job-recovery.taskmanager-restart.timeout: 4 min
  execution.batch.job-recovery.adoption-timeout: 4 min
jobs:
  - name: job
    stages:
      - {name: map, parallelism: 8, seconds: 500 ms, output_bytes: 64 kb}
      - {name: reduce, parallelism: 4, seconds: 4 s}
faults:
  - {kind: crash, victims: leader, when: {stage: map, finished: 50 %}}
  - {kind: crash, victims: all, when: {stage: map, finished: 50 %}}
  - {kind: crash, victims: "shuffle:holders", when: {stage: map, finished: 100 %}}
duration_max: 5 min
"""
DRAINED = """
cluster:
  taskmanagers: 2
  slots: 2
  shuffle_services: 2
  leader: file
  jobmanager_restart: 500 ms
  shuffle_service_restart: 500 ms
options:
  shuffle.mode: external
  heartbeat.interval: 500 ms
  execution.batch.job-recovery.previous-worker.recovery.timeout: 4 min
  execution.batch.job-recovery.adoption-timeout: 4 min
jobs:
  - name: job
    stages:
      - {name: map, parallelism: 8, seconds: 500 ms, output_bytes: 64 kb}
      - {name: reduce, parallelism: 4, seconds: 500 ms}
      - {name: last, parallelism: 1, seconds: 3 s}
faults:
  - {kind: drain, victims: "shuffle:1", when: {stage: map, finished: 50 %}}
  - {kind: crash, victims: leader, when: {stage: map, finished: 100 %}}
duration_max: 5 min
"""
CUT = """
jobs: [{stages: [{name: map, parallelism: 1}]}]
faults: [{kind: cut, between: [leader, all], at: 1 s}]
"""
ENDLESS = "jobs: [{stages: [{name: map, parallelism: 2, seconds: 10 min}]}]"


async def command(
    tmp_path: Path, scenario: str, *arguments: str
) -> tuple[asyncio.subprocess.Process, Path]:
    """`holdover run` with a scenario of this text; the directory is what it is to use."""
    file = tmp_path / "scenario.yaml"
    file.write_text(scenario)
    place = tmp_path / "run"
    words = ("-m", "holdover.cli.main", "run", str(file), "--keep", str(place), *arguments)
    return (
        await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        ),
        place,
    )


def left_running(place: Path) -> list[int]:
    cluster = str(place / "run-0" / "cluster")
    return [p.pid for p in processes_with_environment("_HOLDOVER_LOCAL_CLUSTER", cluster)]


async def test_jobmanager_crash_on_real_processes(tmp_path: Path) -> None:
    records, report = tmp_path / "records", tmp_path / "report.html"
    process, place = await command(tmp_path, CRASH, "--json", str(records), "--report", str(report))
    async with asyncio.timeout(TIMEOUT_S):
        told, said = await process.communicate()
    assert process.returncode == 0, (told, said)
    record = RunRecord.from_json(records.read_text())
    assert record.findings == []
    assert [job.state for job in record.jobs] == ["FINISHED"]
    assert len(record.jobs[0].recoveries) == 1
    assert [fault.victims for fault in record.faults] == [["jm-1"]]
    first, second = record.epochs
    assert first.until_s is not None
    assert second.ready_s is not None
    assert record.faults[0].at_s <= first.until_s < second.from_s <= second.ready_s
    assert [[c[0] for c in worker.connections] for worker in record.workers] == [[1, 2], [1, 2]]
    measures = record.measures
    assert measures.finished_rerun == 0
    assert measures.recovery_s is not None
    assert measures.recovery_s > 0.5
    assert sum(attempt.kept for attempt in record.attempts) == 12
    assert measures.partitions_held_max >= 4
    assert report.stat().st_size > 0
    assert b"FINISHED" in told or b"finished" in told
    assert left_running(place) == []


async def test_shuffle_services_in_a_real_run_keep_what_is_finished(tmp_path: Path) -> None:
    process, place = await command(tmp_path, EXTERNAL, "--json", "-")
    async with asyncio.timeout(TIMEOUT_S):
        told, said = await process.communicate()
    assert process.returncode == 0, (told, said)
    record = RunRecord.from_json(told.decode())
    assert record.findings == []
    assert [job.state for job in record.jobs] == ["FINISHED"]
    leader, taskmanagers, service = (fault.victims for fault in record.faults)
    assert (leader, taskmanagers) == (["jm-1"], ["tm-1", "tm-2"])
    assert set(service) < {"ss-1", "ss-2"}
    assert record.measures.finished_rerun == 0
    assert record.measures.partitions_held_max >= 4
    assert left_running(place) == []


async def test_a_shuffle_service_is_drained_in_both_worlds(tmp_path: Path) -> None:
    process, place = await command(tmp_path, DRAINED, "--json", "-")
    async with asyncio.timeout(TIMEOUT_S):
        told, said = await process.communicate()
    assert process.returncode == 0, (told, said)
    simulated = run_scenario(load_scenario(str(tmp_path / "scenario.yaml")), 0)
    for record in (RunRecord.from_json(told.decode()), simulated):
        assert record.findings == []
        assert [job.state for job in record.jobs] == ["FINISHED"]
        drain = next(fault for fault in record.faults if fault.kind == "drain")
        assert (drain.victims, drain.detail) == (["ss-1"], "")
        (recovery,) = record.jobs[0].recoveries
        assert recovery["vertices"][0]["kept"] == 8, recovery
    assert left_running(place) == []


async def test_a_drained_service_leaves_a_real_cluster_and_is_started_again(tmp_path: Path) -> None:
    scenario = Scenario.model_validate(
        {
            "cluster": {"taskmanagers": 1, "shuffle_services": 2, "shuffle_service_restart": 0.2},
            "options": {"heartbeat.interval": "500 ms"},
            "jobs": [{"stages": [{"name": "map", "parallelism": 1}]}],
            "faults": [{"kind": "drain", "victims": "shuffle:2", "at": 0}],
        }
    )
    chronicle, progress = Chronicle(), Progress()
    cluster = RealCluster(scenario, tmp_path, chronicle, progress.log_line)
    faults = RealFaults(scenario, 0, cluster, progress, print)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await cluster.start()
            following = asyncio.create_task(cluster.follow_logs())
            while not await cluster.drain("ss-1"):
                await asyncio.sleep(0.05)
            await faults.run(time.time())
            while {name for name, _ in cluster.restarts} != {"ss-1", "ss-2"}:
                assert cluster.failures() == []
                await asyncio.sleep(0.05)
        following.cancel()
    finally:
        await cluster.stop()
    assert [fault.detail for fault in faults.made] == [""]


async def test_a_waiting_jobmanager_takes_over_in_a_real_run(tmp_path: Path) -> None:
    process, place = await command(tmp_path, STANDBY, "--json", "-")
    async with asyncio.timeout(TIMEOUT_S):
        told, said = await process.communicate()
    assert process.returncode == 0, (told, said)
    record = RunRecord.from_json(told.decode())
    assert {epoch.jobmanager for epoch in record.epochs} == {"jm-1", "jm-2"}
    pause = next(fault for fault in record.faults if fault.kind == "pause")
    assert pause.victims == ["tm-1"]
    assert pause.until_s is not None
    assert pause.until_s - pause.at_s >= 1.0
    assert left_running(place) == []


async def test_what_cannot_be_done_to_processes_is_refused_by_name(tmp_path: Path) -> None:
    process, place = await command(tmp_path, CUT)
    async with asyncio.timeout(TIMEOUT_S):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"faults[0]: cut cannot be done to local processes" in said
    assert not place.exists()


async def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    process, place = await command(tmp_path, ENDLESS)
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT_S):
        while b"is submitted" not in (line := await process.stderr.readline()):
            assert line, "it ended before the job was submitted"
        assert left_running(place)
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 130
    assert left_running(place) == []
