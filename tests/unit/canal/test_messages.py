"""The classes that protoc has made of ``canal.proto``."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.canal import canal_pb2, packets
from cdc.canal.messages import MalformedError, parsed
from tests.support.canal_proto import message


def fields_of(descriptor: Any) -> list[tuple[Any, ...]]:
    """Name, number, type, kind, and presence of each field."""
    return [
        (
            field.name,
            field.number,
            field.type,
            field.message_type and field.message_type.name,
            field.enum_type and dict(field.enum_type.values_by_name).keys(),
            field.is_repeated,
            field.containing_oneof and field.containing_oneof.name,
        )
        for field in descriptor.fields
    ]


def test_they_are_those_of_the_file() -> None:
    """After a change of ``canal.proto`` they have to be made anew: ``cdc/canal/messages.py`` says how."""
    text = message("Packet").DESCRIPTOR.file
    assert set(canal_pb2.DESCRIPTOR.message_types_by_name) == set(text.message_types_by_name)
    for name, made in canal_pb2.DESCRIPTOR.message_types_by_name.items():
        assert fields_of(made) == fields_of(text.message_types_by_name[name]), name
    for name, made in canal_pb2.DESCRIPTOR.enum_types_by_name.items():
        members = text.enum_types_by_name[name].values_by_name
        assert {key: value.number for key, value in made.values_by_name.items()} == {
            key: value.number for key, value in members.items()
        }


def test_the_constants_of_packets_are_those_of_the_file() -> None:
    types = canal_pb2.PacketType
    assert (packets.HANDSHAKE, packets.CLIENT_ROLLBACK) == (types.HANDSHAKE, types.CLIENTROLLBACK)
    assert (packets.GET, packets.MESSAGES, packets.CLIENT_ACK) == (types.GET, types.MESSAGES, types.CLIENTACK)


def test_an_ack_without_an_error_says_so() -> None:
    """Canal's server writes the code even if it is zero."""
    assert packets.acknowledged().hex() == "00000008" + "1001" + "1803" + "2a020800"


@pytest.mark.parametrize("data", [b"\xff" * 40, b"\x0a", b"\x0a\x05ab", b"\x0a\x01\xff"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError, match="Error parsing message"):
        parsed(canal_pb2.Sub, data)
