"""Canal's messages: the classes that protoc has made of ``canal.proto``, and their parsing.

``canal_pb2.py`` and ``canal_pb2.pyi`` are generated. After a change of ``canal.proto`` make them anew with grpcio-tools
1.76.0, whose classes every protobuf from 6.31 on reads::

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. cdc/canal/canal.proto
"""

from __future__ import annotations

from typing import TypeVar

from cdc.base.errors import ConfigError

try:
    from google.protobuf.message import DecodeError, Message

    from cdc.canal.canal_pb2 import (
        Ack,
        ClientAck,
        ClientAuth,
        Column,
        Entry,
        EventType,
        Get,
        Handshake,
        Header,
        Messages,
        Packet,
        RowChange,
        Sub,
        TransactionEnd,
    )
except ModuleNotFoundError:
    raise ConfigError(
        "the package protobuf is not installed",
        place="Canal's protocol",
        remedy="Install towpath[server], or towpath[kafka] for cdc push.",
    ) from None

__all__ = [
    "Ack",
    "ClientAck",
    "ClientAuth",
    "Column",
    "Entry",
    "EventType",
    "Get",
    "Handshake",
    "Header",
    "MalformedError",
    "Message",
    "Messages",
    "Packet",
    "RowChange",
    "Sub",
    "TransactionEnd",
    "parsed",
]

_M = TypeVar("_M", bound=Message)


class MalformedError(Exception):
    """Bytes that are no message."""


def parsed(kind: type[_M], data: bytes) -> _M:
    """Parses a message. Fields that it does not have are ignored. Raises MalformedError."""
    message: _M = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MalformedError(str(error)) from None
    return message
