"""A TaskManager keeps finished work while JobManagers come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from holdover.ids import partition_name
from holdover.v1.taskmanager_pb2 import (
    PingRequest,
    ReleaseJobRequest,
)
from tests.doubles.resource_manager_double import ResourceManagerDouble
from tests.doubles.taskmanager_world import World, attempt, files_of, graph


async def refused(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def test_what_is_finished_is_offered_to_the_next_leader_and_what_runs_is_failed(
    world: World,
) -> None:
    """P20, P21, P26: same address, new epoch; partitions without any slot are kept."""
    await world.start()
    await world.registered()
    finished, waits = attempt("finishes"), attempt("waits")
    await world.finish(finished)
    await world.run(waits)
    await world.jm.vanish()
    await world.until(lambda: world.files() == files_of(finished), "partial output deleted")
    await world.next_leader(epoch=2)
    await world.registered()
    assert world.jm.current.finished_keys == [finished]
    # Its process may not have let go of the slot yet.
    assert world.jm.current.running in ([], [waits])
    assert world.served.lookup(partition_name(finished, 0)) is not None
    new = attempt("finishes", 1, epoch=2)
    await world.jm.deploy((new, 3))
    await world.jm.until_state(new, "FINISHED")


async def test_a_restart_that_nobody_noticed_is_found_by_the_heartbeat(world: World) -> None:
    """P20: the new leader has taken over before any call of the TaskManager failed."""
    await world.start()
    await world.registered()
    finished, waits = attempt("finishes"), attempt("waits")
    await world.finish(finished)
    await world.run(waits)
    world.jm.epoch = 2
    world.jm.registrations.clear()
    await world.registered()
    assert world.jm.current.finished_keys == [finished]
    await world.until(lambda: world.files() == files_of(finished), "old task is failed")
    executor = world.jm.executor()
    error = await refused(executor.Ping(PingRequest(leader_epoch=1), timeout=60))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == "epoch 1 is over; 2 leads"


async def test_a_task_that_finishes_while_no_jobmanager_listens_is_offered(world: World) -> None:
    """P24: it finishes after the JobManager is gone, in answer to its cancellation even."""
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"))
    await world.run(attempt("late"))
    await world.jm.vanish()
    name = partition_name(attempt("late"), 0)
    await world.until(lambda: world.served.lookup(name) is not None, "late finish")
    await world.next_leader(epoch=2)
    await world.registered()
    assert world.jm.current.finished_keys == [attempt("finishes"), attempt("late")]


async def test_a_job_without_finished_work_is_released_at_once(world: World) -> None:
    await world.start()
    await world.registered()
    await world.run(attempt("waits"))
    await world.jm.vanish()
    graphs = world.root / "tmp" / "tm-1" / "graphs"
    await world.until(lambda: not any(graphs.iterdir()), "graph deleted")
    assert world.files() == []


async def test_a_job_with_recovery_disabled_is_released_at_once(world: World) -> None:
    world.jm.graphs["job-a"] = graph("job-a", **{"execution.batch.job-recovery.enabled": "false"})
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"), attempt("finishes", job="job-b"))
    await world.jm.vanish()
    kept = files_of(attempt("finishes", job="job-b"))
    await world.until(lambda: world.files() == kept, "job-a released")


async def test_a_leader_that_is_not_ready_costs_nothing(world: World) -> None:
    """A refusal to register is no verdict about partitions."""
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"))
    await world.jm.vanish()
    await world.next_leader(epoch=2, ready=False)
    await world.jm.until(lambda: world.jm.register_calls >= 5, "repeated tries")
    assert world.files() == files_of(attempt("finishes"))
    world.jm.ready = True
    await world.registered()
    assert world.jm.current.finished_keys == [attempt("finishes")]


async def test_a_leader_of_an_older_epoch_is_not_registered_with(world: World) -> None:
    await world.start()
    await world.registered()
    await world.jm.vanish()
    await world.next_leader(epoch=2)
    await world.registered()
    await world.jm.vanish()
    old = await world.next_leader(epoch=1)
    await old.until(lambda: old.register_calls >= 3, "tries")
    error = await refused(
        old.executor().ReleaseJob(ReleaseJobRequest(leader_epoch=1, job_id="job-a"), timeout=60)
    )
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert all(heartbeat.leader_epoch == 2 for heartbeat in old.heartbeats)


async def test_the_registration_timeout_releases_what_is_retained(world: World) -> None:
    """P27: not before, and the TaskManager goes on as an empty worker."""
    timeout_s = 1.0
    await world.start(
        **{
            "taskmanager.registration.timeout": f"{timeout_s} s",
            "execution.batch.job-recovery.previous-worker.recovery.timeout": "500 ms",
        }
    )
    await world.registered()
    await world.finish(attempt("finishes"))
    await world.jm.vanish()
    loop = asyncio.get_running_loop()
    lost_s = loop.time()
    await world.until(lambda: world.files() == [], "files deleted")
    assert loop.time() - lost_s >= timeout_s - 0.05
    await world.next_leader(epoch=2)
    await world.registered()
    assert world.jm.current.finished == []
    await world.finish(attempt("finishes", epoch=2))


async def test_a_late_rejection_deletes_only_what_it_names(world: World) -> None:
    await world.start()
    await world.registered()
    keep, drop = attempt("finishes", 0), attempt("finishes", 1)
    await world.finish(keep, drop)
    await world.jm.vanish()
    await world.next_leader(epoch=2, rejects=lambda key: key == drop)
    await world.registered()
    await world.until(lambda: world.files() == files_of(keep), "rejected files deleted")
    await world.finish(attempt("finishes", 2, epoch=2))


async def test_an_inventory_that_broke_off_is_sent_again_in_full(world: World) -> None:
    """P23"""
    await world.start()
    await world.registered()
    keys = [attempt("finishes", subtask) for subtask in range(3)]
    await world.finish(*keys)
    await world.jm.vanish()
    await world.next_leader(epoch=2, break_off_after=2)
    await world.registered()
    assert world.jm.register_calls >= 2
    assert world.jm.current.finished_keys == keys
    assert world.files() == files_of(*keys)


async def test_a_leader_that_forgot_is_registered_with_again_and_tasks_go_on(
    world: World,
) -> None:
    """P22: the same leader, so nothing is lost; reports that were not taken come again."""
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"))
    await world.run(attempt("waits"))
    world.jm.forgets = True
    answer = await world.jm.deploy((attempt("finishes", 1), 1))
    assert not answer.refusals
    await world.registered(count=2)
    assert attempt("waits") in world.jm.current.running
    await world.jm.until_state(attempt("finishes", 1), "FINISHED")
    assert world.jm.states(attempt("waits")) == []
    await world.jm.deploy((attempt("finishes", 2), 2))
    await world.jm.until_state(attempt("finishes", 2), "FINISHED")


async def test_a_deployment_for_another_registration_is_refused(world: World) -> None:
    await world.start()
    await world.registered()
    world.jm.current.registration_id = "another"
    answer = await world.jm.deploy((attempt("finishes"), 0))
    assert "registration 'another' does not hold" in answer.refusals[0].reason


async def test_a_silent_jobmanager_is_lost_after_the_heartbeat_timeout(world: World) -> None:
    """P54: it answers nothing, and no connection breaks."""
    world.jm.heartbeat_interval_s, world.jm.heartbeat_timeout_s = 0.3, 3.0
    await world.start(**{"rpc.call-timeout": "1 s"})
    await world.registered()
    await world.run(attempt("waits"))
    world.jm.frozen = True
    await world.registered(count=2)
    assert world.files() == []


async def test_the_leader_record_leads_to_another_address(world: World, tmp_path: Path) -> None:
    """P26, P57: the record is followed at once, wherever the old leader went."""
    await world.start()
    await world.registered()
    await world.finish(attempt("finishes"))
    other = ResourceManagerDouble(world.runtime, epoch=2, graphs=world.jm.graphs)
    port = await other.start()
    leader = tmp_path / "storage" / "default" / "leader"
    leader.mkdir(parents=True)
    record = {"epoch": 2, "address": f"127.0.0.1:{port}"}
    (leader / "record.json").write_text(json.dumps(record))
    await other.until(lambda: bool(other.registrations), "registration with the new leader")
    assert other.current.finished_keys == [attempt("finishes")]
    await other.vanish()
