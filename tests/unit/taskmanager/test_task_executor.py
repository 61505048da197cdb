"""A TaskManager runs attempts for its JobManager, and starts and ends in an orderly way."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from holdover.errors import ConfigurationError
from holdover.ids import partition_name
from holdover.v1.taskmanager_pb2 import (
    CancelTasksRequest,
    ReleaseJobRequest,
    ReleasePartitionsRequest,
)
from tests.doubles.taskmanager_world import World, attempt, files_of


async def test_a_finished_attempt_is_reported_and_its_partition_served(world: World) -> None:
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"))
    base = world.served.lookup(partition_name(attempt("finishes"), 0))
    assert base is not None
    assert Path(base + ".index").exists()
    assert world.jm.graph_fetches == ["job-a"]


async def test_concurrent_deployments_of_a_job_fetch_its_graph_once(world: World) -> None:
    await world.start()
    await world.registered()
    await world.finish(*(attempt("finishes", subtask) for subtask in range(4)))
    assert world.jm.graph_fetches == ["job-a"]


async def test_processes_are_reused_after_success_only(world: World) -> None:
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes", 0))
    await world.finish(attempt("finishes", 1))
    assert len(world.tasks.processes) == 1
    await world.run(attempt("fails"))
    await world.jm.until_state(attempt("fails"), "FAILED")
    await world.finish(attempt("finishes", 2))
    assert len(world.tasks.processes) == 2


async def test_a_failure_of_user_code_is_reported_with_its_traceback(world: World) -> None:
    await world.start()
    await world.registered()
    await world.run(attempt("fails"))
    await world.jm.until_state(attempt("fails"), "FAILED")
    (failure,) = [report.failure for report in world.jm.reports if report.HasField("failure")]
    assert (failure.message, failure.traceback) == ("boom", "at line 3")


async def test_a_killed_task_process_fails_its_task_and_leaves_no_partition(world: World) -> None:
    await world.start()
    await world.registered()
    await world.run(attempt("dies"))
    await world.jm.until_state(attempt("dies"), "FAILED")
    (failure,) = [report.failure for report in world.jm.reports if report.HasField("failure")]
    assert "task process died by signal 9 (SIGKILL)" in failure.message
    assert world.files() == []


async def test_a_source_task_gets_its_splits_one_by_one(world: World) -> None:
    world.jm.splits = 3
    await world.start()
    await world.registered()
    await world.finish(attempt("splits"))
    (finished,) = [report.finished for report in world.jm.reports if report.HasField("finished")]
    assert list(finished.splits) == [0, 1, 2]


@pytest.mark.parametrize("vertex", ["waits", "stubborn", "late"])
async def test_a_cancelled_attempt_leaves_nothing(world: World, vertex: str) -> None:
    await world.start()
    await world.registered()
    key = attempt(vertex)
    await world.run(key)
    answer = await world.jm.executor().CancelTasks(
        CancelTasksRequest(leader_epoch=1, attempts=[key.to_proto()]), timeout=5
    )
    assert not answer.unknown
    await world.jm.until_state(key, "CANCELED")
    assert world.files() == []


async def test_a_repeated_deployment_starts_nothing_and_a_taken_slot_is_refused(
    world: World,
) -> None:
    await world.start()
    await world.registered()
    await world.run(attempt("waits"))
    answer = await world.jm.deploy((attempt("waits"), 0), (attempt("finishes"), 0))
    (refusal,) = answer.refusals
    assert "slot 0 is occupied by job-a/waits[0]#0@1" in refusal.reason
    assert world.tasks.runs == [attempt("waits")]


async def test_a_repeated_deployment_after_the_end_does_not_run_it_again(world: World) -> None:
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"))
    await world.run(attempt("fails"))
    await world.jm.until_state(attempt("fails"), "FAILED")
    answer = await world.jm.deploy((attempt("finishes"), 0), (attempt("fails"), 1))
    assert not answer.refusals
    assert world.tasks.runs == [attempt("finishes"), attempt("fails")]


async def test_a_released_partition_is_neither_served_nor_kept(world: World) -> None:
    await world.start()
    await world.registered()
    keep, drop = attempt("finishes", 0), attempt("finishes", 1)
    await world.finish(keep, drop)
    for _ in range(2):  # a repetition changes nothing
        await world.jm.executor().ReleasePartitions(
            ReleasePartitionsRequest(leader_epoch=1, attempts=[drop.to_proto()]), timeout=5
        )
    assert world.served.lookup(partition_name(drop, 0)) is None
    await world.until(lambda: world.files() == files_of(keep), "files deleted")


async def test_releasing_a_job_leaves_nothing_of_it(world: World) -> None:
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"), attempt("finishes", job="job-b"))
    await world.run(attempt("stubborn"))
    await world.jm.executor().ReleaseJob(
        ReleaseJobRequest(leader_epoch=1, job_id="job-a"), timeout=5
    )
    assert world.files() == files_of(attempt("finishes", job="job-b"))
    graphs = world.root / "tmp" / "tm-1" / "graphs"
    assert [path.name for path in graphs.iterdir()] == ["job-b.pb"]


async def test_a_job_that_has_ended_elsewhere_is_released_by_the_next_heartbeat(
    world: World,
) -> None:
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"))
    world.jm.ended_jobs.append("job-a")
    await world.until(lambda: world.files() == [], "files deleted")


async def test_health_and_reflection_are_served(world: World) -> None:
    taskmanager = await world.start()
    channel = world.runtime.network.channel(taskmanager.address)
    request = health_pb2.HealthCheckRequest(service="holdover.v1.TaskExecutor")
    answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    wish = reflection_pb2.ServerReflectionRequest(list_services="")
    async for listing in reflection.ServerReflectionInfo(iter([wish]), timeout=60):
        names = [service.name for service in listing.list_services_response.service]
        assert "holdover.v1.TaskExecutor" in names
    await channel.close()


@pytest.mark.parametrize("resource_id", ["tm-1", ""])
async def test_an_orderly_end_unregisters_and_leaves_no_file(
    world: World, resource_id: str
) -> None:
    """A generated name will not come back for what has finished; a given one has nothing here."""
    taskmanager = await world.start(**{"taskmanager.resource-id": resource_id})
    await world.registered()
    if not resource_id:
        await world.finish(attempt("finishes"))
    await world.run(attempt("stubborn"))
    await taskmanager.stop("test")
    world.taskmanagers.remove(taskmanager)
    assert world.jm.unregistered == [taskmanager.resource_id]
    assert not (world.root / "tmp" / taskmanager.resource_id).exists()


async def test_a_taskmanager_that_leaves_takes_no_orders(world: World) -> None:
    """They come until the leader has heard that it goes, or when the leader does not hear it."""
    taskmanager = await world.start()
    await world.registered()
    await world.run(attempt("waits"))
    assert taskmanager.executor is not None
    await taskmanager.executor.leave("test", timeout_s=5)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await world.jm.executor().CancelTasks(
            CancelTasksRequest(leader_epoch=1, attempts=[attempt("waits").to_proto()]), timeout=5
        )
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.value.details() == "this TaskManager leaves the cluster"


async def test_a_resource_id_in_use_is_refused_naming_it(world: World) -> None:
    await world.start()
    with pytest.raises(ConfigurationError, match="'tm-1' belongs to a running TaskManager"):
        await world.start()


async def test_a_start_sweeps_its_own_leftovers_and_those_of_dead_nameless_ones(
    world: World,
) -> None:
    """P40: a living neighbour, and one that may come back, keep theirs."""
    root = world.root / "tmp"
    for name in ("tm-1", "tm-dead", "tm-named"):
        (root / name / "shuffle" / "job-x").mkdir(parents=True)
        (root / name / "shuffle" / "job-x" / "left.data").write_bytes(b"left")
    (root / "tm-dead" / "generated").touch()
    neighbour = await world.start(**{"taskmanager.resource-id": ""})
    await world.start()
    await world.until(lambda: not (root / "tm-dead").exists(), "dead directory swept")
    assert not (root / "tm-1" / "shuffle" / "job-x").exists()
    assert (root / "tm-named" / "shuffle" / "job-x" / "left.data").exists()
    assert (root / neighbour.resource_id / "shuffle").exists()
