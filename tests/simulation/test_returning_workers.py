"""TaskManagers come back to a new leader: in time, twice, late, anew, half-way, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio
import pytest

from holdover.v1.taskmanager_pb2 import HeartbeatRequest, PingRequest, RegisterRequest
from holdover.v1.taskmanager_pb2_grpc import ResourceManagerStub, TaskExecutorStub
from jobmanager.worker_connection import WorkerConnection
from jobmanager.worker_service import Inventory
from simulator.faults import MadeFault
from simulator.quantities import Constant
from simulator.record import RunRecord
from simulator.scenario import ClusterSpec, JobSpec, NetworkSpec, Scenario, StageSpec
from tests.simulation.story import (
    LogEvent,
    Story,
    attempts_of,
    ready_of,
    registered_of,
    runs_of,
    tell,
    two_stages,
    wait_of,
)

CALL_TIMEOUT_S = 3.0
CALL_TIMEOUT = {"taskmanager.registration.call-timeout": f"{CALL_TIMEOUT_S:.0f} s"}
#: Nothing is noticed by failed calls, and hardly anything by silence.
UNNOTICED = {
    "heartbeat.interval": "2 s",
    "heartbeat.timeout": "20 s",
    "heartbeat.rpc-failure-threshold": "-1",
}


def test_workers_that_noticed_nothing_are_told_to_register_again() -> None:
    """P20: the JobManager is back after half a second; nobody hears of it but by heartbeats."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        await story.at(story.now_s + 2.0)
        story.cut("all", "leader-service")
        story.kill("jm-1", restart_after_s=0.0)
        await story.registered("tm-3", 2)

    scenario = two_stages(6, options=UNNOTICED, jobmanager_start_s=0.5, lease_ttl_s=0.5)
    record = tell(scenario, plot)
    for name in ("tm-1", "tm-2", "tm-3"):
        assert registered_of(record, name, 2) - ready_of(record, 2) < 2 * 2.0
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)
    old = [attempt for attempt in attempts_of(record, "reduce") if attempt.epoch == 1]
    assert [attempt.end for attempt in old] == ["canceled", "canceled"]


def test_a_worker_whose_registration_was_answered_into_the_void_registers_twice() -> None:
    """P22: the second registration of one process changes nothing: its slots count once."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.kill("jm-1", restart_after_s=1.0)
        registered = "taskmanager registered"

        def seen() -> list[LogEvent]:
            lines = story.logged(registered, "jm-1")[3:]
            return [line for line in lines if line.fields["worker"] == "tm-1"]

        await story.until(seen, "the leader has taken the registration of tm-1")
        assert story.epoch_of("tm-1") != 2, "the answer was too fast for this plot"
        unheard = story.cut("jm-1", "tm-1", one_way=True)
        await story.at(story.now_s + 1.5 * CALL_TIMEOUT_S)
        assert story.epoch_of("tm-1") is None
        story.heal(unheard)
        await story.registered("tm-1", 2)
        assert len(seen()) == 2
        assert [w.slots for w in _workers(story) if w.worker_id == "tm-1"] == [2]

    network = NetworkSpec(latency=Constant(0.1))
    record = tell(two_stages(6, options=CALL_TIMEOUT, network=network), plot)
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)
    assert len(_life(record, "tm-1")) == 1, "it was told to exit"


def test_what_a_restarted_worker_no_longer_has_is_missing_from_the_moment_it_registers() -> None:
    """P22: a new process under the same id, on a machine that lost its power: nothing was synced,
    and the wait has nothing to wait for any more."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        dark = story.power_loss("tm-2")
        story.kill("jm-1", restart_after_s=0.5)
        await story.at(story.now_s + 2.0)
        story.heal(dark)
        await story.registered("tm-2", 2)
        assert story.held("tm-2") == []

    record = tell(two_stages(6, leader="file"), plot)
    _, until_s = wait_of(record, 2)
    assert abs(until_s - registered_of(record, "tm-2", 2)) < 0.2
    lost = {a.subtask for a in attempts_of(record, "map")[:6] if a.worker == "tm-2"}
    assert len(lost) == 2
    assert runs_of(record, "map") == {n: 2 if n in lost else 1 for n in range(6)}


