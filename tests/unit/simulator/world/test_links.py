"""When messages arrive: the arithmetic of links."""

from __future__ import annotations

import dataclasses
import random

import pytest

from holdover.runtime import real_network
from simulator.world.links import Links, LinkSettings, silence_ends_s
from simulator.world.process import Host

A, B, C = Host("a"), Host("b"), Host("c")
MIB = 1024 * 1024
#: A network without chance: 1 ms, 1 MiB/s.
PLAIN = LinkSettings(latency_s=(0.001, 0.001), bytes_per_s=MIB)


def links(settings: LinkSettings = PLAIN) -> Links:
    return Links(settings, random.Random(1))


def arrival_s(way: Links, source: Host, target: Host, n_bytes: int, now_s: float = 0.0) -> float:
    return way.arrival_s(way.port(source), way.port(target), n_bytes, now_s)


def blocked(way: Links, source: Host, target: Host) -> bool:
    return way.blocked(way.port(source), way.port(target))


def test_a_message_takes_a_latency_between_the_bounds() -> None:
    way = links(LinkSettings(latency_s=(0.1, 0.2)))
    drawn = [arrival_s(way, A, B, 0, now_s=5.0) - 5.0 for _ in range(100)]
    assert all(0.1 <= latency_s <= 0.2 for latency_s in drawn)
    assert max(drawn) - min(drawn) > 0.05


def test_a_latency_may_be_drawn_from_any_distribution() -> None:
    way = links(dataclasses.replace(PLAIN, latency_draw=lambda source: 3.0 + source.random()))
    assert 3.0 <= arrival_s(way, A, B, 0) <= 4.0


def test_bytes_take_their_time_at_the_bandwidth() -> None:
    assert arrival_s(links(), A, B, 2 * MIB) == pytest.approx(2.001)


def test_large_messages_queue_where_they_leave_and_where_they_come_in() -> None:
    way = links()
    assert arrival_s(way, A, B, MIB) == pytest.approx(1.001)
    assert arrival_s(way, A, C, MIB) == pytest.approx(2.001)
    assert arrival_s(way, C, B, MIB) == pytest.approx(2.001)


def test_a_small_message_does_not_wait_behind_a_large_one() -> None:
    way = links()
    arrival_s(way, A, B, 100 * MIB)
    assert arrival_s(way, A, B, 1024) < 0.01


def test_a_host_that_is_slow_twice_is_as_slow_as_the_slower_says() -> None:
    """Four faults of factor 50 would hold a message up for half an hour, and all behind it."""
    way = links()
    way.weaken([B], slowness=10.0)
    slower = way.weaken([B], slowness=50.0)
    assert way.port(B).slowness == 50.0
    way.heal(slower)
    assert way.port(B).slowness == 10.0


def test_a_slow_host_multiplies_time_and_adds_to_it_until_it_is_healed() -> None:
    way = links()
    slow = way.weaken([B], slowness=10.0, extra_latency_s=1.0)
    assert arrival_s(way, A, B, 0) == pytest.approx(1.01)
    assert arrival_s(way, B, A, MIB) == pytest.approx(11.01)
    assert arrival_s(way, A, C, 0) == pytest.approx(0.001)
    way.heal(slow)
    assert arrival_s(way, A, B, 0) == pytest.approx(0.001)


def test_what_befalls_a_host_twice_adds_up_and_heals_one_by_one() -> None:
    way = links()
    first = way.weaken([A], extra_latency_s=1.0)
    way.weaken([A], extra_latency_s=2.0)
    assert arrival_s(way, A, B, 0) == pytest.approx(3.001)
    way.heal(first)
    assert arrival_s(way, A, B, 0) == pytest.approx(2.001)


def test_a_lost_packet_costs_a_retransmission_and_never_the_message() -> None:
    way = links()
    way.weaken([A], loss=0.5)
    delays_s = [arrival_s(way, A, B, 0) for _ in range(200)]
    assert 0.3 < sum(delay_s > 0.2 for delay_s in delays_s) / 200 < 0.7
    way.heal_all()
    way.weaken([B], loss=1.0)
    assert arrival_s(way, A, B, 0) == pytest.approx(0.001 + 0.2 * (2**8 - 1))


def test_a_cut_in_one_direction_leaves_the_other() -> None:
    way = links()
    token = way.cut([A], [B], both=False)
    assert (blocked(way, A, B), blocked(way, B, A), blocked(way, A, C)) == (True, False, False)
    way.heal(token)
    assert not blocked(way, A, B)
    assert not way.interrupted


def test_a_cut_in_both_directions_ends_with_the_last_that_stops_the_way() -> None:
    way = links()
    first, second = way.cut([A], [B, C], both=True), way.cut([B], [A], both=True)
    assert blocked(way, C, A)
    way.heal(first)
    assert (blocked(way, A, B), blocked(way, A, C)) == (True, False)
    way.heal(second)
    way.heal(second)
    assert not blocked(way, A, B)


def test_a_silent_host_reaches_only_itself() -> None:
    way = links()
    way.silence(A, silent=True)
    assert (blocked(way, A, B), blocked(way, B, A), blocked(way, A, A)) == (True, True, False)
    way.heal_all()
    assert blocked(way, A, B)
    way.silence(A, silent=False)
    assert not blocked(way, A, B)


def test_an_address_that_was_left_stays_silent() -> None:
    way = links()
    old = way.port(A)
    new = way.change_address(A)
    assert way.blocked(way.port(B), old)
    assert not way.blocked(way.port(B), new)
    way.heal_all()
    assert way.blocked(way.port(B), old)


@pytest.mark.parametrize(
    ("heard_s", "silent_from_s", "ends_s"), [(0, 0, 40), (0, 29, 40), (5, 66, 105)]
)
def test_a_silence_ends_a_ping_and_its_timeout_after_the_last_answer(
    heard_s: float, silent_from_s: float, ends_s: float
) -> None:
    """P58."""
    assert silence_ends_s(heard_s, silent_from_s, PLAIN) == ends_s


def test_connections_live_and_die_by_the_options_of_the_real_ones() -> None:
    """P51, P58."""
    settings = LinkSettings()
    options = dict(real_network._CHANNEL_OPTIONS)
    assert settings.keepalive_interval_s * 1000 == options["grpc.keepalive_time_ms"]
    assert settings.keepalive_timeout_s * 1000 == options["grpc.keepalive_timeout_ms"]
    assert settings.connect_timeout_s * 1000 == options["grpc.min_reconnect_backoff_ms"]
    assert settings.reconnect_backoff_min_s * 1000 == options["grpc.initial_reconnect_backoff_ms"]
    assert settings.reconnect_backoff_max_s * 1000 == options["grpc.max_reconnect_backoff_ms"]
    assert settings.concurrent_calls_max == real_network._CONCURRENT_CALLS_MAX
