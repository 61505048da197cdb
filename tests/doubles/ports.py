"""Ports for servers of tests that must know theirs before they start."""

from __future__ import annotations

import random
import socket

#: Below those that the system gives to whoever calls out: between the choice and the server's start
#: no connection of another test takes one.
_PORTS = range(10_000, 20_000)
_ATTEMPTS_MAX = 100


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    for _ in range(_ATTEMPTS_MAX):
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port found from {_PORTS.start} to {_PORTS.stop - 1}")


def free_ports(count: int) -> list[int]:
    """So many of them, each another."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[free_port()] = None
    return list(found)