def test_an_inventory_that_breaks_off_half_way_counts_for_nothing_and_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P23: 1,000 partitions of two jobs, which take two messages; the first one arrives."""
    chunks: list[int] = []
    cut_off: list[Callable[[], None]] = []
    add = Inventory.add

    def note(inventory: Inventory, message: RegisterRequest) -> None:
        add(inventory, message)
        if message.inventory.finished:
            chunks.append(len(message.inventory.finished))
            while cut_off:
                cut_off.pop()()

    monkeypatch.setattr(Inventory, "add", note)

    async def plot(story: Story) -> None:
        await story.job_is("RUNNING", "second")
        await story.stage_finished("map", job="first")
        await story.stage_finished("map", job="second")
        assert len(story.held("tm-1")) == 1_000
        story.kill("jm-1", restart_after_s=1.0)
        del chunks[:]
        cuts: list[MadeFault] = []
        cut_off.append(lambda: cuts.append(story.cut("jm-1", "tm-1")))
        await story.until(lambda: bool(cuts), "the first message has arrived")
        await story.at(story.now_s + 2 * CALL_TIMEOUT_S)
        assert chunks == [500]
        for name in ("first", "second"):
            master = story.cluster.job_master(name)
            assert master is not None
            assert master.scheduler.graph.state.name == "RECONCILING"
        story.heal(cuts[0])
        await story.registered("tm-1", 2)

    record = tell(_two_jobs(), plot)
    for job in ("first", "second"):
        assert runs_of(record, "map", job) == dict.fromkeys(range(500), 1)


def test_a_task_that_ends_while_nobody_listens_is_taken_up() -> None:
    """P24: its TaskManager cannot tell the old leader, and offers the output to the next."""

    async def plot(story: Story) -> None:
        await _finished_unheard(story)
        await story.registered("tm-1", 2)

    record = tell(two_stages(3, slots=1, map_s=5.0, leader="file"), plot)
    assert runs_of(record, "map") == dict.fromkeys(range(3), 1)
    [recovery] = record.jobs[0].recoveries
    assert sum(vertex.get("adopted", 0) for vertex in recovery["vertices"]) >= 1


def test_an_unheard_result_that_is_offered_when_its_task_runs_again_is_deleted() -> None:
    """P24: the log does not know it, and it comes too late to be taken up."""

    async def plot(story: Story) -> None:
        unheard = await _finished_unheard(story, stays_cut=True)
        assert story.files("tm-1")
        await story.until(lambda: _runs_again(story), "the task runs again elsewhere")
        story.heal(unheard)
        registered_s = await story.registered("tm-1", 2)
        await story.until(lambda: not story.files("tm-1"), "its files are deleted", 5.0)
        assert story.now_s - registered_s < 5.0

    record = tell(two_stages(4, slots=1, taskmanagers=4, map_s=5.0, leader="file"), plot)
    assert sorted(runs_of(record, "map").values()) == [1, 1, 1, 2]


@pytest.mark.parametrize(("map_s", "rerun"), [(20.0, "is under way"), (5.0, "is done")])
def test_a_worker_that_comes_after_the_wait_is_welcome_without_its_partitions(
    map_s: float, rerun: str
) -> None:
    """P25 (a), (b): refused and deleted; its slots work; nothing that runs is disturbed."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        away = story.cut("jm-1", "tm-2")
        await story.kill("jm-1", restart_after_s=1.0).over.wait()
        await story.job_is("RECONCILING")
        ended_s = await story.job_is("RUNNING")
        if rerun == "is done":
            await story.stage_finished("map")
        else:
            await story.at(ended_s + 1.0)
            assert story.finished_part("map") < 1.0
        story.heal(away)
        registered_s = await story.registered("tm-2", 2)
        await story.until(lambda: not story.files("tm-2"), "its disk is free", 5.0)
        [rejected] = story.logged("the JobManager rejected executions", "tm-2")
        assert (rejected.fields["reason"], rejected.fields["count"]) == ("late", 2)
        assert rejected.at_s - registered_s < 1.0

    scenario = two_stages(6, map_s=map_s, reduces=8, reduce_s=30.0)
    record = tell(scenario, plot)
    maps = attempts_of(record, "map")
    lost = {a.subtask for a in maps if a.worker == "tm-2" and a.epoch == 1}
    assert len(lost) == 2
    assert runs_of(record, "map") == {n: 2 if n in lost else 1 for n in range(6)}
    assert [a.worker for a in attempts_of(record, "reduce") if a.worker == "tm-2"]


