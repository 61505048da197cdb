"""What any gRPC client finds: health, reflection, who leads; also at a JobManager that waits."""

from __future__ import annotations

import asyncio
import sys

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from holdover.client import Client
from holdover.v1.jobmanager_pb2 import GetClusterRequest, GetClusterResponse, ListJobsRequest
from holdover.v1.jobmanager_pb2_grpc import JobManagerStub
from tests.cluster.conftest import StartCluster
from tests.cluster.ledger_jobs import chain
from tests.cluster.running_cluster import JOB_TIMEOUT_S, RunningCluster, wait_until

CALL_TIMEOUT_S = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service="holdover.v1.JobManager")
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(request, timeout=CALL_TIMEOUT_S)
    return int(answer.status)


async def services(address: str) -> set[str]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]), timeout=CALL_TIMEOUT_S)
        answer = await call.read()
    return {service.name for service in answer.list_services_response.service}


async def cluster_as_seen_at(address: str) -> GetClusterResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = JobManagerStub(channel)
        return await stub.GetCluster(GetClusterRequest(), timeout=CALL_TIMEOUT_S)


async def standby(running: RunningCluster) -> tuple[asyncio.subprocess.Process, str]:
    """A second JobManager over the same storage, and its address."""
    storage = running.cluster.storage_directory
    log = running.directory / "standby.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "jobmanager", "-D", "jobmanager.rpc.port=0"),
            *("-D", f"high-availability.storageDir={storage}"),
            *("-D", "execution.batch.job-recovery.previous-worker.recovery.timeout=4 min"),
            stderr=output,
        )
    await wait_until(lambda: "jobmanager serves" in log.read_text(), "the standby serves")
    return process, log.read_text().split("address=")[1].split()[0]


async def test_health_and_reflection_are_served(start_cluster: StartCluster) -> None:
    running = await start_cluster(taskmanagers=1)
    assert await health(running.cluster.address) == SERVING
    assert await services(running.cluster.address) >= {
        "holdover.v1.JobManager",
        "holdover.v1.ResourceManager",
        "grpc.health.v1.Health",
    }


async def test_a_jobmanager_that_waits_names_the_leader_and_takes_over_without_a_restart(
    start_cluster: StartCluster,
) -> None:
    running = await start_cluster(taskmanagers=2)
    process, address = await standby(running)
    try:
        assert await health(address) == NOT_SERVING
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while not (seen := await cluster_as_seen_at(address)).leader_address:
                await asyncio.sleep(0.02)  # it has not read the leader's record yet
        assert (seen.is_leader, seen.leader_address) == (False, running.cluster.address)
        async with grpc.aio.insecure_channel(address) as channel:
            try:
                await JobManagerStub(channel).ListJobs(ListJobsRequest(), timeout=CALL_TIMEOUT_S)
                raise AssertionError("it answered although it does not lead")
            except grpc.aio.AioRpcError as refused:
                assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
                leader = dict(refused.trailing_metadata() or ())["holdover-leader"]
                assert leader == running.cluster.address

        job = chain(running.directory, 4)
        job.gates.close("M")
        await running.submit(job)
        await wait_until(lambda: len(job.ledger.starts("M")) == 4, "S is done, M waits")
        await running.durable(job)
        await running.cluster.kill_jobmanager()
        job.gates.open("M")
        async with Client(address) as client, asyncio.timeout(JOB_TIMEOUT_S):
            await client.wait(job.job_id)
        assert job.result() == job.gold
        assert job.ledger.starts("S") == {("S", i): 1 for i in range(4)}
        assert (await cluster_as_seen_at(address)).leader_epoch == 2
    finally:
        process.terminate()
        await process.wait()
