"""Bad input as its user meets it: the command against real processes, one sentence each."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from holdover.cli.local_cluster import LocalCluster
from holdover.cli.main import app
from tests.cluster.running_cluster import RunningCluster, wait_until

REFUSED, USAGE, JOB_ENDED, UNREACHABLE = 1, 2, 3, 4
PROCESS_TIMEOUT_S = 120.0

JOBS = """
import threading
from holdover import Job

def build(args):
    kind, output, *rest = args
    job = Job(kind)
    return {name: build for name, build in globals().items()}[kind](job, output, *rest)

def text(job, output, glob):
    job.read_text(glob).write_text(output)
    return job

def parquet(job, output, glob):
    job.read_parquet(glob).write_parquet(output)
    return job

def numbers(job, output):
    job.sequence(0, 10).write_parquet(output)
    return job

def query(job, output, text):
    job.sequence(0, 10).sql(text).write_parquet(output)
    return job

def key(job, output):
    job.sequence(0, 10).hash("valeu").map_batches(same).write_parquet(output)
    return job

def same(batch):
    return batch

def unpicklable(job, output):
    lock = threading.Lock()
    job.sequence(0, 10).map_batches(lambda batch: lock and batch, name="locked")
    return job
"""

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningCluster]:
    """One cluster for all, with the file of jobs."""
    directory = tmp_path_factory.mktemp("bad-input")
    (directory / "jobs.py").write_text(JOBS)
    cluster = LocalCluster(directory / "cluster", taskmanagers=1, slots=2, options={})
    async with cluster, cluster.client() as client:
        yield RunningCluster(cluster, client, directory)


async def refused(running: RunningCluster, exit_code: int, *arguments: str) -> str:
    """Run `holdover`; what it says on standard error, in one line.

    A job that failed when it ran shows the traceback of its task after that; others have none.
    """
    address = ("--address", running.cluster.address)
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    command = [*arguments[:separator], *address, *arguments[separator:]]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == exit_code, result.output
    told, _, traceback = result.stderr.partition("Traceback")
    assert not traceback or exit_code == JOB_ENDED
    return " ".join(told.split())


async def refused_job(
    running: RunningCluster, exit_code: int, kind: str, *arguments: str, output: str = "out"
) -> str:
    """Submit a job of the file, and wait for its end."""
    path = str(running.directory / output)
    file = str(running.directory / "jobs.py")
    told = await refused(running, exit_code, "submit", file, kind, path, *arguments)
    assert not list(running.directory.glob(f"{output}/part-*")), "something was published"
    return told


async def nothing_was_restarted(running: RunningCluster) -> None:
    """A job that cannot run says so at once, not after restarts; so have all that have ended."""
    jobs = await running.client.list_jobs()
    assert jobs
    assert {job.restarts for job in jobs} == {0}


async def test_an_unknown_option_is_refused_with_the_nearest_name(running: RunningCluster) -> None:
    """As an option of the client, and of a job."""
    told = await refused(running, REFUSED, "list", "-D", "client.timeuot=1 s")
    assert "client.timeuot" in told
    assert "did you mean client.timeout?" in told
    job = ("submit", str(running.directory / "jobs.py"))
    option = ("-D", "restart-strategy.typ=none")
    told = await refused(running, REFUSED, *job, *option, "--", "numbers", "/nowhere")
    assert "did you mean restart-strategy.type?" in told


async def test_a_bad_duration_is_refused_with_an_example(running: RunningCluster) -> None:
    """The option, the value, and how durations are written."""
    told = await refused(running, REFUSED, "list", "-D", "client.timeout=5 parsecs")
    assert "client.timeout" in told
    assert "'5 parsecs'" in told
    assert "ms" in told


async def test_a_glob_without_files_is_refused(running: RunningCluster) -> None:
    """By the JobManager, before anything runs."""
    told = await refused_job(running, REFUSED, "text", "/nothing/here/*.txt")
    assert "no file matches the source '/nothing/here/*.txt'" in told
    assert ".source.text.glob" in told


async def test_a_file_that_is_not_parquet_is_refused_by_name(running: RunningCluster) -> None:
    """By the JobManager, before anything runs."""
    file = running.directory / "not.parquet"
    file.write_text("a,b\n1,2\n")
    told = await refused_job(running, REFUSED, "parquet", str(file))
    assert f"{file} is not a Parquet file" in told


async def test_a_damaged_parquet_file_fails_the_job_at_once(running: RunningCluster) -> None:
    """It begins and ends like one; what is between is found by the task, and no restart helps."""
    file = running.directory / "damaged.parquet"
    file.write_bytes(b"PAR1" + b"\x01" * 100 + b"PAR1")
    told = await refused_job(running, JOB_ENDED, "parquet", str(file))
    assert str(file) in told
    await nothing_was_restarted(running)


async def test_a_query_that_does_not_parse_is_refused(running: RunningCluster) -> None:
    """Before it is sent."""
    told = await refused_job(running, REFUSED, "query", "selec value frm input")
    assert "selec" in told
    assert "syntax error" in told


async def test_a_query_for_an_unknown_column_fails_the_job_at_once_with_candidates(
    running: RunningCluster,
) -> None:
    """Columns are known when a task runs; no restart could help."""
    told = await refused_job(running, JOB_ENDED, "query", "select valeu from input")
    assert '"valeu"' in told
    assert '"value"' in told.partition("andidate")[2]
    await nothing_was_restarted(running)


async def test_a_key_column_that_is_missing_fails_the_job_at_once(running: RunningCluster) -> None:
    """With the columns that there are."""
    told = await refused_job(running, JOB_ENDED, "key")
    assert "valeu" in told
    assert "value" in told.replace("valeu", "")
    await nothing_was_restarted(running)


async def test_a_function_that_cannot_be_pickled_is_refused_by_name(
    running: RunningCluster,
) -> None:
    """With the operator's name and the object that is to blame."""
    told = await refused_job(running, REFUSED, "unpicklable")
    assert "locked" in told
    assert "lock" in told.replace("locked", "")
    assert "pickle" in told


