"""The server's side of the MySQL protocol, as far as capture uses it: packets, greeting, text rows."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence

_LONG_PASSWORD, _LONG_FLAG, _CONNECT_WITH_DB, _PROTOCOL_41, _TRANSACTIONS = 0x1, 0x4, 0x8, 0x200, 0x2000
_SECURE_CONNECTION, _PLUGIN_AUTH = 0x8000, 0x80000
_CAPABILITIES = (
    _LONG_PASSWORD | _LONG_FLAG | _CONNECT_WITH_DB | _PROTOCOL_41 | _TRANSACTIONS | _SECURE_CONNECTION | _PLUGIN_AUTH
)
_AUTOCOMMIT = 2
_UTF8MB4, _BINARY = 255, 63
_LONGLONG, _VAR_STRING = 0x08, 0xFD
OK = b"\0\0\0" + struct.pack("<HH", _AUTOCOMMIT, 0)
EOF = b"\xfe" + struct.pack("<HH", 0, _AUTOCOMMIT)


class Wire:
    """Reads and writes the packets of one connection."""

    def __init__(self, conn: socket.socket) -> None:
        self._conn = conn
        self._number = 0

    def read(self) -> bytes:
        """Returns the next packet of the client; empty if it has disconnected."""
        head = self._exactly(4)
        if len(head) < 4:
            return b""
        self._number = head[3] + 1
        return self._exactly(int.from_bytes(head[:3], "little"))

    def write(self, *payloads: bytes) -> None:
        """Sends packets."""
        out = []
        for payload in payloads:
            out.append(len(payload).to_bytes(3, "little") + bytes([self._number & 0xFF]) + payload)
            self._number += 1
        self._conn.sendall(b"".join(out))

    def greet(self, version: str, thread_id: int) -> bytes:
        """Greets the client and accepts any user and password. Returns its answer; empty if it has disconnected."""
        scramble = b"\1" * 20
        payload = b"\x0a" + version.encode() + b"\0" + struct.pack("<I", thread_id) + scramble[:8] + b"\0"
        payload += struct.pack("<HBHH", _CAPABILITIES & 0xFFFF, _UTF8MB4, _AUTOCOMMIT, _CAPABILITIES >> 16)
        payload += bytes([21]) + bytes(10) + scramble[8:] + b"\0" + b"mysql_native_password\0"
        self._number = 0
        self.write(payload)
        answer = self.read()
        if answer:
            self.write(OK)
        return answer

    def write_rows(self, rows: Sequence[Mapping[str, object]], names: Sequence[str] = ("none",)) -> None:
        """Sends a result set. ``names`` are the column names of an empty one."""
        names = list(rows[0]) if rows else names
        packets = [_lenenc(len(names))]
        for name in names:
            numeric = bool(rows) and isinstance(rows[0][name], int)
            text = b"".join(_text(part) for part in ("def", "", "", "", name, name))
            kind = (_BINARY, 20, _LONGLONG) if numeric else (_UTF8MB4, 1024, _VAR_STRING)
            packets.append(text + b"\x0c" + struct.pack("<HIBHBH", *kind, 0, 0, 0))
        packets.append(EOF)
        packets += [b"".join(b"\xfb" if row[name] is None else _text(str(row[name])) for name in names) for row in rows]
        self.write(*packets, EOF)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._conn.recv(size - len(data))
            if not part:
                return b""
            data += part
        return data


def _lenenc(n: int) -> bytes:
    return (
        bytes([n]) if n < 251 else b"\xfc" + struct.pack("<H", n) if n < 1 << 16 else b"\xfd" + struct.pack("<I", n)[:3]
    )


def _text(text: str) -> bytes:
    data = text.encode()
    return _lenenc(len(data)) + data
