"""A cluster whose connections are secured: it works as any other, and lets in nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdover.cli.certificate_authority import (
    CLIENT,
    LOCAL_HOSTS,
    NODE,
    make_certificates,
    security_options,
)
from holdover.cli.local_cluster import JOBMANAGER
from holdover.cli.tpch.data import default_directory, tpch_data
from holdover.client import Client
from holdover.config import Configuration
from holdover.errors import ClusterUnreachable
from tests.cluster.conftest import StartCluster
from tests.cluster.demo_command import demo
from tests.cluster.ledger_jobs import LedgerJob, chain
from tests.cluster.running_cluster import RunningCluster, wait_until
from tests.doubles.certificates import authority, install, node

SCALE = 1.0
START_TIMEOUT_S = 120.0

pytestmark = [pytest.mark.slow]


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """As `holdover certs` makes them."""
    make_certificates(tmp_path / "certificates", (), days=1)
    return tmp_path / "certificates"


def client_of(running: RunningCluster, options: dict[str, str], patience: str = "60 s") -> Client:
    """A client of its own, with these options."""
    config = Configuration.of({**options, "client.timeout": patience})
    return Client(running.cluster.address, config)


async def told_to(running: RunningCluster, options: dict[str, str]) -> str:
    """What a client with these options is told, which gets no answer."""
    async with client_of(running, options, patience="5 s") as client:
        with pytest.raises(ClusterUnreachable) as raised:
            await client.cluster()
    return raised.value.reason


def options_of(directory: Path) -> dict[str, str]:
    """For the files that `install` writes."""
    return {
        "security.ssl.enabled": "true",
        "security.ssl.certificate": str(directory / "own.pem"),
        "security.ssl.private-key": str(directory / "own-key.pem"),
        "security.ssl.ca": str(directory / "ca.pem"),
    }


def test_the_whole_demo_passes_with_tls(tmp_path: Path) -> None:
    """TaskManagers, tasks, clients and the next JobManager find each other and their data."""
    tpch_data(SCALE, directory=default_directory(SCALE))
    ended = demo("--tls", "--scale", "1", "--json", temporary=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    facts = json.loads(ended.stdout.splitlines()[-1])
    assert facts["result_matches"] is True
    assert facts["rerun_finished"] == 0
    assert list(tmp_path.iterdir()) == []


async def test_clients_need_a_certificate_of_the_cluster_and_are_told_so(
    start_cluster: StartCluster, certificates: Path, tmp_path: Path
) -> None:
    """No TLS, another authority, no common name, an expired certificate; each in words."""
    running = await start_cluster(taskmanagers=1, options=security_options(certificates))
    async with client_of(running, security_options(certificates, CLIENT)) as client:
        assert (await client.cluster()).taskmanagers == 1

    assert await told_to(running, {}) == (
        "the server speaks TLS, and security.ssl.enabled is not true here"
    )
    make_certificates(tmp_path / "others", (), days=1)
    assert "was not issued by an authority in security.ssl.ca" in await told_to(
        running, security_options(tmp_path / "others")
    )
    named = {**security_options(certificates), "security.ssl.expected-name": "jm.example"}
    assert "is not for the name jm.example" in await told_to(running, named)

    stranger = authority("stranger")
    install(tmp_path / "stranger", stranger.issue("client", LOCAL_HOSTS), stranger)
    with (tmp_path / "stranger" / "ca.pem").open("ab") as trusted:
        trusted.write((certificates / "ca.pem").read_bytes())
    assert "it does not accept" in await told_to(running, options_of(tmp_path / "stranger"))

    log = running.cluster.log_text()
    for words in (
        "WRONG_VERSION_NUMBER",
        "No match found for server name: jm.example",
        "CERTIFICATE_VERIFY_FAILED",
    ):
        assert words in log, log


async def test_a_taskmanager_of_another_authority_stays_outside_and_says_why(
    start_cluster: StartCluster, certificates: Path, tmp_path: Path
) -> None:
    running = await start_cluster(taskmanagers=1, options=security_options(certificates))
    make_certificates(tmp_path / "others", (), days=1)
    running.cluster.options |= security_options(tmp_path / "others")
    running.cluster.start_taskmanager(1)
    await wait_until(
        lambda: "was not issued by an authority" in running.cluster.log_text("tm-1"),
        "the TaskManager says why it cannot register",
    )
    assert (await running.client.cluster()).taskmanagers == 1


async def test_a_taskmanager_whose_certificate_is_for_another_host_is_not_called(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    """It may call, but whoever calls it would not know that it is the one that is meant."""
    issuer = authority()
    node(tmp_path / "node", issuer)
    running = await start_cluster(taskmanagers=0, options=options_of(tmp_path / "node"))
    node(tmp_path / "elsewhere", issuer, ("tm.example",))
    running.cluster.options |= options_of(tmp_path / "elsewhere")
    running.cluster.start_taskmanager(0)
    await running.submit(chain(running.directory, 1))
    await wait_until(
        lambda: "Hostname Verification Check failed" in running.cluster.log_text(),
        "the JobManager says why it cannot call the TaskManager",
    )


@pytest.mark.parametrize("module", ["jobmanager", "taskmanager"])
def test_a_certificate_that_nobody_would_accept_is_told_at_start(
    module: str, tmp_path: Path
) -> None:
    """In one sentence, with option and file."""
    issuer = authority()
    install(tmp_path, issuer.issue("old", LOCAL_HOSTS, days=-1), issuer)
    defines = [text for pair in options_of(tmp_path).items() for text in ("-D", "=".join(pair))]
    ended = subprocess.run(
        [sys.executable, "-m", module, *defines],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        f"{module}: security.ssl.certificate: {tmp_path}/own.pem: the certificate of CN=old expired"
    )
    assert len(ended.stderr.splitlines()) == 1


async def test_a_job_outlives_the_replacement_of_all_certificates(
    start_cluster: StartCluster, certificates: Path, tmp_path: Path
) -> None:
    """No process is started again; partitions of before are read by tasks that come after."""
    running = await start_cluster(options=security_options(certificates))
    job = await between_s_and_m(running, chain(running.directory, 4))
    make_certificates(tmp_path / "next", (), days=1)
    for path in (tmp_path / "next").iterdir():
        path.replace(certificates / path.name)
    names = (JOBMANAGER, *running.taskmanager_names())
    await wait_until(
        lambda: all(running.logged(name, "certificates replaced") for name in names),
        "every process notices the new files",
    )
    job.gates.open("M")
    async with client_of(running, security_options(certificates, NODE), "120 s") as client:
        status = await client.wait(job.job_id)
    assert status.job_id == job.job_id
    assert job.result() == job.gold
    assert set(job.ledger.starts("S").values()) == {1}


async def between_s_and_m(running: RunningCluster, job: LedgerJob) -> LedgerJob:
    """Submit the job; S has finished, and M waits at its gate."""
    job.gates.close("M")
    await running.submit(job)
    await wait_until(lambda: job.ledger.starts("M"), "M has begun")
    return job
