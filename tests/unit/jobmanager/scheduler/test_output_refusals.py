"""Output that nobody takes is tried again ever more slowly, and not for ever."""

from __future__ import annotations

from jobmanager.scheduler.output_refusals import PAUSE_FIRST_S, PAUSE_MAX_S, OutputRefusals

SUBTASK = ("v", 0)


def test_pauses_grow_to_their_maximum_and_end_when_the_subtask_has_waited_long_enough() -> None:
    refusals = OutputRefusals(60.0)
    pauses: list[float] = []
    while (pause_s := refusals.refused(SUBTASK, "full")) is not None:
        pauses.append(pause_s)
    assert pauses[:3] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX_S
    assert 60.0 - PAUSE_MAX_S < sum(pauses) <= 60.0


def test_what_was_taken_meanwhile_begins_anew() -> None:
    refusals = OutputRefusals(1.0)
    assert refusals.refused(SUBTASK, "full") == PAUSE_FIRST_S
    refusals.taken(SUBTASK)
    assert refusals.waiting == ""
    assert refusals.refused(SUBTASK, "full") == PAUSE_FIRST_S


def test_it_says_whose_output_waits_and_why() -> None:
    refusals = OutputRefusals(1.0)
    refusals.refused(SUBTASK, "the one is full")
    refusals.refused(("v", 1), "the other is full")
    assert refusals.waiting == (
        "waiting for shuffle services: the output of 2 subtasks was refused; the other is full"
    )
