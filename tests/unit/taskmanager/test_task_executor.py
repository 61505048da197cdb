"""A TaskManager runs attempts and keeps finished work while JobManagers come and go.

Real gRPC and real files; JobManager and task processes are scripted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from holdover.config import Configuration
from holdover.errors import ConfigurationError
from holdover.ids import AttemptKey, partition_name
from holdover.runtime import PartitionLookup, Runtime
from holdover.runtime.real import real_runtime
from holdover.v1.common_pb2 import ConfigEntry
from holdover.v1.job_pb2 import IntermediateDataSet, JobGraph, JobVertex
from holdover.v1.taskmanager_pb2 import (
    CancelTasksRequest,
    PingRequest,
    ReleaseJobRequest,
    ReleasePartitionsRequest,
)
from taskmanager.process import TaskManager
from tests.doubles.resource_manager_double import ResourceManagerDouble
from tests.doubles.scripted_tasks import ScriptedTasks

VERTICES = ("finishes", "waits", "late", "stubborn", "dies", "fails", "splits")


def graph(job_id: str, **job_options: str) -> JobGraph:
    return JobGraph(
        job_id=job_id,
        vertices=[
            JobVertex(vertex_id=vertex, outputs=[IntermediateDataSet(subpartitions=1)])
            for vertex in VERTICES
        ],
        options=[ConfigEntry(key=key, value=value) for key, value in job_options.items()],
    )


def attempt(vertex: str, subtask: int = 0, job: str = "job-a", epoch: int = 1) -> AttemptKey:
    return AttemptKey(job, vertex, subtask, attempt=0, epoch=epoch)


@dataclasses.dataclass
class ServedPartitions:
    """A partition server that only remembers how it looks partitions up."""

    lookup: PartitionLookup = lambda _: None
    port: int = 1

    async def start(self, host: str, port: int, lookup: PartitionLookup) -> ServedPartitions:
        self.lookup = lookup
        return self

    async def stop(self) -> None:
        pass


@dataclasses.dataclass
class World:
    """One TaskManager, and the JobManagers that lead one after another at one address."""

    runtime: Runtime
    root: Path
    served: ServedPartitions
    tasks: ScriptedTasks
    jm: ResourceManagerDouble
    taskmanagers: list[TaskManager] = dataclasses.field(default_factory=list)

    async def start(self, **options: str) -> TaskManager:
        """Start the TaskManager; options with `_` for `.` win over short times."""
        values = {
            "jobmanager.rpc.port": str(self.jm.port),
            "io.tmp.dirs": str(self.root / "tmp"),
            "high-availability.storageDir": str(self.root / "storage"),
            "taskmanager.resource-id": "tm-1",
            "taskmanager.numberOfTaskSlots": "4",
            "taskmanager.registration.initial-backoff": "10 ms",
            "taskmanager.registration.max-backoff": "50 ms",
            "task.cancellation.timeout": "200 ms",
            **options,
        }
        taskmanager = TaskManager(self.runtime, Configuration.of(values))
        self.taskmanagers.append(taskmanager)
        await taskmanager.start()
        return taskmanager

    async def registered(self, count: int = 1) -> None:
        """Wait until the present JobManager has so many registrations."""
        await self.jm.until(lambda: len(self.jm.registrations) >= count, "registration")

    async def next_leader(self, epoch: int, **fields: object) -> ResourceManagerDouble:
        """Another JobManager leads at the same address."""
        self.jm = dataclasses.replace(
            ResourceManagerDouble(self.runtime, epoch, graphs=self.jm.graphs, port=self.jm.port),
            **fields,  # type: ignore[arg-type]
        )
        await self.jm.start(self.jm.port)
        return self.jm

    async def run(self, *keys: AttemptKey) -> None:
        """Deploy into the first slots, and wait until a process has each."""
        answer = await self.jm.deploy(*((key, slot) for slot, key in enumerate(keys)))
        assert not answer.refusals
        await self.until(lambda: all(key in self.tasks.runs for key in keys), "tasks run")

    async def finish(self, *keys: AttemptKey) -> None:
        """Deploy, and wait until each is reported as finished."""
        await self.run(*keys)
        for key in keys:
            await self.jm.until_state(key, "FINISHED")

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 5) -> None:
        """Wait for what no message tells: files, above all."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pytest.fail(f"not within {timeout_s} s: {what}; files {self.files()}")

    def files(self) -> list[str]:
        """The partition files on disk, relative to the shuffle directory."""
        root = self.root / "tmp" / "tm-1" / "shuffle"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def files_of(*keys: AttemptKey) -> list[str]:
    names = [partition_name(key, 0) for key in keys]
    return sorted(name + suffix for name in names for suffix in (".data", ".index"))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    tasks, served = ScriptedTasks(), ServedPartitions()
    runtime = dataclasses.replace(real_runtime(), task_processes=tasks, partition_servers=served)
    graphs = {job: graph(job) for job in ("job-a", "job-b")}
    jm = ResourceManagerDouble(runtime, epoch=1, graphs=graphs)
    await jm.start()
    world = World(runtime, tmp_path, served, tasks, jm)
    yield world
    for taskmanager in world.taskmanagers:
        await taskmanager.stop("the test is over")
        if taskmanager.failed.done():
            taskmanager.failed.result()
    await world.jm.vanish()


async def refused(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


# ---------------------------------------------------------------------- tasks


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


# ---------------------------------------------------------------------- the loss of the JobManager


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
    await world.finish(attempt("finishes", 1, epoch=2))


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
    error = await refused(executor.Ping(PingRequest(leader_epoch=1), timeout=5))
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
        old.executor().ReleaseJob(ReleaseJobRequest(leader_epoch=1, job_id="job-a"), timeout=5)
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
    world.jm.heartbeat_interval_s, world.jm.heartbeat_timeout_s = 0.1, 0.6
    await world.start(**{"rpc.call-timeout": "300 ms"})
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


# ---------------------------------------------------------------------- the process


async def test_an_orderly_end_unregisters_and_leaves_no_file(world: World) -> None:
    taskmanager = await world.start()
    await world.registered()
    await world.finish(attempt("finishes"))
    await world.run(attempt("stubborn"))
    await taskmanager.stop("test")
    world.taskmanagers.remove(taskmanager)
    assert world.jm.unregistered == ["tm-1"]
    assert not (world.root / "tmp" / "tm-1").exists()


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
