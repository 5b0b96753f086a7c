"""Canal's packets: what clients ask, what the server answers, and the scrambled password."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import zlib
from dataclasses import dataclass
from typing import Final

from cdc.canal.fields import number, varint
from cdc.canal.messages import Ack, ClientAck, ClientAuth, Get, Handshake, MalformedError, Packet, Sub, parsed

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
_HEAD = number(2, 1) + number(3, MESSAGES)  # version and type
_UNIT_S = (1e-9, 1e-6, 1e-3, 1.0, 60.0, 3600.0, 86400.0)


def parse_packet(frame: bytes, most_bytes: int) -> Packet:
    """Parses a packet and unpacks its body, which has at most ``most_bytes``. Raises MalformedError."""
    packet = parsed(Packet, frame)
    if packet.compression in (ZLIB, GZIP):
        packet.body = _inflated(packet.body, packet.compression, most_bytes)
    elif packet.compression not in (PLAIN, NONE):
        raise MalformedError(f"the packet is compressed by method {packet.compression}, which is not supported")
    return packet


def _inflated(body: bytes, compression: int, most_bytes: int) -> bytes:
    stream = zlib.decompressobj(zlib.MAX_WBITS | (16 if compression == GZIP else 0))
    try:
        inflated = stream.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise MalformedError(f"the packet's body cannot be unpacked: {error}") from None
    if len(inflated) > most_bytes or not stream.eof:
        raise MalformedError("the packet's body is cut, or unpacks to more bytes than a packet may have")
    return inflated


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
    if packet.type == CLIENT_AUTHENTICATION:
        login = parsed(ClientAuth, packet.body)
        return Request(
            login.destination,
            login.client_id,
            login.filter,
            user=login.username,
            password=login.password,
            read_timeout_ms=login.net_read_timeout,
        )
    if packet.type in (SUBSCRIPTION, UNSUBSCRIPTION):
        sub = parsed(Sub, packet.body)
        return Request(sub.destination, sub.client_id, sub.filter)
    if packet.type == GET:
        get = parsed(Get, packet.body)
        timeout_s = _seconds(get.timeout if get.HasField("timeout") else -1, get.unit)
        return Request(get.destination, get.client_id, fetch_size=get.fetch_size, timeout_s=timeout_s)
    ack = parsed(ClientAck, packet.body)
    return Request(ack.destination, ack.client_id, batch=ack.batch_id)


def _seconds(timeout: int, unit: int) -> float:
    if timeout <= 0:
        return float(max(timeout, -1))
    if not 0 <= unit < len(_UNIT_S):
        raise MalformedError(f"the unit of the time-out is {unit}, and not one of 0 to 6")
    return timeout * _UNIT_S[unit]


# --- answers


def framed(kind: int, body: bytes, compression: int = PLAIN) -> bytes:
    """A packet with its length."""
    packet: bytes = Packet(version=1, type=kind, compression=compression, body=body).SerializeToString()
    return len(packet).to_bytes(4, "big") + packet


def handshake(seed: bytes) -> bytes:
    return framed(HANDSHAKE, Handshake(seeds=seed).SerializeToString())


def acknowledged() -> bytes:
    return refused(0, "")


def refused(code: int, message: str) -> bytes:
    return framed(ACK, Ack(error_code=code, error_message=message).SerializeToString())


def messages_head(batch: int, size: int) -> bytes:
    """The part of a ``MESSAGES`` packet that comes before ``size`` bytes of entries, with the frame's length."""
    ids = number(1, batch, always=True)
    body = varint(5 << 3 | 2) + varint(len(ids) + size) + ids
    packet = _HEAD + body
    return (len(packet) + size).to_bytes(4, "big") + packet


def compressed_messages(batch: int, entries: bytes, compression: int) -> bytes:
    """A ``MESSAGES`` packet whose body is compressed."""
    body = number(1, batch, always=True) + entries
    packed = gzip.compress(body, 1, mtime=0) if compression == GZIP else zlib.compress(body, 1)
    return framed(MESSAGES, packed, compression)


# --- the password


def scramble(password: str, seed: bytes) -> bytes:
    """The scrambled password, in hexadecimal, as clients send it."""
    once = hashlib.sha1(password.encode()).digest()
    mask = hashlib.sha1(seed + hashlib.sha1(once).digest()).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True)).hex().encode()


def is_password(digest: bytes, password: str, seed: bytes) -> bool:
    """Whether a client knows the password."""
    return hmac.compare_digest(digest.lower(), scramble(password, seed))
