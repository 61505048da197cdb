"""docker-compose.yml: what becomes of jobs when containers of the cluster die, stop or move."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdover.cli.tpch.check import compare, reference
from holdover.cli.tpch.data import TpchData, tpch_data
from holdover.cli.tpch.ledger import Subtask, add_ledger, read_ledger
from holdover.cli.tpch.queries import QUERIES
from holdover.client import Client
from holdover.v1.common_pb2 import ExecutionState
from tests.cluster.ledger_jobs import Gates, hold_sinks_back
from tests.containers.containers import (
    AVAILABLE,
    BUILD_TIMEOUT_S,
    JOB_TIMEOUT_S,
    ROOT,
    SINGLE,
    STOP_TIMEOUT_S,
    Containers,
    compose_commands,
    require_engine,
    run,
)

SCALE = 0.5
TASKMANAGERS = 3
KILLED = 137
IN_IMAGE = f"from holdover.cli.tpch.data import tpch_data; tpch_data({SCALE})"


def everything(containers: Containers) -> dict[str, dict[str, Any]]:
    """All containers of the project, as the engine describes them."""
    first = ("jobmanager", "jobmanager-2", "taskmanager", "shuffle-service")
    names = (*first, "etcd-1", "etcd-2", "etcd-3")
    return {each: containers.inspect(each) for name in names for each in containers.ids(name)}


def is_locked_down(found: dict[str, Any]) -> None:
    """Not root, writes to volumes and /tmp only, and is reached from this machine only."""
    config, host = found["Config"], found["HostConfig"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["User"])
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["Privileged"] is False
    assert host["Init"]
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert "no-new-privileges:true" in host["SecurityOpt"]
    published = [each for bound in (host["PortBindings"] or {}).values() for each in bound]
    assert {each["HostIp"] for each in published} <= {"127.0.0.1"}


@pytest.mark.parametrize("files", [AVAILABLE[:1], AVAILABLE], ids=["single", "available"])
def test_every_version_of_compose_reads_the_files(files: tuple[str, ...]) -> None:
    require_engine()
    chosen = [text for file in files for text in ("-f", file)]
    for command in compose_commands():
        services = run(*command, "--profile", "client", *chosen, "config", "--services").split()
        assert {"jobmanager", "taskmanager", "client"} <= set(services), command


async def test_the_cluster_comes_up_healthy_and_locked_down(single: Containers) -> None:
    """P61: as somebody who is not root, on volumes that are new."""
    async with single.client() as client:
        await single.ready(client, TASKMANAGERS)
        names = [worker.resource_id for worker in await client.taskmanagers()]
    assert sorted(names) == ["tm-1", "tm-2", "tm-3"]
    found = everything(single)
    assert len(found) == 1 + TASKMANAGERS
    for description in found.values():
        is_locked_down(description)
    for container in found:
        await single.until(
            lambda: single.state(container)["Health"]["Status"] == "healthy",  # noqa: B023
            "healthy",
        )
        with pytest.raises(AssertionError, match="Read-only file system"):
            run("docker", "exec", container, "touch", "/opt/holdover/new")
        assert run("docker", "exec", container, "id", "-u").strip() == "10001"


async def test_q9_goes_on_after_docker_kill_of_the_jobmanager(single: Containers) -> None:
    """What was finished does not run again, by the tasks' own word; the result is DuckDB's. The
    last tasks wait at a gate: the job is in the middle whenever the kill comes.
    """
    taskmanager = single.ids("taskmanager")[0]
    await asyncio.to_thread(run, "docker", "exec", taskmanager, "python", "-c", IN_IMAGE)
    data = TpchData(Path("/data/tpch") / f"sf-{SCALE:g}", SCALE)
    query = QUERIES[9]
    graph = query.job(data, "/data/q9").build("q9")
    add_ledger(graph, Path("/data/q9-ledger"))
    gates = Gates(single.place / "q9-gates")
    gates.close("last")
    hold_sinks_back(graph, gates, "last")
    total = sum(vertex.parallelism for vertex in graph.vertices)
    jobmanager = single.id("jobmanager")
    async with single.client() as client:
        await single.ready(client, TASKMANAGERS)
        await client.submit(graph)
        async with asyncio.timeout(JOB_TIMEOUT_S):
            while (await client.describe("q9")).status.subtasks_finished < total // 3:
                await asyncio.sleep(0.05)
        finished = await finished_subtasks(client, "q9")
        run("docker", "kill", jobmanager)
        assert single.state(jobmanager)["ExitCode"] == KILLED
        run("docker", "start", jobmanager)
        await single.ready(client, TASKMANAGERS)
        gates.open("last")
        async with asyncio.timeout(JOB_TIMEOUT_S):
            await client.wait("q9")
        result = await client.result_table("q9")
        report = (await client.recovery_reports("q9"))[-1]
    ledger = single.place / "q9-ledger"
    ledger.write_text(run("docker", "exec", taskmanager, "cat", "/data/q9-ledger"))
    starts = [line for line in read_ledger(ledger) if line.what == "start"]
    first_epoch = min(line.epoch for line in starts)
    again = {line.key for line in starts if line.epoch > first_epoch}
    assert finished
    assert again, "the last tasks did not wait"
    assert again & finished == set(), "finished work ran again"
    kept = sum(vertex.kept for vertex in report.vertices)
    print(f"{len(finished)} of {total} finished before the kill, {kept} kept, {len(again)} run")
    expected = reference(query, tpch_data(SCALE))
    comparison = compare(query, result, expected)
    assert comparison.equal, comparison.difference


async def finished_subtasks(client: Client, job_id: str) -> set[Subtask]:
    """Of which the JobManager has said that they are finished."""
    return {
        (subtask.attempt.vertex_id, subtask.attempt.subtask)
        for subtask in (await client.describe(job_id, subtasks=True)).subtasks
        if subtask.state == ExecutionState.EXECUTION_STATE_FINISHED
    }


async def test_processes_that_die_are_started_again_with_what_they_have(
    single: Containers,
) -> None:
    """A crash, other than `docker kill`, is for the restart policy; a TaskManager brings back its
    finished partitions under the name that it had."""
    async with single.client() as client:
        job = await single.before_m(client, "crash")
        for service in ("jobmanager", "taskmanager"):
            container = single.ids(service)[0]
            died = single.state(container)
            single.crash(container)
            await single.until(
                lambda: single.state(container)["StartedAt"] != died["StartedAt"],  # noqa: B023
                f"{service} is started again",
            )
            await single.ready(client, TASKMANAGERS)
        names = sorted(worker.resource_id for worker in await client.taskmanagers())
        assert names == ["tm-1", "tm-2", "tm-3"]
        job.gates.open("M")
        async with asyncio.timeout(JOB_TIMEOUT_S):
            await client.wait(job.job_id)
    assert job.result() == job.gold


async def test_a_jobmanager_that_comes_back_at_another_address_is_found(
    single: Containers,
) -> None:
    """P57: its old address is somebody else's, who answers at its port."""
    jobmanager = single.id("jobmanager")
    before = single.address(jobmanager)
    squatters = []
    async with single.client() as client:
        job = await single.before_m(client, "moved")
        run("docker", "stop", jobmanager)
        try:
            for _ in range(8):
                squatters.append(squat(single))
                if single.address(squatters[-1]) == before:
                    break
            assert before in [single.address(each) for each in squatters]
            run("docker", "start", jobmanager)
            assert single.address(jobmanager) != before
            await single.ready(client, TASKMANAGERS)
            await single.finish(client, job)
        finally:
            for each in squatters:
                run("docker", "rm", "--force", "--volumes", each)


