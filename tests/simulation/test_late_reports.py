"""What an attempt says that has been replaced meanwhile."""

from __future__ import annotations

from tests.simulation.story import Story, attempts_of, runs_of, tell, two_stages

CUT_OFF_S = 60.0
OPTIONS = {"heartbeat.interval": "1 s", "heartbeat.timeout": "5 s"}


def test_an_attempt_that_was_replaced_is_heard_and_changes_nothing() -> None:
    """P15: it had finished while its TaskManager was cut off, and took it for lost; its FINISHED
    and its offer come a minute later, when another attempt's rows are being read."""
    lost: list[int] = []

    async def plot(story: Story) -> None:
        await story.until(lambda: story.tasks("tm-1"), "a task runs")
        await story.at(story.now_s + 2.0)
        cut_s = story.now_s
        away = story.cut("jm-1", "tm-1")
        await story.until(lambda: story.held("tm-1"), "it has finished, unheard")
        lost.extend(execution.attempt.subtask for execution in story.held("tm-1"))
        await story.stage_finished("map")
        await story.at(cut_s + CUT_OFF_S)
        assert story.held("tm-1"), "it waits for the leader"
        story.heal(away)
        await story.registered("tm-1", 1)
        await story.until(lambda: not story.files("tm-1"), "the old output is deleted", 5.0)

    scenario = two_stages(3, slots=1, map_s=4.0, reduce_s=90.0, options=OPTIONS)
    record = tell(scenario, plot)
    assert len(lost) == 1
    assert runs_of(record, "map") == {n: 2 if n in lost else 1 for n in range(3)}
    assert runs_of(record, "reduce") == {0: 1, 1: 1}, (
        "nobody who reads the new attempt is disturbed"
    )
    kept = [a for a in attempts_of(record, "map") if a.subtask in lost and a.attempt == 1]
    assert [a.end for a in kept] == ["finished"]
