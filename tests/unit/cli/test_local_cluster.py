"""A local cluster, with small processes in the place of the real ones."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdover.cli import local_cluster
from holdover.cli.local_cluster import LocalCluster, LocalClusterError
from holdover.cli.local_processes import (
    ProcessIdentity,
    processes_with_environment,
    start_process,
)

pytestmark = pytest.mark.blocking_allowed("the command may block its own event loop")


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    program = "tests.doubles.cluster_process"
    monkeypatch.setattr(local_cluster, "_JOBMANAGER_MODULE", program)
    monkeypatch.setattr(local_cluster, "_TASKMANAGER_MODULE", program)
    monkeypatch.setattr(local_cluster, "_SHUFFLE_SERVICE_MODULE", program)
    cluster = LocalCluster(tmp_path / "cluster")
    yield cluster
    await cluster.stop()


def marked(cluster: LocalCluster) -> int:
    return len(processes_with_environment("_HOLDOVER_LOCAL_CLUSTER", str(cluster.directory)))


async def test_a_started_cluster_is_ready_and_a_stopped_one_leaves_no_process(
    cluster: LocalCluster,
) -> None:
    await cluster.start()
    assert list(cluster.processes()) == ["jobmanager", "tm-0", "tm-1", "tm-2"]
    async with cluster.client() as client:
        assert (await client.cluster()).ready
    await cluster.stop()
    assert cluster.processes() == {}
    assert marked(cluster) == 0


async def test_another_process_stops_what_one_has_started(cluster: LocalCluster) -> None:
    await cluster.start()
    found = LocalCluster(cluster.directory)
    assert found.address == cluster.address
    assert found.processes() == cluster.processes()
    await found.stop()
    assert cluster.processes() == {}


async def test_a_jobmanager_comes_back_at_its_address(cluster: LocalCluster) -> None:
    await cluster.start()
    address = cluster.address
    status = await cluster.kill_jobmanager()
    assert status is not None
    assert status.signal == signal.SIGKILL
    assert "jobmanager" not in cluster.processes()
    cluster.start_jobmanager()
    await cluster.wait_until_ready(3)
    assert cluster.address == address
    assert cluster.log_text().count("started") == 2


async def test_another_process_starts_the_jobmanager_again_with_its_options(
    cluster: LocalCluster,
) -> None:
    cluster.options["log.level"] = "DEBUG"
    await cluster.start()
    await cluster.kill_jobmanager()
    await cluster.kill_taskmanager(0)
    found = LocalCluster(cluster.directory)
    assert found.options == {"log.level": "DEBUG"}
    found.start_jobmanager()
    await found.wait_until_ready(0)
    assert list(found.processes()) == ["jobmanager", "tm-1", "tm-2"]
    await found.stop()


async def test_a_taskmanager_is_killed_alone(cluster: LocalCluster) -> None:
    await cluster.start()
    await cluster.kill_taskmanager(1)
    assert list(cluster.processes()) == ["jobmanager", "tm-0", "tm-2"]
    cluster.start_taskmanager(1)
    assert "tm-1" in cluster.processes()


async def test_shuffle_services_are_started_killed_and_started_again_like_workers(
    cluster: LocalCluster,
) -> None:
    served = LocalCluster(cluster.directory, taskmanagers=1, shuffle_services=2, options={})
    assert served.options == {"shuffle.mode": "external"}
    await served.start()
    assert list(served.processes()) == ["jobmanager", "tm-0", "ss-0", "ss-1"]
    status = await served.kill_shuffle_service(1)
    assert status is not None
    assert status.signal == signal.SIGKILL
    assert list(served.processes()) == ["jobmanager", "tm-0", "ss-0"]
    served.start_shuffle_service(1)
    await served.wait_until_ready(1, shuffle_services=2)
    await served.stop()
    assert served.processes() == {}


def test_who_has_shuffle_services_may_still_keep_output_at_taskmanagers(tmp_path: Path) -> None:
    options = {"shuffle.mode": "taskmanager"}
    assert LocalCluster(tmp_path, shuffle_services=1, options=options).options == options


async def test_a_second_start_in_the_same_directory_is_refused(cluster: LocalCluster) -> None:
    await cluster.start()
    with pytest.raises(LocalClusterError, match=r"runs already in .*jobmanager \(pid"):
        await LocalCluster(cluster.directory).start()


async def test_a_process_that_ends_while_starting_is_reported_with_its_log(
    cluster: LocalCluster,
) -> None:
    cluster.options["log.level"] = "ERROR"
    with pytest.raises(LocalClusterError, match=r"(?s)exited with code 1.*refuses to start"):
        await cluster.start()
    assert marked(cluster) == 0


async def test_a_cluster_that_does_not_become_ready_is_reported(cluster: LocalCluster) -> None:
    cluster.start_jobmanager()
    with pytest.raises(LocalClusterError, match="not ready after 1 s"):
        await cluster.wait_until_ready(4, timeout_s=1)


async def test_a_reused_pid_is_not_taken_for_ours(cluster: LocalCluster) -> None:
    cluster.start_jobmanager()
    await cluster.kill_jobmanager()
    stranger = start_process(["/bin/sleep", "60"], {}, cluster.directory / "sleep.log")
    path = cluster.directory / "cluster.json"
    record = json.loads(path.read_text())
    record["processes"][0].update(pid=stranger.pid, start_ticks=stranger.start_ticks - 1)
    path.write_text(json.dumps(record))
    await LocalCluster(cluster.directory).stop()
    assert stranger.is_alive()
    stranger.send(signal.SIGKILL)
    await stranger.wait(5)


async def test_a_pid_of_an_earlier_boot_is_not_taken_for_ours(cluster: LocalCluster) -> None:
    pid = cluster.start_jobmanager()
    process = cluster._processes["jobmanager"]
    assert process.is_alive()
    assert not ProcessIdentity(pid, process.start_ticks, "another boot").is_alive()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(LocalClusterError, match=r"cluster\.json cannot be read"):
        LocalCluster(tmp_path)