def squat(containers: Containers) -> str:
    """A container in the network of the cluster that speaks HTTP at the JobManager's port."""
    return run(
        *("docker", "run", "--detach", "--network", f"{containers.project}_default"),
        *("--label", f"com.docker.compose.project={containers.project}"),
        *("--entrypoint", "python", "holdover:test", "-m", "http.server", "6123"),
    ).strip()


async def test_every_service_ends_when_it_is_asked_to(single: Containers) -> None:
    """P62: in the middle of a job, with streams and tasks open; SIGTERM reaches the process."""
    async with single.client() as client:
        job = await single.before_m(client, "stopped")
        for service in ("taskmanager", "jobmanager"):
            container = single.ids(service)[0]
            run("docker", "stop", "--time", f"{STOP_TIMEOUT_S}", container)
            state = single.state(container)
            assert state["ExitCode"] == 0, f"{service}: {state}"
            run("docker", "start", container)
            await single.ready(client, TASKMANAGERS)
        job.gates.open("M")
        async with asyncio.timeout(JOB_TIMEOUT_S):
            await client.wait(job.job_id)
    assert job.result() == job.gold


async def test_down_and_up_keeps_jobs_and_what_they_have_finished(single: Containers) -> None:
    """P61: all containers are new. The JobManager was the first to stop, and so has not seen its
    TaskManagers go."""
    async with single.client() as client:
        job = await single.before_m(client, "down-and-up")
    before = set(everything(single))
    single.down()
    assert everything(single) == {}
    single.up()
    assert before.isdisjoint(everything(single))
    async with single.client() as client:
        await single.ready(client, TASKMANAGERS)
        await single.finish(client, job)


def test_down_with_volumes_leaves_nothing(single: Containers) -> None:
    single.down("--volumes")
    assert single.left() == []


def test_the_commands_of_the_readme_do_what_they_say(images: Containers, tmp_path: Path) -> None:
    """In their order, word for word."""
    section = (ROOT / "README.md").read_text().split("## Run it in containers\n")[1]
    section = section.split("\n## ")[0]
    commands = [re.sub(r"\s+#.*", "", line) for line in re.findall(r"^    (\S.*)$", section, re.M)]
    newcomer = Containers.of("holdover-readme", SINGLE, tmp_path)
    settings = {**newcomer.settings, "COMPOSE_PROJECT_NAME": newcomer.project}
    program = " ".join(newcomer.command)
    said = {}
    try:
        for command in commands:
            typed = command.replace("docker-compose", program).replace("run --rm", "run --rm -T")
            said[command] = run("bash", "-c", typed, timeout_s=BUILD_TIMEOUT_S, **settings)
        (listed,) = [text for command, text in said.items() if command.endswith(" list")]
        assert re.search(r"wordcount.* FINISHED", listed), listed
        assert len(newcomer.left()) == len(("storage", "work", "data"))
    finally:
        newcomer.down("--volumes")
    assert newcomer.left() == []


def test_what_the_compose_files_say_twice_is_the_same() -> None:
    """None of them can use what another one defines."""
    documents = [yaml.safe_load((ROOT / name).read_text()) for name in AVAILABLE]
    first, second = documents[0]["services"]["jobmanager"], documents[1]["services"]["jobmanager-2"]
    for key in first.keys() - {"ports", "environment", "depends_on"}:
        assert second[key] == first[key], key
    etcd = documents[1]["services"]["etcd-1"]
    for key in documents[1]["x-secured"]:
        assert etcd[key] == first[key], key
