"""Protobuf messages as plain values for JSON.

Unlike protobuf's own JSON, numbers stay numbers and states read as users know them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """All fields by name, in the contract's order; what is not set in a choice is left out."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            values[field.name] = [_plain_value(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            values[field.name] = _plain_value(field, value)
        elif field.containing_oneof is None:
            values[field.name] = None
    return values


def enum_name(enum: EnumDescriptor, number: int) -> str:
    """`RUNNING` for JOB_STATE_RUNNING; the number as text for a value of a later version."""
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)
    unspecified: str = enum.values_by_number[0].name
    return str(value.name).removeprefix(unspecified.removesuffix("UNSPECIFIED"))


def _plain_value(field: Any, value: Any) -> Any:  # the descriptor has no one type in the stubs
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        return enum_name(field.enum_type, value)
    if isinstance(value, bytes):
        return value.hex()
    return value
