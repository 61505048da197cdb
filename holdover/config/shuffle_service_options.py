"""Options of shuffle services."""

from __future__ import annotations

import re
from typing import Any, Final

from holdover.config.values import Integer, Option, Size, Text
from holdover.ids import RESOURCE_ID

_HOST = Text(re.compile(r"[A-Za-z0-9:._-]{1,253}"), "a host name or IP address")
_PORT_OR_ANY = Integer(0, 65_535)

SHUFFLE_SERVICE_HOST = Option(
    "shuffle.service.host",
    _HOST,
    "127.0.0.1",
    "Host that a shuffle service gives to others as its own.",
)
SHUFFLE_SERVICE_BIND_HOST = Option(
    "shuffle.service.bind-host",
    _HOST,
    "127.0.0.1",
    "Address that a shuffle service listens on.",
)
SHUFFLE_SERVICE_RPC_PORT = Option(
    "shuffle.service.rpc.port",
    _PORT_OR_ANY,
    "0",
    "Port of a shuffle service's gRPC service; 0 takes any free port.",
)
SHUFFLE_SERVICE_DATA_PORT = Option(
    "shuffle.service.data.port",
    _PORT_OR_ANY,
    "0",
    "Port of a shuffle service's Arrow Flight server; 0 takes any free port.",
)
SHUFFLE_SERVICE_RESOURCE_ID = Option(
    "shuffle.service.resource-id",
    Text(
        re.compile(f"({RESOURCE_ID.pattern})?"),
        "empty, or at most 64 letters, digits, '.', '_' and '-' that begin with a letter or digit",
    ),
    "",
    "Name of the shuffle service, under which it finds its partitions after its own restart; empty"
    " makes a new name at every start.",
)
SHUFFLE_SERVICE_MAX_BYTES = Option(
    "shuffle.service.max-bytes",
    Size(0),
    "0 b",
    "Bytes of partitions that a shuffle service holds at most; tasks whose output does not fit run"
    " again with another one. 0 is no bound.",
)
SHUFFLE_SERVICE_DISK_RESERVE = Option(
    "shuffle.service.disk-reserve",
    Size(0),
    "1 gb",
    "Bytes of its disk that a shuffle service leaves free.",
)

SHUFFLE_SERVICE_OPTIONS: Final[tuple[Option[Any], ...]] = (
    SHUFFLE_SERVICE_HOST,
    SHUFFLE_SERVICE_BIND_HOST,
    SHUFFLE_SERVICE_RPC_PORT,
    SHUFFLE_SERVICE_DATA_PORT,
    SHUFFLE_SERVICE_RESOURCE_ID,
    SHUFFLE_SERVICE_MAX_BYTES,
    SHUFFLE_SERVICE_DISK_RESERVE,
)