async def test_an_output_directory_that_is_not_empty_is_refused(running: RunningCluster) -> None:
    """What it holds stays as it is."""
    place = running.directory / "occupied"
    place.mkdir()
    (place / "mine.txt").write_text("precious")
    told = await refused_job(running, REFUSED, "numbers", output="occupied")
    assert f"{str(place)!r} exists and is not empty" in told
    assert "mine.txt" in told
    assert [path.name for path in place.iterdir()] == ["mine.txt"]


async def test_nothing_of_a_refused_job_is_known_or_stored(running: RunningCluster) -> None:
    """Runs after the others: only jobs that failed when they ran are listed."""
    states = {job.state for job in await running.client.list_jobs()}
    assert len(states) <= 1
    storage = running.cluster.storage_directory
    await wait_until(lambda: not list(storage.glob("*/jobs/*")), "nothing is stored")


async def test_a_jobmanager_where_nobody_listens_is_named() -> None:
    """Exit code 4, after the time that the user gave."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        arguments = ["list", "--address", address, "-D", "client.timeout=3 s"]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == UNREACHABLE
    assert f"no JobManager answers at {address}: connection refused" in result.stderr
    assert "Traceback" not in result.stderr


def ended(module: str, *defines: str) -> subprocess.CompletedProcess[str]:
    """Run a process of the cluster that cannot start, to its end."""
    arguments = [part for define in defines for part in ("-D", define)]
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        check=False,
    )


async def test_a_second_jobmanager_on_a_port_ends_and_names_it(
    running: RunningCluster, tmp_path: Path
) -> None:
    """The first one goes on: ports are never shared."""
    port = running.cluster.address.rpartition(":")[2]
    storage = f"high-availability.storageDir={tmp_path}"
    second = ended("jobmanager", f"jobmanager.rpc.port={port}", storage)
    assert second.returncode == REFUSED
    assert f":{port}" in second.stderr
    assert "another process has this port" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert (await running.client.cluster()).ready


@pytest.mark.parametrize("place", ["file/storage", "/proc/holdover"])
async def test_a_storage_directory_that_cannot_be_written_is_named(
    place: str, tmp_path: Path
) -> None:
    """Below a file, and where the system makes no directories."""
    (tmp_path / "file").touch()
    storage = tmp_path / place
    process = ended(
        "jobmanager", "jobmanager.rpc.port=0", f"high-availability.storageDir={storage}"
    )
    assert process.returncode == REFUSED
    told = process.stderr.splitlines()[-1]
    assert str(storage) in told
    assert "is not writable" in told


async def test_a_taskmanager_with_an_impossible_place_for_partitions_ends_and_names_it(
    tmp_path: Path,
) -> None:
    """As the JobManager does."""
    (tmp_path / "file").touch()
    process = ended("taskmanager", f"io.tmp.dirs={tmp_path}/file/tmp")
    assert process.returncode == REFUSED
    assert f"{tmp_path}/file" in process.stderr
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["jobmanager", "taskmanager"])
async def test_a_process_with_a_bad_option_ends_and_names_it(module: str) -> None:
    """In one line, before it opens anything."""
    unknown = ended(module, "heartbeat.timeuot=1 s")
    assert unknown.returncode == REFUSED
    assert "did you mean heartbeat.timeout?" in unknown.stderr
    bad = ended(module, "heartbeat.timeout=soon")
    assert bad.returncode == REFUSED
    assert "heartbeat.timeout" in bad.stderr
    assert "'soon'" in bad.stderr
