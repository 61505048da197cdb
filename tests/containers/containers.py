"""A cluster of containers from the project's compose files, and what can be seen of it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdover.client import Client
from holdover.config import Configuration
from holdover.v1.jobmanager_pb2 import GetClusterResponse
from tests.cluster.ledger_jobs import LedgerJob, chain
from tests.doubles.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
#: For one command; pulling and building take longer.
COMMAND_TIMEOUT_S = 300.0
BUILD_TIMEOUT_S = 900.0
UP_TIMEOUT_S = 300.0
JOB_TIMEOUT_S = 300.0
POLL_S = 0.1
SINGLE = ("docker-compose.yml",)
AVAILABLE = (*SINGLE, "docker-compose.ha.yml")
JOBMANAGERS = ("jobmanager", "jobmanager-2")
LEADS, LOST, WAITS = "jobmanager leads", "leadership lost", "another process leads"
#: How often what is measured is repeated (`make containers-rounds`), on a machine with nothing else
#: to do. Otherwise the lease is so long that no leader loses it because the machine is busy.
ROUNDS = int(os.environ.get("CONTAINER_ROUNDS", "0"))
LEASE_S = 3.0 if ROUNDS else 10.0
#: For a service to end by itself when it is asked to.
STOP_TIMEOUT_S = 60
#: Tasks of each stage of the jobs here.
N = 3


def require_engine() -> None:
    """Skip, loudly, where there is no Docker engine or nothing that reads compose files."""
    if shutil.which("docker") is None or not _succeeds("docker", "version"):
        pytest.skip("skipped: no Docker engine")
    if not compose_commands():
        pytest.skip("skipped: no Docker engine with docker-compose or docker compose")


@functools.cache
def compose_commands() -> tuple[tuple[str, ...], ...]:
    """The versions of compose that are here, each with the beginning of its commands."""
    known = (("docker-compose",), ("docker", "compose"))
    return tuple(
        command for command in known if shutil.which(command[0]) and _succeeds(*command, "version")
    )


def run(*command: str, timeout_s: float = COMMAND_TIMEOUT_S, **environment: str) -> str:
    """What the command says; fails with its words when it fails."""
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def _succeeds(*command: str) -> bool:
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=COMMAND_TIMEOUT_S)
    return ended.returncode == 0


@dataclass
class Containers:
    """One compose project.

    Attributes:
        project: its name, which is part of all names.
        files: of the project's compose files.
        place: a directory that containers have at the same path.
        settings: of the compose files.
        command: which version of compose.
    """

    project: str
    files: Sequence[str]
    place: Path
    settings: dict[str, str]
    command: Sequence[str]
    ports: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, project: str, files: Sequence[str], place: Path, **settings: str) -> Containers:
        """A project that has not been started."""
        place.chmod(0o777)
        ports = {name: free_port() for name in JOBMANAGERS}
        own = {
            "JOBMANAGER_PORT": str(ports["jobmanager"]),
            "JOBMANAGER_2_PORT": str(ports["jobmanager-2"]),
            "IMAGE_TAG": "test",
            "TESTS": str(ROOT / "tests"),
            "PLACE": str(place),
            **settings,
        }
        return cls(project, files, place, own, compose_commands()[0], ports)

    def compose(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """docker-compose with the project's files."""
        paces = [HERE / name.replace("docker-compose", "pace") for name in self.files]
        chosen = [text for path in (*self.files, *paces) for text in ("-f", str(path))]
        return run(
            *self.command,
            *("-p", self.project, *chosen, *arguments),
            timeout_s=timeout_s,
            **self.settings,
        )

    def up(self, *arguments: str) -> None:
        """Start what does not run."""
        self.compose("up", "--detach", *arguments, timeout_s=BUILD_TIMEOUT_S)

    def down(self, *arguments: str) -> None:
        """Stop and remove containers and networks."""
        self.compose("--profile", "client", "down", "--remove-orphans", *arguments)

    def client_command(self, *arguments: str) -> str:
        """`docker-compose run --rm client ...`, as in the README."""
        return self.compose("run", "--rm", "-T", "client", *arguments)

    def ids(self, service: str) -> list[str]:
        """Containers of the service, those that have ended as well."""
        label = f"label=com.docker.compose.service={service}"
        own = f"label=com.docker.compose.project={self.project}"
        lasting = "label=com.docker.compose.oneoff=False"
        filters = [text for each in (label, own, lasting) for text in ("--filter", each)]
        return run("docker", "ps", "--all", "--quiet", "--no-trunc", *filters).split()

    def id(self, service: str) -> str:
        """The service's only container."""
        (only,) = self.ids(service)
        return only

    def inspect(self, container: str) -> dict[str, Any]:
        """What the engine knows of a container."""
        (found,) = json.loads(run("docker", "inspect", container))
        return dict(found)

    def state(self, container: str) -> dict[str, Any]:
        """Whether it runs, its pid, its exit code."""
        return dict(self.inspect(container)["State"])

    def ended_s(self, container: str) -> float:
        """When it ended, by the engine's clock, which is this machine's."""
        at = re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", self.state(container)["FinishedAt"])
        return datetime.fromisoformat(at).timestamp()

    def address(self, container: str) -> str:
        """Its IP address in the default network."""
        networks = self.inspect(container)["NetworkSettings"]["Networks"]
        return str(networks[f"{self.project}_default"]["IPAddress"])

    def log(self, container: str) -> str:
        """All that it has said, in all its lives."""
        ended = subprocess.run(
            ["docker", "logs", container],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        return ended.stdout

    def said(self, service: str, words: str, since_s: float = 0.0) -> list[float]:
        """When the containers of a service logged a line with these words, oldest first."""
        lines = [line for each in self.ids(service) for line in self.log(each).splitlines()]
        times = [
            datetime.fromisoformat(line.split(maxsplit=1)[0]).timestamp()
            for line in lines
            if words in line and line[:2] == "20"
        ]
        return sorted(at_s for at_s in times if at_s >= since_s - 0.001)

    def crash(self, container: str) -> None:
        """kill -9 of all that runs in it, which is not held for a wish to stop it."""
        command = ["docker", "exec", container, "sh", "-c", "kill -9 -1"]
        subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S)

    def left(self) -> list[str]:
        """Containers, volumes and networks of the project."""
        own = f"label=com.docker.compose.project={self.project}"
        return [
            *run("docker", "ps", "--all", "--quiet", "--filter", own).split(),
            *run("docker", "volume", "ls", "--quiet", "--filter", own).split(),
            *run("docker", "network", "ls", "--quiet", "--filter", own).split(),
        ]

    def logs(self) -> str:
        """The ends of all logs, for messages of failure."""
        own = f"label=com.docker.compose.project={self.project}"
        names = run("docker", "ps", "--all", "--format", "{{.Names}}", "--filter", own).split()
        return "\n".join(f"--- {name}\n{self.log(name)[-4000:]}" for name in sorted(names))

    def client(self) -> Client:
        """A client on this machine, over the published ports."""
        count = len(self.files)
        addresses = [f"127.0.0.1:{self.ports[name]}" for name in JOBMANAGERS[:count]]
        return Client(addresses, Configuration.of({"client.timeout": "120 s"}))

    async def ready(self, client: Client, taskmanagers: int = 3) -> GetClusterResponse:
        """Wait until so many TaskManagers are registered with a leader."""
        deadline_s = time.monotonic() + UP_TIMEOUT_S
        while True:
            found = await client.cluster()
            if found.taskmanagers >= taskmanagers:
                return found
            assert time.monotonic() < deadline_s, f"{found}\n{self.logs()}"
            await asyncio.sleep(POLL_S)

    def job(self, job_id: str, options: Mapping[str, str] | None = None) -> LedgerJob:
        """A job of three stages whose directory containers may write to."""
        job = chain(self.place, N, job_id, options)
        (self.place / job_id).chmod(0o777)
        return job

    async def before_m(
        self, client: Client, job_id: str, options: Mapping[str, str] | None = None
    ) -> LedgerJob:
        """A job all of whose tasks of S have ended, durably; those of M wait."""
        job = self.job(job_id, options)
        job.gates.close("M")
        await client.submit(job.build())
        await self.until(lambda: len(job.ledger.starts("M")) == N, f"M of {job_id} waits")
        deadline_s = time.monotonic() + JOB_TIMEOUT_S
        while True:
            recovery = (await client.describe(job_id)).status.recovery
            if recovery.durable_sequence >= recovery.last_sequence > 0:
                return job
            assert time.monotonic() < deadline_s, f"events of {job_id} are not durable: {recovery}"
            await asyncio.sleep(POLL_S)

    async def finish(self, client: Client, job: LedgerJob) -> None:
        """Let it go on, and wait for GOLD; no task of S runs a second time."""
        job.gates.open("M")
        async with asyncio.timeout(JOB_TIMEOUT_S):
            await client.wait(job.job_id)
        assert job.result() == job.gold
        assert job.ledger.starts("S") == {("S", subtask): 1 for subtask in range(N)}
        epochs = [line.epoch for line in job.ledger.lines() if line.what == "start"]
        assert epochs == sorted(epochs), "an older leader has deployed after a newer one"

    async def until(self, condition: Any, what: str, timeout_s: float = JOB_TIMEOUT_S) -> Any:
        """Look again until the condition gives something true; what it gave."""
        deadline_s = time.monotonic() + timeout_s
        while not (seen := await asyncio.to_thread(condition)):
            assert time.monotonic() < deadline_s, f"not in {timeout_s:g} s: {what}\n{self.logs()}"
            await asyncio.sleep(POLL_S)
        return seen
