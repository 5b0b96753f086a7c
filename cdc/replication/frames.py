"""Frames between a master and its standby, and the connection that carries them (``docs/formats/standby.md``).

A frame is a header of 16 bytes (magic, version, kind, length, CRC32 of the rest) and a payload. The header's layout is
the same in every version, so that either side can refuse the other's with a sentence.
"""

from __future__ import annotations

import enum
import select
import socket
import struct
import time
import zlib
from contextlib import suppress
from typing import NamedTuple

from cdc.errors import CorruptStreamError, PeerUnavailableError, VersionError

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
