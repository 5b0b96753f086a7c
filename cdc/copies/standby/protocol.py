"""The standby protocol: frames, the channel that carries them, and the messages in them (``docs/formats/standby.md``).

A frame is a header of 16 bytes (magic, version, kind, length, CRC32 of the rest) and a payload. The layout of the
header is the same in every version of the protocol, so that either side can refuse the other's version with a message.
Payloads are JSON where people may read them, and fixed fields where bytes of the store travel.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import select
import socket
import struct
import time
import zlib
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdc.base.errors import CdcError, ConfigError, CorruptStreamError, IdentityError, PeerUnavailableError, VersionError
from cdc.base.validation import first_fault
from cdc.binlog.entry import VERSION as INDEX_VERSION
from cdc.store.formats import layout

MAGIC = b"TPSB"
VERSION = 1
HEADER = struct.Struct("<4sHHII")
MAX_PAYLOAD = 16 << 20
MAX_GREETING = 4 << 20
"""The largest payload before the other side has proved that it knows the secret."""
CHUNK_BYTES = 1 << 20
"""The bytes of a segment that travel in one frame."""
_CRC_OF_HEADER = struct.Struct("<4sHHI")


class FrameKind(enum.IntEnum):
    """The kind of a frame. Numbers are never reused."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSE = 4
    COMPARE = 5
    COMPARED = 6
    FOLLOW = 7
    SEGMENT = 8
    DATA = 9
    ENTRIES = 10
    FILE = 11
    FORGET = 12
    HEARTBEAT = 13
    REPORT = 14
    FETCH = 15
    FILE_PART = 16


class StandbyFrame(NamedTuple):
    """A received frame."""

    kind: FrameKind
    payload: bytes


def frame_header(kind: FrameKind, *parts: bytes | memoryview, version: int = VERSION) -> bytes:
    """Returns the header of a frame whose payload is ``parts``."""
    length = sum(len(part) for part in parts)
    crc = zlib.crc32(_CRC_OF_HEADER.pack(MAGIC, version, kind, length))
    for part in parts:
        crc = zlib.crc32(part, crc)
    return HEADER.pack(MAGIC, version, kind, length, crc)


class FrameParser:
    """Splits a stream of bytes into frames; knows nothing about sockets."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._held = bytearray()
        self.max_payload = MAX_GREETING

    def feed(self, data: bytes) -> None:
        """Appends received bytes."""
        self._held += data

    def next(self) -> StandbyFrame | None:
        """Returns the next whole frame; None if more bytes are needed. Raises CorruptStreamError, VersionError."""
        held = self._held
        if len(held) < HEADER.size:
            if held and not MAGIC.startswith(bytes(held[:4])):
                raise self._foreign()
            return None
        magic, version, kind, length, crc = HEADER.unpack_from(held)
        if magic != MAGIC:
            raise self._foreign()
        if version > VERSION and kind != FrameKind.REFUSE:
            raise VersionError(
                f"the other side speaks version {version} of the standby protocol; this Towpath knows {VERSION}",
                place=self._peer,
                remedy="Run the same Towpath on both machines.",
            )
        if length > self.max_payload:
            raise CorruptStreamError(
                f"received a frame of {length} bytes; the limit here is {self.max_payload}", place=self._peer
            )
        end = HEADER.size + length
        if len(held) < end:
            return None
        payload = bytes(memoryview(held)[HEADER.size : end])
        if zlib.crc32(payload, zlib.crc32(_CRC_OF_HEADER.pack(magic, version, kind, length))) != crc:
            raise CorruptStreamError("received a frame with a wrong checksum", place=self._peer)
        try:
            frame_kind = FrameKind(kind)
        except ValueError:
            raise CorruptStreamError(f"received a frame of the unknown kind {kind}", place=self._peer) from None
        del held[:end]
        return StandbyFrame(frame_kind, payload)

    def _foreign(self) -> CorruptStreamError:
        return CorruptStreamError(
            "does not speak the standby protocol",
            place=self._peer,
            remedy="Compare standby.listen of the master with standby.master of the standby.",
        )


class Channel:
    """A connection that carries frames. One thread may send while another one receives."""

    def __init__(self, connection: socket.socket, *, send_timeout_s: float) -> None:
        """Takes over a connected socket. Raises PeerUnavailableError if the connection is broken already."""
        self.socket = connection
        try:
            host, port = connection.getpeername()[:2]
        except OSError:
            host, port = "?", 0
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            connection.settimeout(send_timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            raise self._broken(error) from None
        self.frames = FrameParser(self.peer)
        self.received_at = time.monotonic()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, kind: FrameKind, *parts: bytes | memoryview) -> None:
        """Sends a frame. Raises PeerUnavailableError if the other side is gone, or accepts nothing in time."""
        head = frame_header(kind, *parts)
        try:
            if sum(len(part) for part in parts) <= 65536:
                self.socket.sendall(b"".join((head, *parts)))
                return
            self.socket.sendall(head)
            for part in parts:
                self.socket.sendall(part)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, timeout_s: float) -> StandbyFrame | None:
        """Returns the next frame; None if no whole frame arrives in time.

        Raises PeerUnavailableError, CorruptStreamError, VersionError.
        """
        deadline = time.monotonic() + timeout_s
        while (frame := self.frames.next()) is None:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                if not self._poll.poll(left_s * 1000):
                    return None
                data = self.socket.recv(CHUNK_BYTES)
            except (OSError, ValueError) as error:
                raise self._broken(error) from None
            if not data:
                raise PeerUnavailableError("the other side has closed the connection", place=self.peer)
            self.received_at = time.monotonic()
            self.frames.feed(data)
        return frame

    def close(self) -> None:
        """Closes the connection, and wakes a thread that waits in it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _broken(self, error: Exception) -> PeerUnavailableError:
        reason = getattr(error, "strerror", None) or str(error)
        return PeerUnavailableError(f"the connection broke: {reason}", place=self.peer)


