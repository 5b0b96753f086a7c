"""Canal's packets: what clients ask, what the server answers, and the scrambled password."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import zlib
from dataclasses import dataclass
from typing import Final

from cdc.canal.fields import MalformedError, data, fields, number, signed, varint

HANDSHAKE, CLIENT_AUTHENTICATION, ACK, SUBSCRIPTION, UNSUBSCRIPTION, GET, MESSAGES, CLIENT_ACK = range(1, 9)
HEARTBEAT, CLIENT_ROLLBACK = 11, 12
"""Types of packets."""
PLAIN, NONE, ZLIB, GZIP = 0, 1, 2, 3
"""Compressions of a body; 0, no field, is none as well."""

BAD_REQUEST, MISSING_FIELD, MISSING_BATCH = 400, 401, 402
"""Canal's error codes."""
NO_BATCH: Final = -1
"""The id of an answer without entries."""
SEED_BYTES = 8
_VERSION = number(2, 1)
_UNIT_S = (1e-9, 1e-6, 1e-3, 1.0, 60.0, 3600.0, 86400.0)


@dataclass(frozen=True)
class Packet:
    """A packet from a client."""

    type: int
    body: bytes
    compression: int = PLAIN


def parse_packet(frame: bytes, most_bytes: int) -> Packet:
    """Parses a packet and unpacks its body, which has at most ``most_bytes``. Raises MalformedError."""
    found = dict(fields(frame))
    kind, compression, body = found.get(3, 0), found.get(4, 0), found.get(5, b"")
    if not isinstance(kind, int) or not isinstance(compression, int) or not isinstance(body, bytes):
        raise MalformedError("a field of the packet has another type")
    if compression in (ZLIB, GZIP):
        body = _inflated(body, compression, most_bytes)
    elif compression not in (PLAIN, NONE):
        raise MalformedError(f"the packet is compressed by method {compression}, which is not supported")
    return Packet(kind, body, compression)


def _inflated(body: bytes, compression: int, most_bytes: int) -> bytes:
    stream = zlib.decompressobj(zlib.MAX_WBITS | (16 if compression == GZIP else 0))
    try:
        found = stream.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise MalformedError(f"the packet's body cannot be unpacked: {error}") from None
    if len(found) > most_bytes or not stream.eof:
        raise MalformedError("the packet's body is cut, or unpacks to more bytes than a packet may have")
    return found


@dataclass(frozen=True)
class Request:
    """The fields of a request; those that its packet does not have are empty."""

    destination: str = ""
    client_id: str = ""
    filter: str = ""
    user: str = ""
    password: bytes = b""
    read_timeout_ms: int = 0
    fetch_size: int = 0
    timeout_s: float = -1.0
    """Negative: at once; 0: until the batch is full."""
    batch: int = 0


def parse_request(packet: Packet) -> Request:
    """Parses the body of a packet. Raises MalformedError."""
    found = dict(fields(packet.body))
    if packet.type == CLIENT_AUTHENTICATION:
        return Request(
            user=_text(found, 1),
            password=_bytes(found, 2),
            read_timeout_ms=_int(found, 3),
            destination=_text(found, 5),
            client_id=_text(found, 6),
            filter=_text(found, 7),
        )
    named = {"destination": _text(found, 1), "client_id": _text(found, 2)}
    if packet.type in (SUBSCRIPTION, UNSUBSCRIPTION):
        return Request(**named, filter=_text(found, 7))  # type: ignore[arg-type]
    if packet.type == GET:
        return Request(
            **named,  # type: ignore[arg-type]
            fetch_size=_int(found, 3),
            timeout_s=_seconds(_int(found, 4) if 4 in found else -1, _int(found, 5)),
        )
    return Request(**named, batch=_int(found, 3))  # type: ignore[arg-type]


def _seconds(timeout: int, unit: int) -> float:
    if timeout <= 0:
        return float(max(timeout, -1))
    if not 0 <= unit < len(_UNIT_S):
        raise MalformedError(f"the unit of the time-out is {unit}, and not one of 0 to 6")
    return timeout * _UNIT_S[unit]


def _int(found: dict[int, int | bytes], field: int) -> int:
    value = found.get(field, 0)
    if not isinstance(value, int):
        raise MalformedError(f"field {field} is not a number")
    return signed(value)


def _bytes(found: dict[int, int | bytes], field: int) -> bytes:
    value = found.get(field, b"")
    if not isinstance(value, bytes):
        raise MalformedError(f"field {field} is not a text")
    return value


def _text(found: dict[int, int | bytes], field: int) -> str:
    try:
        return _bytes(found, field).decode()
    except UnicodeDecodeError:
        raise MalformedError(f"field {field} is not UTF-8") from None


# --- answers


def framed(kind: int, body: bytes) -> bytes:
    """A packet with its length."""
    packet = _VERSION + number(3, kind) + data(5, body)
    return len(packet).to_bytes(4, "big") + packet


def handshake(seed: bytes) -> bytes:
    return framed(HANDSHAKE, data(2, seed))


def acknowledged() -> bytes:
    return framed(ACK, number(1, 0, always=True))


def refused(code: int, message: str) -> bytes:
    return framed(ACK, number(1, code, always=True) + data(2, message))


def messages_head(batch: int, size: int) -> bytes:
    """The part of a ``MESSAGES`` packet that comes before ``size`` bytes of entries, with the frame's length."""
    ids = number(1, batch, always=True)
    body = varint(5 << 3 | 2) + varint(len(ids) + size) + ids
    packet = _VERSION + number(3, MESSAGES) + body
    return (len(packet) + size).to_bytes(4, "big") + packet


def compressed_messages(batch: int, entries: bytes, compression: int) -> bytes:
    """A ``MESSAGES`` packet whose body is compressed."""
    body = number(1, batch, always=True) + entries
    packed = gzip.compress(body, 1, mtime=0) if compression == GZIP else zlib.compress(body, 1)
    packet = _VERSION + number(3, MESSAGES) + number(4, compression) + data(5, packed)
    return len(packet).to_bytes(4, "big") + packet


# --- the password


def scramble(password: str, seed: bytes) -> bytes:
    """The scrambled password, in hexadecimal, as clients send it."""
    once = hashlib.sha1(password.encode()).digest()
    mask = hashlib.sha1(seed + hashlib.sha1(once).digest()).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True)).hex().encode()


def is_password(given: bytes, password: str, seed: bytes) -> bool:
    """Whether a client knows the password."""
    return hmac.compare_digest(given.lower(), scramble(password, seed))
