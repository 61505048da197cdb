"""A TaskManager that is started again on its directory goes on with what it had finished."""

from __future__ import annotations

from pathlib import Path

from tests.doubles.taskmanager_world import World, attempt, files_of, graph

FINISHED = attempt("finishes")
LAPSED = {
    "taskmanager.registration.timeout": "5 s",
    "execution.batch.job-recovery.previous-worker.recovery.timeout": "4 s",
}


async def restarted(world: World, **options: str) -> None:
    """End the TaskManager, and start another under its name."""
    await world.taskmanagers.pop().stop("the machine is rebooted")
    await world.start(**options)


def shuffle(world: World) -> Path:
    return world.root / "tmp" / "tm-1" / "shuffle"


async def test_finished_work_is_served_and_offered_by_a_new_incarnation(world: World) -> None:
    await world.start()
    await world.registered()
    await world.finish(FINISHED, attempt("finishes", job="job-b"))
    await world.run(attempt("stubborn"))
    before = world.jm.current
    await restarted(world)
    await world.registered(2)
    now = world.jm.current
    assert now.finished_keys == [FINISHED, attempt("finishes", job="job-b")]
    assert now.running == []
    assert now.header.resource_id == before.header.resource_id
    assert now.header.incarnation != before.header.incarnation
    assert world.served.lookup("job-a/finishes-0-0-0-1") == str(
        shuffle(world) / "job-a/finishes-0-0-0-1"
    )
    assert world.files() == files_of(FINISHED, attempt("finishes", job="job-b"))


async def test_what_is_damaged_or_half_written_is_deleted_and_never_offered(world: World) -> None:
    """P38, P40"""
    await world.start()
    await world.registered()
    await world.finish(FINISHED, attempt("finishes", 1))
    await world.taskmanagers.pop().stop("the machine is rebooted")
    index = shuffle(world) / "job-a" / "finishes-0-1-0-1.index"
    index.write_bytes(index.read_bytes()[:-1] + b"?")
    (shuffle(world) / "job-a" / "waits-0-0-0-1.data.part").write_bytes(b"half")
    await world.start()
    assert world.files() == files_of(FINISHED)
    await world.registered(2)
    assert world.jm.current.finished_keys == [FINISHED]


async def test_a_job_without_recovery_is_not_found_again(world: World) -> None:
    world.jm.graphs["job-b"] = graph("job-b", **{"execution.batch.job-recovery.enabled": "false"})
    await world.start()
    await world.registered()
    await world.finish(FINISHED, attempt("finishes", job="job-b"))
    await restarted(world)
    assert world.files() == files_of(FINISHED)


async def test_the_time_to_find_a_leader_runs_from_the_start(world: World) -> None:
    """P27: nobody leads; what was found goes when its time is over, and not before."""
    await world.start()
    await world.registered()
    await world.finish(FINISHED)
    await world.jm.vanish()
    await restarted(world, **LAPSED)
    assert world.files() == files_of(FINISHED)
    await world.until(lambda: not (shuffle(world) / "job-a").exists(), "released")
    await world.next_leader(2)
    await world.registered()
    assert world.jm.current.finished == []


async def test_found_work_outlives_the_loss_of_the_leader_that_it_was_offered_to(
    world: World,
) -> None:
    """P21: no graph was fetched since the restart, and no slot is occupied."""
    await world.start()
    await world.registered()
    await world.finish(FINISHED)
    await restarted(world)
    await world.registered(2)
    await world.jm.vanish()
    await world.next_leader(2)
    await world.registered()
    assert world.jm.current.finished_keys == [FINISHED]


async def test_a_leader_that_is_not_ready_or_of_an_older_epoch_deletes_nothing(
    world: World,
) -> None:
    """P36: one of an older epoch cannot judge what was found; it may use the slots."""
    await world.jm.vanish()
    await world.next_leader(7)
    await world.start()
    await world.registered()
    key = attempt("finishes", epoch=7)
    await world.finish(key)
    await world.jm.vanish()
    old = await world.next_leader(6, rejects=lambda _: True, ended_jobs=["job-a"])
    await restarted(world)
    await old.until(lambda: len(old.heartbeats) >= 2, "the old leader has said its part")
    assert world.files() == files_of(key)
    await old.vanish()
    unready = await world.next_leader(8, ready=False, rejects=lambda _: True)
    await unready.until(lambda: unready.register_calls >= 2, "the new leader was tried")
    assert world.files() == files_of(key)


async def test_what_a_leader_does_not_want_of_the_found_work_is_deleted(world: World) -> None:
    """P35: the job has ended while the TaskManager was away."""
    await world.start()
    await world.registered()
    await world.finish(FINISHED)
    await world.taskmanagers.pop().stop("the machine is rebooted")
    world.jm.rejects = lambda _: True
    await world.start()
    await world.until(lambda: not (shuffle(world) / "job-a").exists(), "deleted")


async def test_above_its_bound_a_taskmanager_asks_about_the_oldest(world: World) -> None:
    await world.start(**{"taskmanager.retained-partitions.max-bytes": "4 b"})
    await world.registered()
    await world.finish(FINISHED)
    assert not any(beat.partition_bytes_over for beat in world.jm.heartbeats)
    await world.finish(attempt("finishes", 1))
    await world.jm.until(lambda: world.jm.heartbeats[-1].partition_bytes_over > 0, "it asks")
    beat = world.jm.heartbeats[-1]
    assert beat.partition_bytes_over == 2
    assert [each.subtask for each in beat.oldest_finished] == [0, 1]
    assert world.files() == files_of(FINISHED, attempt("finishes", 1))
