"""The client, which follows the leader."""

from holdover.client.client import Client, JobDescription, raise_for_end, timeouts_of
from holdover.client.leader import ClientTimeouts, LeaderLookup, LeaderObserver
from holdover.client.watching import TERMINAL_STATES, is_terminal, state_name

__all__ = [
    "TERMINAL_STATES",
    "Client",
    "ClientTimeouts",
    "JobDescription",
    "LeaderLookup",
    "LeaderObserver",
    "is_terminal",
    "raise_for_end",
    "state_name",
    "timeouts_of",
]
