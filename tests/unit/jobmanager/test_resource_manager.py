"""Which TaskManagers there are, and which job may use which slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdover.runtime.real import real_runtime
from holdover.v1.taskmanager_pb2 import (
    CancelTasksRequest,
    CancelTasksResponse,
    DeployTasksRequest,
    DeployTasksResponse,
    PingRequest,
    PingResponse,
    ReleaseJobRequest,
    ReleaseJobResponse,
    ReleasePartitionsRequest,
    ReleasePartitionsResponse,
)
from holdover.v1.taskmanager_pb2_grpc import (
    TaskExecutorServicer,
    add_TaskExecutorServicer_to_server,
)
from jobmanager.scheduler import signals as sig
from jobmanager.scheduler.signals import SlotId, WorkerRestarted
from jobmanager.worker_connection import ReleaseJobOrder
from jobmanager.worker_service import Context
from tests.unit.jobmanager.resources import header, resources, until


async def test_slots_are_granted_once_the_taskmanager_knows_that_it_is_registered() -> None:
    """Before that it would refuse the tasks."""
    async with resources() as it:
        job = it.add_job("job", wanted=2)
        worker, refreshed = it.manager.register(header())
        assert (refreshed, job.granted()) == (False, [])
        it.manager.session_opened(worker)
        assert job.granted() == [SlotId("tm-0", 0), SlotId("tm-0", 1)]
        assert it.manager.slot_counts() == (2, 0)


async def test_one_incarnation_that_registers_twice_is_the_same_worker() -> None:
    """P22: its slots count once, stay with their job, and only the newer registration holds."""
    async with resources() as it:
        job = it.add_job("job", wanted=1)
        first = it.register()
        second, refreshed = it.manager.register(header())
        it.manager.session_opened(second)
        assert refreshed
        assert it.manager.slot_counts() == (2, 1)
        assert job.granted() == [SlotId("tm-0", 0)]
        assert job.lost() == []
        assert it.manager.registered("tm-0", first.registration_id) is None
        assert it.manager.registered("tm-0", second.registration_id) is second


async def test_a_new_incarnation_replaces_the_old_one_at_once() -> None:
    """P22: a process that was started again under the same name holds none of the old slots; what
    it has found of the finished work, it is about to tell."""
    async with resources() as it:
        job = it.add_job("job", wanted=1)
        it.register(incarnation="a")
        it.register(incarnation="b")
        assert job.lost() == []
        assert [s for s in job.signals if isinstance(s, WorkerRestarted)] == [
            WorkerRestarted("tm-0")
        ]
        assert job.granted() == [SlotId("tm-0", 0)] * 2
        assert it.manager.slot_counts() == (2, 1)


async def test_a_worker_that_was_lost_comes_back_as_a_new_one() -> None:
    """What it held has been given up meanwhile (P25)."""
    async with resources() as it:
        job = it.add_job("job", wanted=0)
        it.manager.lose(it.register(), "for a test")
        assert (job.lost(), it.manager.workers()) == (["tm-0"], [])
        _, refreshed = it.manager.register(header())
        assert not refreshed


async def test_losing_an_old_registration_does_not_lose_the_new_one() -> None:
    """A late word about the connection of before."""
    async with resources() as it:
        job = it.add_job("job", wanted=0)
        old = it.register()
        new = it.register()
        it.manager.lose(old, "too late")
        assert (job.lost(), it.manager.workers()) == ([], [new])


async def test_a_silent_worker_is_lost_after_the_timeout_and_a_living_one_is_not() -> None:
    """P54."""
    async with resources(interval_s=0.04, timeout_s=0.2) as it:
        job = it.add_job("job", wanted=0)
        it.register("tm-0")
        living = it.register("tm-1")
        while job.lost() != ["tm-0"]:
            it.manager.heartbeat(living)
            await asyncio.sleep(0.01)
        assert it.manager.workers() == [living]


async def test_a_jobmanager_that_stood_still_does_not_take_its_own_silence_for_the_workers() -> (
    None
):
    """P37, P54: it was frozen for an hour; everybody gets the whole timeout anew."""
    async with resources(timeout_s=60.0) as it:
        job = it.add_job("job", wanted=0)
        worker = it.register()
        looks = it.manager.options.heartbeat_interval_s / 4
        await asyncio.sleep(3 * looks)
        it.clock.added_s = 3600.0
        await asyncio.sleep(3 * looks)
        assert (job.lost(), it.manager.workers()) == ([], [worker])


async def test_slots_that_are_given_back_go_to_the_job_that_waits() -> None:
    """A job that holds all is asked for some when another one has none."""
    async with resources() as it:
        first = it.add_job("first", wanted=2)
        it.register()
        second = it.add_job("second", wanted=1)
        assert first.signals[-1] == sig.SlotsReclaimed(1)
        it.manager.return_slots("first", [SlotId("tm-0", 1)])
        assert second.granted() == [SlotId("tm-0", 1)]
        it.manager.return_slots("first", [SlotId("tm-0", 1)])
        assert it.manager.slot_counts() == (2, 0), "a slot that it does not hold any more"


async def test_slots_that_are_lost_with_a_worker_are_replaced_by_free_ones_at_once() -> None:
    """Nothing else that the job does would bring them: it wants as many as before."""
    async with resources() as it:
        job = it.add_job("job", wanted=1)
        worker = it.register("tm-0")
        it.register("tm-1")
        assert job.granted() == [SlotId("tm-0", 0)]
        it.manager.lose(worker, "it is gone")
        assert job.granted() == [SlotId("tm-0", 0), SlotId("tm-1", 0)]
        assert isinstance(job.signals[-2], sig.WorkerLost), "it hears of the loss before"


async def test_slots_that_are_lost_with_a_restart_are_replaced_by_free_ones_at_once() -> None:
    """A new process has taken the worker's place before anybody missed the old one."""
    async with resources() as it:
        job = it.add_job("job", wanted=1)
        it.register("tm-0")
        it.register("tm-1")
        it.manager.register(header("tm-0", incarnation="b"))
        assert job.granted() == [SlotId("tm-0", 0), SlotId("tm-1", 0)]
        assert job.signals[-2] == sig.WorkerRestarted("tm-0"), "it hears of it before"


