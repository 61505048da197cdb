"""When silence means loss."""

from __future__ import annotations

import pytest

from holdover.coordination.heartbeat import HeartbeatMonitor, RpcFailureCounter


def test_a_target_expires_after_its_timeout_of_silence_and_is_told_once() -> None:
    monitor = HeartbeatMonitor(timeout_s=50)
    monitor.watch("tm-1", now_s=0)
    assert monitor.expired(now_s=49.9) == []
    assert monitor.expired(now_s=50) == ["tm-1"]
    assert monitor.expired(now_s=1000) == []


def test_a_beat_moves_the_deadline() -> None:
    monitor = HeartbeatMonitor(timeout_s=50)
    monitor.watch("tm-1", now_s=0)
    assert monitor.beat("tm-1", now_s=40)
    assert monitor.expired(now_s=89) == []
    assert monitor.next_deadline_s() == 90


def test_a_late_old_beat_does_not_move_the_deadline_back() -> None:
    monitor = HeartbeatMonitor(timeout_s=50)
    monitor.watch("tm-1", now_s=0)
    monitor.beat("tm-1", now_s=40)
    monitor.beat("tm-1", now_s=10)
    assert monitor.next_deadline_s() == 90


def test_a_deadline_starts_when_the_monitor_first_watches() -> None:
    """P37: silence before this leader existed counts against nobody."""
    monitor = HeartbeatMonitor(timeout_s=50)
    monitor.watch("tm-1", now_s=10_000)
    assert monitor.expired(now_s=10_049) == []


def test_starting_anew_gives_everybody_a_whole_timeout() -> None:
    """P37."""
    monitor = HeartbeatMonitor(timeout_s=50)
    monitor.watch("tm-1", now_s=0)
    monitor.watch("tm-2", now_s=30)
    monitor.start_anew(now_s=100)
    assert monitor.expired(now_s=149) == []
    assert monitor.expired(now_s=150) == ["tm-1", "tm-2"]


def test_beats_of_the_unknown_and_the_forgotten_are_told_apart() -> None:
    monitor = HeartbeatMonitor(timeout_s=50)
    monitor.watch("tm-1", now_s=0)
    monitor.forget("tm-1")
    monitor.forget("never seen")
    assert not monitor.beat("tm-1", now_s=1)
    assert monitor.next_deadline_s() is None
    assert monitor.targets() == []


def test_targets_expire_in_the_order_they_were_watched() -> None:
    monitor = HeartbeatMonitor(timeout_s=1)
    names = [f"tm-{number}" for number in (5, 3, 9, 1)]
    for name in names:
        monitor.watch(name, now_s=0)
    assert monitor.expired(now_s=2) == names


def test_a_peer_is_lost_after_so_many_failures_in_a_row() -> None:
    counter = RpcFailureCounter(threshold=2)
    assert not counter.failure()
    assert counter.failure()
    assert counter.failure()


def test_a_success_starts_the_count_anew() -> None:
    counter = RpcFailureCounter(threshold=2)
    counter.failure()
    counter.success()
    assert counter.failures == 0
    assert not counter.failure()


def test_a_threshold_of_minus_one_is_never_reached() -> None:
    counter = RpcFailureCounter(threshold=-1)
    assert not any(counter.failure() for _ in range(1000))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        HeartbeatMonitor(timeout_s=0)
    with pytest.raises(ValueError, match="at least 1"):
        RpcFailureCounter(threshold=0)
