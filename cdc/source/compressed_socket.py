"""The compressed client/server protocol of MySQL and MariaDB, below the packets of a connection.

A compressed packet has a header of 7 bytes: the length of what follows (3 bytes), a number that begins at 0 with each
command, and the length before compression (3 bytes; 0: it is not compressed). Source: the section "Compression" in
MySQL's documentation of its client/server protocol.
"""

from __future__ import annotations

import io
import socket
import zlib
from collections.abc import Callable
from typing import Literal, TypeAlias

import zstandard

Algorithm: TypeAlias = Literal["zlib", "zstd"]

FLAGS: dict[Algorithm, int] = {"zlib": 1 << 5, "zstd": 1 << 26}
"""The flag of each algorithm in the capabilities of client and server."""
ZSTD_LEVEL = b"\x03"
"""The level that a client asks the server for, as the last byte of its handshake."""
_HEADER = 7
_MOST = (1 << 24) - 1
_READ_BYTES = 1 << 18


class CompressedSocket:
    """A socket whose packets are compressed by the server. What is sent, commands of some bytes, is not.

    Behaves as the socket that PyMySQL expects. A read that times out loses nothing.
    """

    def __init__(self, below: socket.socket, algorithm: Algorithm) -> None:
        self._socket = below
        self._unpack = _UNPACK[algorithm]
        self._received = bytearray()
        self._ready = memoryview(b"")
        self._number = 0

    def recv_into(self, buffer: memoryview) -> int:
        """Reads what is there, up to the buffer's size, at least one byte; returns 0 at the stream's end. Raises
        ConnectionError for bytes that cannot be unpacked, and what the socket raises."""
        while not self._ready:
            packets = self._take()
            if packets:
                self._ready = memoryview(b"".join(packets))
                continue
            more = self._socket.recv(_READ_BYTES)
            if not more:
                return 0
            self._received += more
        n = min(len(buffer), len(self._ready))
        buffer[:n] = self._ready[:n]
        self._ready = self._ready[n:]
        return n

    def _take(self) -> list[bytes]:
        """Unpacks and removes the whole packets that were received."""
        packets, at, received = [], 0, self._received
        while len(received) - at >= _HEADER:
            end = at + _HEADER + int.from_bytes(received[at : at + 3], "little")
            if end > len(received):
                break
            size = int.from_bytes(received[at + 4 : at + 7], "little")
            content = bytes(received[at + _HEADER : end])
            packets.append(self._unpacked(content, size) if size else content)
            at = end
        del received[:at]
        return packets

    def _unpacked(self, content: bytes, size: int) -> bytes:
        try:
            unpacked = self._unpack(content, size)
        except (zlib.error, zstandard.ZstdError) as error:
            raise ConnectionError(f"a compressed packet cannot be unpacked: {error}") from error
        if len(unpacked) != size:
            raise ConnectionError(f"a compressed packet has {len(unpacked)} bytes instead of {size}")
        return unpacked

    def sendall(self, data: bytes) -> None:
        """Sends whole packets of one command, or a part of the packets of one."""
        if data[3] == 0:  # a command begins with packet 0
            self._number = 0
        for at in range(0, len(data), _MOST):
            part = data[at : at + _MOST]
            self._socket.sendall(len(part).to_bytes(3, "little") + bytes([self._number]) + bytes(3) + part)
            self._number = (self._number + 1) % 256

    def makefile(self, _mode: Literal["rb"]) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self))

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


class _Raw(io.RawIOBase):
    def __init__(self, below: CompressedSocket) -> None:
        self._below = below

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._below.recv_into(memoryview(buffer))


def _zstd(content: bytes, size: int) -> bytes:
    return zstandard.ZstdDecompressor().decompress(content, max_output_size=size)


_UNPACK: dict[Algorithm, Callable[[bytes, int], bytes]] = {
    "zlib": lambda content, size: zlib.decompress(content, bufsize=size),
    "zstd": _zstd,
}
