"""Canal's messages by the protobuf library, from ``cdc/canal/canal.proto``: the reference for what Towpath encodes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import cdc.canal

_FILE = Path(cdc.canal.__file__).with_name("canal.proto")
_KINDS = {"int32": 5, "int64": 3, "bool": 8, "string": 9, "bytes": 12}


@cache
def message(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"towpath.canal.{name}"))


def parsed(name: str, raw: bytes) -> Any:
    """Parses a message, of which every field must be known."""
    parsed_message = message(name)()
    parsed_message.ParseFromString(raw)
    copy = message(name)()
    copy.CopyFrom(parsed_message)
    copy.DiscardUnknownFields()
    assert copy.ByteSize() == parsed_message.ByteSize(), f"{name} has unknown fields"
    return parsed_message


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    """Reads the part of the language that the file uses."""
    text = re.sub(r"//[^\n]*", "", _FILE.read_text())
    file = descriptor_pb2.FileDescriptorProto(name="canal.proto", package="towpath.canal", syntax="proto3")
    enums = set(re.findall(r"enum (\w+)", text))
    for name, body in re.findall(r"enum (\w+) \{(.*?)\}", text, re.DOTALL):
        enum = file.enum_type.add(name=name)
        for member, number in re.findall(r"(\w+) = (\d+);", body):
            enum.value.add(name=member, number=int(number))
    for name, body in re.findall(r"message (\w+) \{(.*?)\n\}", text, re.DOTALL):
        message_type = file.message_type.add(name=name)
        for oneof, repeated, kind, field, number in re.findall(
            r"(?:oneof (\w+) \{\s*)?(repeated )?(\w+) (\w+) = (\d+);", body
        ):
            field_type = message_type.field.add(name=field, number=int(number), label=3 if repeated else 1)
            if kind in _KINDS:
                field_type.type = _KINDS[kind]
            else:
                field_type.type = 14 if kind in enums else 11
                field_type.type_name = f".towpath.canal.{kind}"
            if oneof:
                message_type.oneof_decl.add(name=oneof)
                field_type.oneof_index = len(message_type.oneof_decl) - 1
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