async def test_the_end_of_a_job_frees_its_slots_and_makes_every_worker_delete_it() -> None:
    """P35."""
    async with resources() as it:
        job = it.add_job("job", wanted=1)
        executors = [ExecutorDouble(), ExecutorDouble()]
        async with serving(executors[0]) as one, serving(executors[1]) as two:
            it.register("tm-0", address=one)
            it.register("tm-1", address=two)
            it.manager.remove_job("job")
            assert it.manager.slot_counts() == (4, 4)
            await until(lambda: all(e.released == ["job"] for e in executors), "both are told")
            assert not it.manager.order("tm-2", ReleaseJobOrder("job"))
        assert job.lost() == []


async def test_a_living_worker_that_registers_again_in_a_moment_is_not_lost() -> None:
    """P23: it took the leader for lost (a frozen one), and is about to bring all that it holds."""
    async with resources() as it:
        job = it.add_job("job", wanted=1)
        executor = ExecutorDouble(registered=False)
        async with serving(executor) as address:
            worker = it.register(address=address)
            it.manager.confirm(worker)
            await until(lambda: not worker.session_open, "its slots are not used meanwhile")
            it.register(address=address)
        assert job.lost() == []
        assert it.manager.slot_counts() == (2, 1)


async def test_a_worker_that_nobody_answers_for_is_lost_after_so_many_calls() -> None:
    """`heartbeat.rpc-failure-threshold`: its session broke, and it does not answer."""
    async with resources(failures=2) as it:
        job = it.add_job("job", wanted=0)
        it.manager.confirm(it.register())
        await until(lambda: job.lost() == ["tm-0"], "it is lost")


async def test_with_a_threshold_of_minus_one_failed_calls_decide_nothing() -> None:
    """The heartbeat timeout does."""
    async with resources(failures=-1, timeout_s=0.5) as it:
        job = it.add_job("job", wanted=0)
        it.manager.confirm(it.register())
        await until(lambda: job.signals, "it is lost")
        assert job.signals == [sig.WorkerLost("tm-0", "no heartbeat for 0.5 s")]


# ---------------------------------------------------------------------- the other side


class ExecutorDouble(TaskExecutorServicer):
    """A TaskManager that answers."""

    def __init__(self, *, registered: bool = True) -> None:
        self.registered = registered
        self.released: list[str] = []

    async def Ping(self, request: PingRequest, context: Context) -> PingResponse:  # noqa: N802
        return PingResponse(leader_epoch=request.leader_epoch, registered=self.registered)

    async def ReleaseJob(  # noqa: N802
        self, request: ReleaseJobRequest, context: Context
    ) -> ReleaseJobResponse:
        self.released.append(request.job_id)
        return ReleaseJobResponse(leader_epoch=request.leader_epoch)

    async def DeployTasks(  # noqa: N802
        self, request: DeployTasksRequest, context: Context
    ) -> DeployTasksResponse:
        return DeployTasksResponse(leader_epoch=request.leader_epoch)

    async def CancelTasks(  # noqa: N802
        self, request: CancelTasksRequest, context: Context
    ) -> CancelTasksResponse:
        return CancelTasksResponse(leader_epoch=request.leader_epoch)

    async def ReleasePartitions(  # noqa: N802
        self, request: ReleasePartitionsRequest, context: Context
    ) -> ReleasePartitionsResponse:
        return ReleasePartitionsResponse(leader_epoch=request.leader_epoch)


@asynccontextmanager
async def serving(executor: ExecutorDouble) -> AsyncIterator[str]:
    """Its address, as long as it serves."""
    server = real_runtime().network.server("127.0.0.1:0")
    server.add(add_TaskExecutorServicer_to_server, executor)
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
