"""What the README says is what happens: its commands and programs, in its order."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from holdover.cli.local_cluster import LocalCluster
from holdover.v1.common_pb2 import JOB_STATE_FINISHED

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_TIMEOUT_S = 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def shell_lines(heading: str) -> list[str]:
    """The commands in the indented blocks below a heading, without their remarks."""
    section = re.split(r"^#+ ", README.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    lines = re.findall(r"^    (\S.*)$", section, flags=re.M)
    return [re.sub(r"\s+#.*$", "", line) for line in lines]


def python_blocks() -> list[str]:
    """The programs, in order."""
    return re.findall(r"^```python\n(.*?)^```$", README, flags=re.M | re.S)


class Newcomer:
    """Types commands at the root of the project; files go below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "HOLDOVER_HOME": str(directory / "home"), "PATH": path}

    def types(self, command: str) -> str:
        """Run one command; its standard output. Fails when the command does."""
        ended = subprocess.run(
            ["bash", "-c", command.replace("/tmp/", f"{self.directory}/")],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout


def test_a_newcomer_runs_a_job_and_loses_the_jobmanager(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    commands = [c for c in shell_lines("Run your own job") if c.startswith("holdover ")]
    started, *used, stopped = [c for c in commands if "JOB" not in c]
    lost = shell_lines("Lose the JobManager")
    newcomer.types(started)
    try:
        for command in used:
            newcomer.types(command)
        (finished,) = [c for c in commands if "JOB" in c]
        assert "wordcount" in newcomer.types("holdover list")
        first = _only_job(newcomer)
        assert "the" in newcomer.types(finished.replace("JOB", first))

        submit, status, kill, *after = lost
        job_id = newcomer.types(submit).strip().splitlines()[-1]
        pid = re.search(r"jobmanager\D+(\d+)", newcomer.types(status))
        assert pid is not None
        newcomer.types(kill.replace("PID_OF_THE_JOBMANAGER", pid[1]))
        said = ""
        for command in after:
            said = newcomer.types(command.replace("JOB", job_id))
        assert said, "the recovery report is empty"
    finally:
        newcomer.types(stopped)


def test_a_newcomer_simulates_what_a_death_costs(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    commands = shell_lines("Know the cost before it happens")
    one, compared, swarm = (newcomer.types(command) for command in commands)
    assert re.search(r"finished rerun +0", one)
    assert (tmp_path / "cost.html").read_text().startswith("<!doctype html>")
    assert re.search(r"^8 s .*\n32 s ", compared, flags=re.M), compared
    assert len(re.findall(r"^ +\d+  ", swarm, flags=re.M)) == 10, swarm


def _only_job(newcomer: Newcomer) -> str:
    ids = re.findall(r'"job_id": ?"([^"]+)"', newcomer.types("holdover list --json"))
    assert len(ids) == 1, ids
    return str(ids[0])


async def test_the_programs_do_what_their_text_says(tmp_path: Path) -> None:
    job_file, program = python_blocks()
    (tmp_path / "orders.csv").write_text("customer,price\nann,150\nbob,50\nann,200\nbob,101\n")
    path = tmp_path / "job.py"
    path.write_text(job_file)
    build = runpy.run_path(str(path))["build"]
    job = build([str(tmp_path / "orders.csv"), str(tmp_path / "out")])

    async with LocalCluster(tmp_path / "cluster", taskmanagers=1) as cluster:
        names: dict[str, object] = {"job": job, "print": lambda *words: said.append(words)}
        said: list[tuple[object, ...]] = []
        text = program.replace("127.0.0.1:6123", cluster.address)
        exec(text.replace("asyncio.run(main())", ""), names)
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            await names["main"]()  # type: ignore[operator]
        async with cluster.client() as client:
            (status,) = await client.list_jobs()

    assert status.state == JOB_STATE_FINISHED
    table = said[-1][0]
    assert isinstance(table, pa.Table)
    assert sorted(table.to_pylist(), key=lambda row: str(row["customer"])) == [
        {"customer": "ann", "total": 350},
        {"customer": "bob", "total": 101},
    ]