NONCE_SIZE = 16
MAC_SIZE = 32
DATA = struct.Struct("<Q")
"""The payload of DATA: offset in the segment; the bytes follow."""
ENTRIES = struct.Struct("<Q")
"""The payload of ENTRIES: number of the first entry in the segment's index; the entries follow."""
HEARTBEAT = struct.Struct("<QQ")
"""The payload of HEARTBEAT: seq of the newest visible entry, bytes that the standby has not confirmed."""
REPORT = struct.Struct("<QQ")
"""The payload of REPORT: seq of the newest visible entry at the standby, bytes of its current segment that are on its
disk; the segment's name follows."""
FILE = struct.Struct("<H")
"""The payload of FILE and FILE_PART: length of the name; name and content follow. The content of a FILE_PART continues
in the next frame."""

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number, size or seq that cannot overflow arithmetic here."""


class StandbyMessage(BaseModel):
    """A JSON payload. Unknown keys are ignored, because a newer side may send more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Hello(StandbyMessage):
    """HELLO: what the standby's store holds."""

    destination: str
    nonce: str
    towpath: str
    term: Count
    state: Literal["none", "master", "standby"]
    mastership: str
    segment: str
    """The newest segment; empty if there is none."""
    size_bytes: Count
    last_seq: Count
    tail_crc: Count
    """CRC32 of the last index entry; 0 if there is none."""
    files: dict[str, Count]
    """CRC32 of each small file, by its path in the store."""


class Formats(StandbyMessage):
    """Versions of the file formats that the master writes, and the standby copies."""

    store: Count
    index: Count


class Welcome(StandbyMessage):
    """WELCOME: what the master's store holds."""

    term: Count
    mastership: str
    towpath: str
    formats: Formats
    heartbeat_s: float
    segments: list[str]
    """All segments up to the newest one with a visible entry, oldest first."""
    removed_seq: Count
    """Retention has removed every transaction up to this seq; 0: none."""
    given_up: bool
    """Whether the master's store has a ``damaged.json``: data loss that an operator has accepted."""


class Refuse(StandbyMessage):
    """REFUSE: why the other side ends the connection."""

    error: str
    remedy: str | None = None
    kind: Literal["identity", "version", "config", "retry"] = "identity"


class Compare(StandbyMessage):
    """COMPARE: asks for a digest of the master's entries ``start`` to ``stop`` (exclusive) of a segment."""

    segment: str
    start: Count
    stop: Count
    of: Literal["index", "log"]
    """``index``: all entries, as they are in the file. ``log``: only entries with bytes, and of these seq, offset,
    length and checksum."""


class Compared(StandbyMessage):
    """COMPARED: the answer to COMPARE."""

    count: Count
    """The number of entries of this kind in the segment."""
    head_crc: Count
    """CRC32 of the segment's bytes before its first transaction."""
    digest: str
    """Empty if there are fewer than ``stop`` entries."""
    entries: Count
    """The number of entries of all kinds up to the last one compared; 0 if there are fewer than ``stop``."""


class Fetch(StandbyMessage):
    """FETCH: asks for the master's entries themselves; ENTRIES frames answer it."""

    segment: str
    start: Count
    stop: Count


class Have(StandbyMessage):
    """The part of a segment that the standby has: the master continues from there."""

    segment: str
    size_bytes: Count
    entries: Count


