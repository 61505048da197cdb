"""Asks a server what it serves, and calls it, knowing nothing of its messages: by reflection.

    python -m examples.client.call_without_stubs --address 127.0.0.1:6123 [METHOD [FIELD=TEXT ...]]

Without METHOD, prints all services and methods; with one, such as `ListJobs`, calls it with a
message of these text fields, and prints the answer as JSON. Only calls with one request and one
answer. grpcurl does the same for a plain terminal.
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from examples.client import arguments

_SERVICE = "holdover.v1.JobManager"


def main() -> int:
    """The script."""
    parser = arguments.parser(__doc__)
    parser.add_argument("method", nargs="?")
    parser.add_argument("fields", nargs="*", metavar="FIELD=TEXT")
    given = parser.parse_args()
    with arguments.leader(given) as leader, leader.channel(given.address[0]) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        if given.method is None:
            for name in database.get_services():
                for method in pool.FindServiceByName(name).methods:
                    print(f"{name}/{method.name}")
            return 0
        fields = dict(text.split("=", 1) for text in given.fields)
        print(_call(channel, pool, given.method, fields))
    return 0


def _call(channel: grpc.Channel, pool: Any, name: str, fields: dict[str, str]) -> str:
    method = pool.FindServiceByName(_SERVICE).methods_by_name[name]
    request = ParseDict(fields, GetMessageClass(method.input_type)())
    call: Any = channel.unary_unary(
        f"/{_SERVICE}/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    return MessageToJson(call(request, timeout=10))


if __name__ == "__main__":
    sys.exit(main())
