"""How long a new leader waits for previous workers: not a moment longer than somebody is missed."""

from __future__ import annotations

import pytest

from tests.simulation.story import (
    Story,
    attempts_of,
    ready_of,
    registered_of,
    runs_of,
    tell,
    two_stages,
    wait_of,
)

#: What the leader needs to write down that the wait is over.
MOMENT_S = 0.2


@pytest.mark.parametrize("one_is_gone", [False, True])
def test_nobody_is_waited_for_when_nothing_had_finished(one_is_gone: bool) -> None:
    """P19 (a): no partition is needed. A worker that was known and is gone might have finished
    something that nobody has heard of: for that there is `adoption-timeout`, far below W."""

    async def plot(story: Story) -> None:
        await story.until(lambda: len(story.tasks("tm-2")) == 2, "tasks run")
        if one_is_gone:
            story.kill("tm-3")
        await story.kill("jm-1", restart_after_s=1.0).over.wait()
        await story.registered("tm-1", 2)

    record = tell(two_stages(6, map_s=20.0, reduce_s=1.0), plot)
    again = [attempt.started_s for attempt in attempts_of(record, "map") if attempt.epoch == 2]
    known_s = 2.0 if one_is_gone else 0.2
    assert min(again) - ready_of(record, 2) < known_s + MOMENT_S


def test_the_wait_ends_with_the_registration_of_the_last_worker_that_is_needed() -> None:
    """P19 (b): of three workers two come at once, the third after 3 s."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        asleep = story.pause("tm-2")
        await story.kill("jm-1", restart_after_s=1.0).over.wait()
        await story.job_is("RECONCILING")
        await story.at(story.now_s + 3.0)
        story.heal(asleep)

    record = tell(two_stages(6), plot)
    _, until_s = wait_of(record, 2)
    assert 3.0 <= until_s - ready_of(record, 2) < 4.0
    assert abs(until_s - registered_of(record, "tm-2", 2)) < MOMENT_S
    assert runs_of(record, "map") == dict.fromkeys(range(6), 1)
    again = [attempt.started_s for attempt in attempts_of(record, "reduce") if attempt.epoch == 2]
    assert 0 <= min(again) - until_s < MOMENT_S


@pytest.mark.parametrize("while_waiting", ["true", "false"])
def test_a_worker_that_never_comes_is_waited_for_as_long_as_configured_and_no_longer(
    while_waiting: str,
) -> None:
    """P19 (c): exactly W; then what it held runs again, and nothing else."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        story.kill("tm-2")
        await story.kill("jm-1", restart_after_s=1.0).over.wait()
        await story.job_is("RECONCILING")
        await story.job_is("RUNNING")

    options = {"execution.batch.job-recovery.schedule-while-waiting": while_waiting}
    record = tell(two_stages(6, options=options), plot)
    _, until_s = wait_of(record, 2)
    assert until_s - ready_of(record, 2) == pytest.approx(30.0, abs=MOMENT_S)
    lost = [attempt.subtask for attempt in attempts_of(record, "map") if attempt.worker == "tm-2"]
    assert len(lost) == 2
    assert runs_of(record, "map") == {n: 2 if n in lost else 1 for n in range(6)}


def test_a_worker_that_holds_nothing_needed_is_not_waited_for() -> None:
    """P19: five workers, of whom one had nothing to do; it dies with the JobManager."""

    async def plot(story: Story) -> None:
        await story.stage_finished("map")
        [idle] = [n.name for n in story.cluster.taskmanagers if not story.held(n.name)]
        story.kill(idle)
        await story.kill("jm-1", restart_after_s=1.0).over.wait()
        await story.job_is("RECONCILING")

    record = tell(two_stages(4, taskmanagers=5, slots=1), plot)
    _, until_s = wait_of(record, 2)
    assert until_s - ready_of(record, 2) < 2.0
    assert runs_of(record, "map") == dict.fromkeys(range(4), 1)