def test_a_leader_at_the_same_address_is_another_leader() -> None:
    """P26: every worker shows the new epoch, and calls in the name of the old one are refused."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        old = story.executor("tm-1").connection.current
        assert old is not None
        story.kill("jm-1", restart_after_s=0.0)
        for name in ("tm-1", "tm-2", "tm-3"):
            await story.registered(name, 2)
        process = story.world.process(story.world.host("somebody"), "somebody")
        network = story.world.network.of(process)

        async def speak_as_of_old() -> None:
            channel = network.channel("tm-1:6122")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await TaskExecutorStub(channel).Ping(PingRequest(leader_epoch=1), timeout=5.0)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            stub = ResourceManagerStub(network.channel("jm-1:6123"))
            beat = HeartbeatRequest(
                leader_epoch=1, resource_id="tm-1", registration_id=old.registration_id
            )
            answer = await stub.Heartbeat(beat, timeout=5.0)
            assert (answer.leader_epoch, answer.register_again) == (2, True)

        await process.spawn(speak_as_of_old())
        assert story.epoch_of("tm-1") == 2

    record = tell(two_stages(6, leader="file", options=UNNOTICED), plot)
    for name in ("tm-1", "tm-2", "tm-3"):
        assert registered_of(record, name, 2) - ready_of(record, 2) < 20.0
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)


def test_partitions_are_kept_as_long_as_a_leader_may_come_and_not_longer() -> None:
    """P27: files are there at R - 1 s, gone at R + 5 s, and their producers run again."""
    timeout_s = 300.0

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        dead = story.kill("jm-1")
        names = [node.name for node in story.cluster.taskmanagers]
        lost_s = [await _noticed(story, name) for name in names]
        await story.at(min(lost_s) + timeout_s - 1.0)
        assert [len(story.files(name)) for name in names] == [6, 6, 6]
        await story.at(max(lost_s) + timeout_s + 5.0)
        assert [story.files(name) for name in names] == [[], [], []]
        assert len(story.logged("released job")) == 3
        await story.at(max(lost_s) + timeout_s + 60.0)
        story.heal(dead)
        await story.registered("tm-1", 2)

    options = {"taskmanager.registration.timeout": f"{timeout_s:.0f} s"}
    record = tell(two_stages(6, options=options), plot)
    assert runs_of(record, "map") == dict.fromkeys(range(6), 2)
    _, until_s = wait_of(record, 2)
    assert until_s - ready_of(record, 2) < 3.0, "everybody is back, with nothing"


async def _noticed(story: Story, name: str) -> float:
    await story.until(lambda: story.logged("JobManager lost", name), f"{name} notices")
    return story.logged("JobManager lost", name)[-1].at_s


async def _finished_unheard(story: Story, *, stays_cut: bool = False) -> MadeFault:
    """A task of tm-1 ends while nothing passes to the leader, which then dies."""
    await story.until(lambda: len(story.tasks("tm-1")) == 1, "a task runs")
    await story.at(story.now_s + 4.5)
    unheard = story.cut("jm-1", "tm-1")
    await story.until(lambda: story.held("tm-1"), "it has finished")
    assert story.finished_part("map") < 1.0
    await story.at(story.now_s + 1.5)
    await story.kill("jm-1", restart_after_s=0.5).over.wait()
    if not stays_cut:
        story.heal(unheard)
    return unheard


def _runs_again(story: Story) -> bool:
    [held] = story.held("tm-1")
    lost = held.attempt.vertex_id, held.attempt.subtask
    running = [key for node in story.cluster.taskmanagers for key in story.tasks(node.name)]
    return any((key.vertex_id, key.subtask) == lost for key in running)


def _workers(story: Story) -> list[WorkerConnection]:
    jobmanager = story.leader().jobmanager
    assert jobmanager is not None
    assert jobmanager.services is not None
    return list(jobmanager.services.resources.workers())


def _life(record: RunRecord, name: str) -> list[tuple[float, float | None]]:
    [worker] = [each for each in record.workers if each.worker == name]
    return worker.lives


def _two_jobs() -> Scenario:
    stages = (
        StageSpec(name="map", parallelism=500, seconds=Constant(1.0), output_bytes=Constant(1e3)),
        StageSpec(name="reduce", parallelism=60, seconds=Constant(30.0)),
    )
    return Scenario(
        name="story",
        cluster=ClusterSpec(taskmanagers=1, slots=250),
        jobs=(JobSpec(name="first", stages=stages), JobSpec(name="second", stages=stages)),
        options=CALL_TIMEOUT,
        network=NetworkSpec(bandwidth=100_000),
    )
