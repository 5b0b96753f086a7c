"""Reads the rows of a query from the socket, in large buffers and without an object per row.

PyMySQL makes the connection and sends the query; what the server answers is read here, because PyMySQL would make a
Python object of each value.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pymysql
from pymysql.constants import COMMAND

from cdc.errors import CdcError, DamagedError, SourceUnavailableError
from cdc.snapshot import kernels as k
from cdc.snapshot.columns import Cells
from cdc.source.connection import explain, mapped

BUFFER_BYTES = 4 << 20
MAX_ROWS = 16384
"""Rows that are located before they are converted."""
SILENCE_S = 1800.0
"""The connection is given up after so long without a byte. A query that sorts a large table may take minutes."""
_OK, _LOCAL_FILE, _EOF, _ERROR = 0x00, 0xFB, 0xFE, 0xFF


@dataclass(frozen=True)
class RowBlock:
    """Some rows of the result. The arrays are valid until the next block is read."""

    buf: npt.NDArray[np.uint8]
    at: npt.NDArray[np.int64]
    size: npt.NDArray[np.int32]
    """``at`` and ``size`` are (columns, rows), as :mod:`cdc.snapshot.kernels` describes them."""

    @property
    def rows(self) -> int:
        return int(self.at.shape[1])

    def cells(self, column: int) -> Cells:
        return Cells(self.buf, self.at[column], self.size[column])

    def value(self, column: int, row: int) -> bytes | None:
        """Returns a copy of one value; None for NULL."""
        at, size = int(self.at[column, row]), int(self.size[column, row])
        return None if size < 0 else self.buf[at : at + size].tobytes()


class ResultSet:
    """The rows of one query. Iterate once; read it to its end, or close the connection."""

    def __init__(self, connection: pymysql.connections.Connection[Any], sql: str) -> None:
        """Sends the query. Raises SourceUnavailableError and what the server's error means."""
        raw: Any = connection  # PyMySQL has no public way to leave an answer unread
        self._place = f"{connection.host}:{connection.port}"
        self._buf = np.empty(BUFFER_BYTES, dtype=np.uint8)
        self._pos = 0
        self._end = 0
        with mapped(connection):
            raw._execute_command(COMMAND.COM_QUERY, sql)
        self._socket: socket.socket = raw._sock
        self._socket.settimeout(SILENCE_S)
        self.columns = self._head()
        """The number of columns."""

    # --- packets

    def _receive(self, needed: int) -> None:
        """Reads until ``needed`` bytes from the position on are in the buffer."""
        while self._end - self._pos < needed:
            self._read_more(needed)

    def _read_more(self, needed: int) -> None:
        """Reads once. Makes room for ``needed`` bytes from the position on first."""
        if self._pos + needed > len(self._buf) or self._end == len(self._buf):
            held = self._end - self._pos
            target = self._buf
            if needed > len(self._buf) // 2:
                target = np.empty(2 * needed, dtype=np.uint8)
            target[:held] = self._buf[self._pos : self._end].copy()
            self._buf, self._pos, self._end = target, 0, held
        try:
            count = self._socket.recv_into(self._buf[self._end :].data)
        except OSError as error:
            raise explain(error, self._place, "") from error
        if count == 0:
            raise SourceUnavailableError("the server closed the connection", place=f"source {self._place}")
        self._end += count

    def _packet(self) -> bytes:
        """Reads one packet of the answer's head, without its header."""
        self._receive(4)
        size = int.from_bytes(self._buf[self._pos : self._pos + 3].tobytes(), "little")
        self._receive(4 + size)
        payload = self._buf[self._pos + 4 : self._pos + 4 + size].tobytes()
        self._pos += 4 + size
        return payload

    def _head(self) -> int:
        """Reads the definitions of the columns and returns their number."""
        first = self._packet()
        if first[:1] == bytes([_ERROR]):
            raise self._refused(first)
        if first[:1] in (bytes([_OK]), bytes([_LOCAL_FILE]), b""):
            raise DamagedError("the server answers a query without rows", place=f"source {self._place}")
        count = first[0] if first[0] < 251 else int.from_bytes(first[1:3], "little")
        for _ in range(count):
            self._packet()
        end = self._packet()
        if end[:1] != bytes([_EOF]):
            raise DamagedError("the server's answer is not a result set", place=f"source {self._place}")
        return count

    def _refused(self, packet: bytes) -> CdcError:
        code = int.from_bytes(packet[1:3], "little")
        text = packet[3:]
        text = text[6:] if text[:1] == b"#" else text
        error = pymysql.err.OperationalError(code, text.decode("utf-8", "replace"))
        found = explain(error, self._place, "")
        found.__cause__ = error
        return found

    # --- rows

    def __iter__(self) -> Iterator[RowBlock]:
        """Yields all rows. Raises SourceUnavailableError, SourceRefusedError, DamagedError."""
        at = np.empty((self.columns, MAX_ROWS), dtype=np.int64)
        size = np.empty((self.columns, MAX_ROWS), dtype=np.int32)
        state = np.zeros(k.STATE_SIZE, dtype=np.int64)
        rows = 0
        while True:
            state[k.STATE_POS] = self._pos
            rows = k.locate_rows(self._buf, self._end, rows, at, size, state)
            status, needed = int(state[k.STATE_STATUS]), int(state[k.STATE_NEEDED])
            here = int(state[k.STATE_POS])
            if status == k.MORE and here + needed <= len(self._buf) and self._end < len(self._buf):
                # The located rows stay where they are, because there is room behind them.
                self._pos = here
                self._read_more(needed)
                continue
            if rows:
                yield RowBlock(self._buf, at[:, :rows], size[:, :rows])
                rows = 0
            self._pos = here
            if status == k.MORE:
                self._receive(needed)
            elif status == k.SPLIT:
                yield self._large_row()
            elif status == k.ERROR:
                self._receive(needed)
                raise self._refused(self._packet())
            elif status == k.BAD:
                raise DamagedError("the server's answer is not a row", place=f"source {self._place}")
            elif status == k.END:
                self._packet()
                if self._end != self._pos:
                    raise DamagedError("the server sent more than one result set", place=f"source {self._place}")
                self._socket.settimeout(None)
                return

    def _large_row(self) -> RowBlock:
        """Reads a row that takes more than one packet."""
        parts = []
        while True:
            self._receive(4)
            length = int.from_bytes(self._buf[self._pos : self._pos + 3].tobytes(), "little")
            self._receive(4 + length)
            parts.append(self._buf[self._pos + 4 : self._pos + 4 + length].copy())
            self._pos += 4 + length
            if length < k.MAX_PACKET:
                break
        row = np.concatenate(parts)
        at = np.empty((self.columns, 1), dtype=np.int64)
        size = np.empty((self.columns, 1), dtype=np.int32)
        if not k.locate_whole(row, at, size):
            raise DamagedError("the server's answer is not a row", place=f"source {self._place}")
        return RowBlock(row, at, size)
