"""What the frames of the standby protocol say: JSON where a human may look, fixed fields where bytes travel."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdc.binlog.entry import VERSION as INDEX_VERSION
from cdc.errors import CdcError, ConfigError, CorruptStreamError, IdentityError, PeerUnavailableError, VersionError
from cdc.replication.frames import Channel, Frame, Kind
from cdc.store.formats import layout

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
