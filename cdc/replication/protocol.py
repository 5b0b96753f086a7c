"""The standby protocol: frames, the connection that carries them, and what their payloads say."""

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

from cdc.binlog.entry import VERSION as INDEX_VERSION
from cdc.errors import CdcError, ConfigError, CorruptStreamError, IdentityError, PeerUnavailableError, VersionError
from cdc.store.formats import layout

MAGIC = b"TPSB"
VERSION = 1
HEADER = struct.Struct("<4sHHII")
MAX_PAYLOAD = 16 << 20
MAX_GREETING = 4 << 20
"""Of a payload before the other side has shown that it knows the secret."""
PIECE_BYTES = 1 << 20
"""So much of a segment travels in one frame."""
_CRC_OF_HEADER = struct.Struct("<4sHHI")


class Kind(enum.IntEnum):
    """What a frame is. Odd and even carry no meaning; numbers are never used anew."""

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


class Frame(NamedTuple):
    kind: Kind
    payload: bytes


def render(kind: Kind, *parts: bytes | memoryview, version: int = VERSION) -> bytes:
    """The header of a frame with this payload."""
    length = sum(len(part) for part in parts)
    crc = zlib.crc32(_CRC_OF_HEADER.pack(MAGIC, version, kind, length))
    for part in parts:
        crc = zlib.crc32(part, crc)
    return HEADER.pack(MAGIC, version, kind, length, crc)


class Frames:
    """Cuts a stream of bytes into frames; knows nothing of sockets."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._held = bytearray()
        self.max_payload = MAX_GREETING

    def feed(self, data: bytes) -> None:
        self._held += data

    def next(self) -> Frame | None:
        """The next whole frame, None where more bytes are needed. Raises CorruptStreamError, VersionError."""
        held = self._held
        if len(held) < HEADER.size:
            if held and not MAGIC.startswith(bytes(held[:4])):
                raise self._foreign()
            return None
        magic, version, kind, length, crc = HEADER.unpack_from(held)
        if magic != MAGIC:
            raise self._foreign()
        if version > VERSION and kind != Kind.REFUSE:
            raise VersionError(
                f"the other side speaks version {version} of the standby protocol; this Towpath knows {VERSION}",
                place=self._peer,
                remedy="Run the same Towpath on both machines.",
            )
        if length > self.max_payload:
            raise CorruptStreamError(
                f"a frame of {length} bytes; at most {self.max_payload} may come here", place=self._peer
            )
        end = HEADER.size + length
        if len(held) < end:
            return None
        payload = bytes(memoryview(held)[HEADER.size : end])
        if zlib.crc32(payload, zlib.crc32(_CRC_OF_HEADER.pack(magic, version, kind, length))) != crc:
            raise CorruptStreamError("a frame fails its checksum", place=self._peer)
        try:
            found = Kind(kind)
        except ValueError:
            raise CorruptStreamError(f"a frame of the unknown kind {kind}", place=self._peer) from None
        del held[:end]
        return Frame(found, payload)

    def _foreign(self) -> CorruptStreamError:
        return CorruptStreamError(
            "does not speak the standby protocol",
            place=self._peer,
            remedy="Compare standby.listen of the master with standby.master of the standby.",
        )


class Channel:
    """A connection. One thread may send while another one receives."""

    def __init__(self, connection: socket.socket, *, send_timeout_s: float) -> None:
        """Raises PeerUnavailableError where it is broken already."""
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
        self.frames = Frames(self.peer)
        self.received_at = time.monotonic()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        """Raises PeerUnavailableError where the other side is gone or takes nothing for the whole time-out."""
        head = render(kind, *parts)
        try:
            if sum(len(part) for part in parts) <= 65536:
                self.socket.sendall(b"".join((head, *parts)))
                return
            self.socket.sendall(head)
            for part in parts:
                self.socket.sendall(part)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, timeout_s: float) -> Frame | None:
        """The next frame; None where none is whole within the time. Raises PeerUnavailableError, CorruptStreamError,
        VersionError."""
        deadline = time.monotonic() + timeout_s
        while (frame := self.frames.next()) is None:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                if not self._poll.poll(left_s * 1000):
                    return None
                data = self.socket.recv(PIECE_BYTES)
            except (OSError, ValueError) as error:
                raise self._broken(error) from None
            if not data:
                raise PeerUnavailableError("the other side has closed the connection", place=self.peer)
            self.received_at = time.monotonic()
            self.frames.feed(data)
        return frame

    def close(self) -> None:
        """Wakes a thread that waits in it, too."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _broken(self, error: Exception) -> PeerUnavailableError:
        reason = getattr(error, "strerror", None) or str(error)
        return PeerUnavailableError(f"the connection broke: {reason}", place=self.peer)


NONCE_SIZE = 16
MAC_SIZE = 32
DATA = struct.Struct("<Q")
"""Offset in the segment; bytes follow."""
ENTRIES = struct.Struct("<Q")
"""Number of the first entry in the segment's index; entries follow."""
HEARTBEAT = struct.Struct("<QQ")
"""Seq of the newest visible entry, bytes that the standby has not confirmed."""
REPORT = struct.Struct("<QQ")
"""Seq of the newest visible entry at the standby, bytes of the segment that are on its disk; the name follows."""
FILE = struct.Struct("<H")
"""Length of the name; name and content follow. The same in a FILE_PART, whose content goes on in the next frame."""

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number, size or seq: nobody's arithmetic overflows by what the other side says."""


