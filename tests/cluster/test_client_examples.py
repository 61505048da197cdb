"""The scripts of `examples/client`, as somebody runs them who knows nothing but the gRPC API."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from holdover.cli.certificate_authority import make_certificates, security_options
from holdover.cli.local_cluster import JOBMANAGER
from tests.cluster.conftest import StartCluster
from tests.cluster.running_cluster import UNHURRIED, RunningCluster
from tests.doubles.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0

pytestmark = [pytest.mark.slow]


async def started(
    running: RunningCluster, name: str, *arguments: str
) -> asyncio.subprocess.Process:
    """`python -m examples.client.NAME` for this cluster."""
    command = [sys.executable, "-m", f"examples.client.{name}"]
    command += ["--address", running.cluster.address, *arguments]
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)


async def first_line(process: asyncio.subprocess.Process) -> str:
    """What it has printed first, once it has."""
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        line = await process.stdout.readline()
    assert line, (await process.communicate())[1]
    return line.decode()


async def ended(process: asyncio.subprocess.Process) -> str:
    """What it has printed, once it has ended well."""
    async with asyncio.timeout(TIMEOUT_S):
        output, errors = await process.communicate()
    assert process.returncode == 0, output.decode() + errors.decode()
    return output.decode()


async def run(running: RunningCluster, name: str, *arguments: str) -> str:
    return await ended(await started(running, name, *arguments))


async def test_a_job_is_submitted_once_and_watched_through_the_death_of_the_jobmanager(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    """Submit twice, watch, kill in the middle: one job, each state told once, nothing run again."""
    running = await start_cluster(options={**UNHURRIED, "heartbeat.timeout": "10 min"})
    output = str(tmp_path / "counts")
    job = ("counted", output, "6")
    assert await run(running, "submit", *job) == "counted \n"
    # Nobody hears that a task has finished before both watch.
    for name in running.taskmanager_names():
        running.cluster.send_signal(name, signal.SIGSTOP)
    assert "was submitted before" in await run(running, "submit", *job)

    watch = await started(running, "watch", "counted")
    pid = str(running.cluster.processes()[JOBMANAGER])
    killer = await started(running, "kill_and_report", "counted", pid)
    watched = await first_line(watch)
    await first_line(killer)
    for name in running.taskmanager_names():
        running.cluster.send_signal(name, signal.SIGCONT)
    await running.cluster.wait_for_end(JOBMANAGER, TIMEOUT_S)
    running.cluster.start_jobmanager()

    said = await ended(killer)
    assert re.search(rf"killed {pid} at \d+ finished", said)
    assert "the leader of epoch 2 goes on" in said
    assert re.search(r"make rows: kept [4-8], run again none", said)
    watched += await ended(watch)
    states = re.findall(r"JOB_STATE_(\w+)", watched)
    assert states == ["CREATED", "RUNNING", "RECONCILING", "RUNNING", "FINISHED"]
    counts = [int(path.read_text().split()[1]) for path in Path(output).glob("*.csv")]
    assert sum(counts) == 8 * 100


async def test_reflection_tells_a_stranger_what_to_call(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    """Over TLS, with the certificates that `holdover certs` made for clients."""
    make_certificates(tmp_path / "certificates", (), days=1)
    running = await start_cluster(
        taskmanagers=1, options=security_options(tmp_path / "certificates")
    )
    secured = ("--certificates", str(tmp_path / "certificates"))
    services = await run(running, "call_without_stubs", *secured)
    assert "holdover.v1.JobManager/WatchJob" in services
    assert "grpc.health.v1.Health/Check" in services
    answer = json.loads(await run(running, "call_without_stubs", *secured, "GetCluster"))
    assert answer["isLeader"] is True
    assert answer["taskmanagers"] == 1
    listed = json.loads(
        await run(running, "call_without_stubs", *secured, "ListJobs", "page_size=10")
    )
    assert "jobs" not in listed


def test_what_the_page_of_the_api_says_is_what_happens(tmp_path: Path) -> None:
    """Its commands in their order, and its program while the cluster runs."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    page = page.replace("6123", str(free_port())).replace("/tmp/", f"{tmp_path}/")
    start, *used, stop = re.findall(r"^    ((?:holdover|python) \S.*)$", page, flags=re.M)
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    typed(start, tmp_path)
    try:
        said = [typed(command, tmp_path) for command in used]
        assert "epoch 1, 3 TaskManagers, ready: True\ncounted submitted by a script" in typed(
            f"python - <<'END'\n{program}END", tmp_path
        )
    finally:
        typed(stop, tmp_path)
    submitted, watched, listed, described = said
    assert submitted.startswith("counted")
    assert "FINISHED" in watched
    assert "holdover.v1.JobManager/DescribeJob" in listed
    assert json.loads(described)["job"]["state"] == "JOB_STATE_FINISHED"


def typed(command: str, directory: Path) -> str:
    """What a command prints that is typed at the root of the project."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "HOLDOVER_HOME": str(directory / "home")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout
