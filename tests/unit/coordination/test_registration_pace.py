"""When a worker tries to register next."""

from __future__ import annotations

from holdover.coordination.registration_pace import RegistrationPace


def longest(low: float, high: float) -> float:
    assert low <= high
    return high


def shortest(low: float, high: float) -> float:
    assert low <= high
    return low


def test_pauses_double_up_to_the_longest_and_are_short_again_for_a_new_leader() -> None:
    """P51"""
    pace = RegistrationPace(0.1, 1.0)
    assert [pace.pause_s(longest) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    pace.start_anew()
    assert pace.pause_s(shortest) == 0.05


def test_a_busy_leader_says_when_and_is_not_called_earlier() -> None:
    """P28"""
    pace = RegistrationPace(0.1, 1.0)
    pace.put_off_for(3.0)
    was_put_off, pause_s = pace.put_off, pace.pause_s(shortest)
    assert (was_put_off, pause_s, pace.put_off) == (True, 3.0, False)
    assert pace.pause_s(longest) == 0.1


def test_a_failure_is_no_refusal() -> None:
    pace = RegistrationPace(0.1, 1.0)
    pace.put_off_for(3.0)
    pace.put_off_for(0.0)
    assert not pace.put_off


def test_workers_of_a_large_cluster_spread_out_once_for_each_new_leader() -> None:
    """P28: all of them hear of it at the same moment."""
    pace = RegistrationPace(0.1, 1.0)
    assert pace.spread_s(1, longest) == 0.0  # none has said how many there are
    pace.registered(1, 8.0)
    assert pace.spread_s(1, longest) == 0.0  # the same leader
    assert pace.spread_s(2, longest) == 8.0
    assert pace.spread_s(2, longest) == 0.0


def test_few_workers_do_not_spread_out() -> None:
    """P51"""
    pace = RegistrationPace(0.1, 1.0)
    pace.registered(1, 0.0)
    assert pace.spread_s(2, longest) == 0.0
