"""The settings of both ends of a connection fit each other."""

from __future__ import annotations

from inspect import signature

from holdover.runtime import real_network
from holdover.runtime.real_network import TcpNetwork


def test_clients_ping_less_often_than_servers_allow() -> None:
    """P58: a server that thinks a client pings too often closes its connection."""
    client = dict(real_network._CHANNEL_OPTIONS)
    server = dict(real_network._SERVER_OPTIONS)
    allowed_ms = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_time_ms"] >= 2 * allowed_ms
    assert signature(TcpNetwork.channel).parameters["idle_pings"].default is True
    assert server["grpc.keepalive_permit_without_calls"] == 1


def test_both_ends_have_the_same_message_limits() -> None:
    """P53."""
    limits = ("grpc.max_receive_message_length", "grpc.max_send_message_length")
    client = dict(real_network._CHANNEL_OPTIONS)
    server = dict(real_network._SERVER_OPTIONS)
    assert len({ends[limit] for ends in (client, server) for limit in limits}) == 1
