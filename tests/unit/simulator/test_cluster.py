"""The lives of a simulated cluster's processes."""

from __future__ import annotations

import asyncio
import math

import pytest

from simulator.cluster import rack_name
from tests.unit.simulator.cluster_scene import SOON_S, Scene, play


def test_a_process_serves_once_its_start_time_is_over() -> None:
    async def plot(scene: Scene) -> None:
        await asyncio.sleep(0.69)
        assert scene.node("jm-1").alive
        assert scene.node("jm-1").jobmanager is None
        assert scene.node("tm-1").taskmanager is None
        await asyncio.sleep(0.02)
        assert scene.node("jm-1").jobmanager is not None
        assert scene.node("tm-1").taskmanager is None
        await scene.until(lambda: scene.node("tm-1").taskmanager is not None)
        assert scene.now_s == pytest.approx(1.5, abs=0.02)

    play(plot, ready=False, jobmanager_start=0.7, taskmanager_start=1.5)


@pytest.mark.parametrize("leader", ["service", "file"])
def test_one_jobmanager_leads_and_all_taskmanagers_register_with_it(leader: str) -> None:
    async def plot(scene: Scene) -> None:
        leader = scene.cluster.leader()
        assert leader is not None
        assert scene.cluster.epoch_of(leader) == 1
        followers = [node for node in scene.cluster.jobmanagers if node is not leader]
        assert [scene.cluster.epoch_of(node) for node in followers] == [None]
        assert all(scene.registered(node.name) for node in scene.cluster.taskmanagers)

    play(plot, leader=leader)


def test_a_machine_for_the_leader_service_is_there_only_where_there_is_one() -> None:
    async def with_service(scene: Scene) -> None:
        assert [node.name for node in scene.cluster.machines()][:2] == ["leader-service", "jm-1"]
        assert scene.node("leader-service").alive

    async def without(scene: Scene) -> None:
        assert next(iter(scene.cluster.machines())).name == "jm-1"

    play(with_service, ready=False)
    play(without, ready=False, leader="file")


def test_a_process_that_ends_by_itself_is_started_again_after_its_time() -> None:
    async def plot(scene: Scene) -> None:
        scene.cluster.stop_node(scene.node("tm-2"))
        ended_s = await scene.until(lambda: not scene.node("tm-2").alive)
        await asyncio.sleep(2.9)
        assert not scene.node("tm-2").alive
        await scene.until(lambda: scene.node("tm-2").alive)
        assert scene.now_s - ended_s == pytest.approx(3.0, abs=0.02)
        await scene.until(lambda: scene.registered("tm-2"))

    play(plot, taskmanager_restart=3.0)


def test_a_process_that_is_never_started_again_is_so_once_all_is_healed() -> None:
    async def plot(scene: Scene) -> None:
        scene.cluster.stop_node(scene.node("tm-1"))
        await asyncio.sleep(100.0)
        assert not scene.node("tm-1").alive
        scene.injector.heal_all()
        await scene.until(lambda: scene.registered("tm-1"))
        scene.cluster.stop_node(scene.node("tm-1"))
        await scene.until(lambda: scene.lives("tm-1") == 3)

    play(plot, taskmanager_restart=math.inf)


def test_who_is_stopped_ends_in_its_own_order_and_who_is_killed_at_once() -> None:
    async def plot(scene: Scene) -> None:
        stopped, killed = scene.node("tm-1"), scene.node("tm-2")
        scene.cluster.stop_node(stopped)
        scene.cluster.kill_node(killed)
        assert stopped.alive
        assert not killed.alive
        await scene.until(lambda: not stopped.alive)

    play(plot)


def test_who_is_stopped_before_its_service_exists_ends_at_once() -> None:
    async def plot(scene: Scene) -> None:
        await asyncio.sleep(SOON_S)
        for name in ("jm-1", "tm-1"):
            scene.cluster.stop_node(scene.node(name))
            assert not scene.node(name).alive

    play(plot, ready=False)


def test_a_death_is_told_while_the_services_are_still_there_to_be_looked_at() -> None:
    async def plot(scene: Scene) -> None:
        seen: list[tuple[str, bool]] = []
        scene.cluster.on_death.append(
            lambda node: seen.append((node.name, node.taskmanager is not None))
        )
        scene.cluster.kill_node(scene.node("tm-3"))
        scene.cluster.kill_node(scene.node("tm-3"))
        assert scene.node("tm-3").taskmanager is None
        assert seen == [("tm-3", True)]

    play(plot)


def test_a_host_without_power_is_silent_until_it_is_started_again() -> None:
    async def plot(scene: Scene) -> None:
        node = scene.node("tm-1")
        scene.cluster.power_loss(node)
        scene.cluster.power_loss(node)
        assert not node.alive
        assert not scene.passes("jm-1", "tm-1")
        scene.cluster.start_node(node)
        assert scene.passes("jm-1", "tm-1")
        await scene.until(lambda: scene.registered("tm-1"))

    play(plot)


def test_a_process_that_fails_unexpectedly_ends_and_its_failure_is_known() -> None:
    scene = Scene(taskmanager_restart=1.0)

    async def plot() -> None:
        scene.cluster.start()
        node = scene.node("tm-1")
        await scene.until(lambda: scene.registered("tm-1"))
        assert node.taskmanager is not None
        node.taskmanager.failed.set_exception(ZeroDivisionError("a bug"))
        await scene.until(lambda: not node.alive)
        await scene.until(lambda: scene.registered("tm-1"))

    try:
        scene.world.run(plot())
    finally:
        scene.world.close()
    assert scene.lives("tm-1") == 2


def test_what_is_waited_for_is_looked_at_after_every_change() -> None:
    """A state that is over in the same moment is seen, and nobody is woken before it is there."""

    async def plot(scene: Scene) -> None:
        cluster = scene.cluster
        looked: list[str] = []

        def fails() -> bool:
            looked.append(cluster.job_states.get("job", ""))
            return looked[-1] == "FAILING"

        waiting = asyncio.ensure_future(cluster.until(fails))
        await asyncio.sleep(0)
        for state in ("RUNNING", "FAILING", "FAILED"):
            cluster.note_job_state("job", state)
        await waiting
        cluster.note_job_state("job", "RUNNING")
        assert looked == ["", "RUNNING", "FAILING"]
        await cluster.until(lambda: True)
        holds = False
        given_up = asyncio.ensure_future(cluster.until(lambda: holds))
        await asyncio.sleep(0)
        given_up.cancel()
        holds = True
        cluster.note_job_state("job", "FAILING")
        await asyncio.wait([given_up])
        assert given_up.cancelled()

    play(plot, ready=False)


def test_racks_are_filled_in_turn() -> None:
    assert [rack_name(number, 2) for number in (1, 2, 3)] == ["rack-1", "rack-2", "rack-1"]
