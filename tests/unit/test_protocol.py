"""What the messages between services have in common."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, MethodDescriptor

from holdover.v1 import taskmanager_pb2

METHODS = [
    method
    for service in taskmanager_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def carries_the_epoch(message: Descriptor) -> bool:
    """By itself, or in one of the parts that a stream is made of."""
    parts = [field.message_type for field in message.fields if field.containing_oneof]
    return any("leader_epoch" in part.fields_by_name for part in (message, *filter(None, parts)))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method.full_name))
def test_every_call_between_jobmanager_and_taskmanager_carries_the_epoch(
    method: MethodDescriptor,
) -> None:
    """Behaviour 2: there and back."""
    assert carries_the_epoch(method.input_type)
    assert carries_the_epoch(method.output_type)