class Follow(StandbyMessage):
    """FOLLOW: starts the stream."""

    have: list[Have]
    """In order. Segments behind the last one are sent whole; if the list is empty, all of them are."""


M = TypeVar("M", bound=StandbyMessage)


def parse_message(model: type[M], data: bytes, peer: str) -> M:
    """Parses a JSON payload. Raises CorruptStreamError."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        fault = first_fault(error, whole="the whole")
        raise CorruptStreamError(f"received an invalid {model.__name__}: {fault}", place=peer) from None


def expect(channel: Channel, kind: FrameKind, timeout_s: float) -> bytes:
    """Returns the payload of the next frame, which must be of this kind.

    Raises PeerUnavailableError after the time-out, CorruptStreamError for another kind, and the error of a REFUSE.
    """
    frame = channel.receive(timeout_s)
    if frame is None:
        raise PeerUnavailableError(f"no answer within {timeout_s:g} s", place=channel.peer)
    raise_refusal(frame, channel.peer)
    if frame.kind is not kind:
        raise CorruptStreamError(f"received a {frame.kind.name} frame instead of {kind.name}", place=channel.peer)
    return frame.payload


def raise_refusal(frame: StandbyFrame, peer: str) -> None:
    """Raises the error that a REFUSE carries; does nothing for other frames."""
    if frame.kind is not FrameKind.REFUSE:
        return
    message = parse_message(Refuse, frame.payload, peer)
    error: type[CdcError] = {
        "identity": IdentityError,
        "version": VersionError,
        "config": ConfigError,
        "retry": PeerUnavailableError,
    }[message.kind]
    raise error(f"refused by the other side: {message.error}", place=peer, remedy=message.remedy)


def refusal(error: CdcError) -> bytes:
    """Returns the payload of a REFUSE for this error."""
    kind: Literal["identity", "version", "config", "retry"] = "retry"
    for error_type, name in ((VersionError, "version"), (ConfigError, "config"), (IdentityError, "identity")):
        if isinstance(error, error_type):
            kind = name  # type: ignore[assignment]
    return Refuse(error=error.message, remedy=error.remedy, kind=kind).model_dump_json().encode()


def new_nonce() -> bytes:
    """Returns random bytes for one greeting."""
    return secrets.token_bytes(NONCE_SIZE)


def require_nonce(nonce: bytes, peer: str) -> bytes:
    """Returns the nonce. Raises CorruptStreamError if it has the wrong length."""
    if len(nonce) != NONCE_SIZE:
        raise CorruptStreamError(f"received a nonce of {len(nonce)} bytes instead of {NONCE_SIZE}", place=peer)
    return nonce


def require_known_formats(formats: Formats, peer: str) -> None:
    """Checks that this Towpath can read the master's files; call it before anything is written. Raises VersionError."""
    own = Formats(store=layout.VERSION, index=INDEX_VERSION)
    for name in ("store", "index"):
        if getattr(formats, name) > getattr(own, name):
            raise VersionError(
                f"the master writes version {getattr(formats, name)} of the {name} format; this Towpath knows"
                f" {getattr(own, name)}",
                place=peer,
                remedy="Run the same Towpath on both machines; update the standby first.",
            )


def sign_message(message: StandbyMessage, purpose: bytes, nonce: bytes, secret: bytes | None) -> bytes:
    """Returns the message behind its HMAC-SHA256 over purpose, the other side's nonce and the message.

    Without a secret, zeros take the place of the HMAC.
    """
    body = message.model_dump_json().encode()
    return _mac(body, purpose, nonce, secret) + body


def verify_message(data: bytes, purpose: bytes, nonce: bytes, secret: bytes | None, peer: str) -> bytes:
    """Returns the message of :func:`sign_message`. Raises ConfigError if the other side does not know the secret."""
    mac, body = data[:MAC_SIZE], data[MAC_SIZE:]
    if hmac.compare_digest(mac, _mac(body, purpose, nonce, secret)):
        return body
    if secret is None:
        raise ConfigError(
            "the other side has a secret for the standby connection, but this side has none",
            place=peer,
            remedy="Give both the same standby.secret_env or standby.secret_file, or neither.",
        )
    raise ConfigError(
        "the two sides do not have the same secret for the standby connection",
        place=peer,
        remedy="Give both the same standby.secret_env or standby.secret_file.",
    )


def _mac(body: bytes, purpose: bytes, nonce: bytes, secret: bytes | None) -> bytes:
    if secret is None:
        return bytes(MAC_SIZE)
    return hmac.new(secret, purpose + b"\0" + nonce + body, hashlib.sha256).digest()