class Message(BaseModel):
    """Keys that are not known are passed over: a newer side may say more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Hello(Message):
    """What a standby has."""

    destination: str
    nonce: str
    towpath: str
    term: Count
    state: Literal["none", "master", "standby"]
    mastership: str
    segment: str
    """The newest; empty where there is none."""
    size_bytes: Count
    last_seq: Count
    tail_crc: Count
    """CRC32 of the last index entry; 0 where there is none."""
    files: dict[str, Count]
    """CRC32 of each small file, by its path in the store."""


class Formats(Message):
    """Versions of the formats that the master writes: what the standby's files will have."""

    store: Count
    index: Count


class Welcome(Message):
    term: Count
    mastership: str
    towpath: str
    formats: Formats
    heartbeat_s: float
    segments: list[str]
    """All up to the newest with a visible entry, oldest first."""
    removed_seq: Count
    """Retention has removed every transaction up to here; 0: none."""
    given_up: bool
    """The master's store has a ``damaged.json``."""


class Refuse(Message):
    error: str
    remedy: str | None = None
    kind: Literal["identity", "version", "config", "retry"] = "identity"


class Compare(Message):
    """Asks for a digest of the master's entries ``start`` to ``stop`` (exclusive) of a segment."""

    segment: str
    start: Count
    stop: Count
    of: Literal["index", "log"]
    """``index``: entries as they stand in the file. ``log``: seq, offset, length and checksum of those with bytes,
    which are the only ones counted."""


class Compared(Message):
    count: Count
    """How many entries of this sort there are."""
    head_crc: Count
    """CRC32 of the segment's bytes before its first transaction."""
    digest: str
    """Empty where there are fewer than ``stop`` entries."""
    entries: Count
    """So many entries of all sorts up to the last one compared; 0 where there are fewer than ``stop``."""


class Fetch(Message):
    """Asks for the master's entries themselves; ENTRIES frames answer."""

    segment: str
    start: Count
    stop: Count


class Have(Message):
    """From where a segment is to be sent."""

    segment: str
    size_bytes: Count
    entries: Count


class Follow(Message):
    have: list[Have]
    """In order; what comes behind the last one is sent whole. Empty: everything is."""


M = TypeVar("M", bound=Message)


def parse(model: type[M], data: bytes, peer: str) -> M:
    """Raises CorruptStreamError."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or model.__name__
        raise CorruptStreamError(
            f"a {model.__name__} that makes no sense: {where}: {first['msg']}", place=peer
        ) from None


def expect(channel: Channel, kind: Kind, timeout_s: float) -> bytes:
    """The payload of the next frame, which has to be of this kind. Raises what the other side refuses with,
    PeerUnavailableError after the time, CorruptStreamError."""
    frame = channel.receive(timeout_s)
    if frame is None:
        raise PeerUnavailableError(f"no answer within {timeout_s:g} s", place=channel.peer)
    require(frame, channel.peer)
    if frame.kind is not kind:
        raise CorruptStreamError(f"a {frame.kind.name} came where a {kind.name} was due", place=channel.peer)
    return frame.payload


def require(frame: Frame, peer: str) -> None:
    """Raises what a REFUSE says."""
    if frame.kind is not Kind.REFUSE:
        return
    said = parse(Refuse, frame.payload, peer)
    error: type[CdcError] = {
        "identity": IdentityError,
        "version": VersionError,
        "config": ConfigError,
        "retry": PeerUnavailableError,
    }[said.kind]
    raise error(f"refused by the other side: {said.error}", place=peer, remedy=said.remedy)


def refusal(error: CdcError) -> bytes:
    """The payload of a REFUSE."""
    kind: Literal["identity", "version", "config", "retry"] = "retry"
    for each, name in ((VersionError, "version"), (ConfigError, "config"), (IdentityError, "identity")):
        if isinstance(error, each):
            kind = name  # type: ignore[assignment]
    return Refuse(error=error.message, remedy=error.remedy, kind=kind).model_dump_json().encode()


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_SIZE)


def require_nonce(nonce: bytes, peer: str) -> bytes:
    """Raises CorruptStreamError."""
    if len(nonce) != NONCE_SIZE:
        raise CorruptStreamError(f"a nonce of {len(nonce)} bytes; it has {NONCE_SIZE}", place=peer)
    return nonce


def require_known(formats: Formats, peer: str) -> None:
    """The standby asks this before it writes anything. Raises VersionError."""
    known = Formats(store=layout.VERSION, index=INDEX_VERSION)
    for name in ("store", "index"):
        if getattr(formats, name) > getattr(known, name):
            raise VersionError(
                f"the master writes version {getattr(formats, name)} of the {name} format; this Towpath knows"
                f" {getattr(known, name)}",
                place=peer,
                remedy="Run the same Towpath on both machines; bring the newer one to the standby first.",
            )


def sealed(message: Message, purpose: bytes, nonce: bytes, secret: bytes | None) -> bytes:
    """A message behind its HMAC-SHA256 over purpose, the other side's nonce and the message; zeros without a secret."""
    body = message.model_dump_json().encode()
    return _mac(body, purpose, nonce, secret) + body


def unsealed(data: bytes, purpose: bytes, nonce: bytes, secret: bytes | None, peer: str) -> bytes:
    """The message. Raises ConfigError where the other side does not know the secret."""
    mac, body = data[:MAC_SIZE], data[MAC_SIZE:]
    if hmac.compare_digest(mac, _mac(body, purpose, nonce, secret)):
        return body
    if secret is None:
        raise ConfigError(
            "the other side has a secret for the standby connection, and this one has none",
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
