"""Messages as plain values for JSON lines. Pure.

The names of the protos stay, those of enum values too. Unlike protobuf's own JSON, 64-bit numbers are numbers and
durations are seconds, so that a script can compute with them.
"""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """All fields by name: unset ones with their zero, messages and optional fields only where they are set."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            items = field.message_type.fields_by_name["value"]
            found[field.name] = {str(key): _one(items, value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [_one(field, item) for item in value]
        else:
            found[field.name] = _one(field, value)
    return found


def _one(field: Any, value: Any) -> Any:
    if isinstance(value, Duration):
        return value.ToNanoseconds() / 1e9
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value
