"""Reads the rows of a query from the socket, in large buffers and without an object per row.

PyMySQL makes the connection and sends the query; what the server answers is read here, because PyMySQL would make a
Python object of each value. Rows may come in binary form: the query is then a prepared statement, so that the server
prints no numbers and dates, which can take it longer than all the rest.
"""

from __future__ import annotations

import select
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pymysql
from pymysql.constants import COMMAND

from cdc.base.errors import CdcError, DamagedError, SchemaChangedError, SourceUnavailableError
from cdc.binlog.constants import FULL_PACKET
from cdc.source.connection import explain, mapped, server_of
from cdc.source.driver import forget_timeout, send_command, socket_of
from cdc.source.snapshot import kernels as k
from cdc.source.snapshot.columns import Cells
from cdc.source.snapshot.wire import WireColumn

BUFFER_BYTES = 4 << 20
MAX_ROWS = 16384
"""Rows that are located before they are converted."""
SILENCE_S = 1800.0
"""The connection is given up after so long without a byte. A query that sorts a large table may take minutes."""
_OK, _LOCAL_FILE, _EOF, _ERROR = 0x00, 0xFB, 0xFE, 0xFF
_STATEMENT_BYTES = 9
"""The first bytes of the answer to a preparation: its state, the statement's number, and the counts of columns and
parameters."""

CanRead = Callable[[Sequence[WireColumn]], bool]
"""Whether values in binary form can be read, in columns that the server describes so."""


@dataclass(frozen=True)
class RowBlock:
    """Some rows of the result. The arrays are valid until the next block is read."""

    buf: npt.NDArray[np.uint8]
    at: npt.NDArray[np.int64]
    size: npt.NDArray[np.int32]
    """``at`` and ``size`` are (columns, rows), as :mod:`cdc.source.snapshot.kernels` describes them."""
    wire: tuple[WireColumn, ...] = ()
    """The columns of values in binary form; empty if they are printed."""

    @property
    def rows(self) -> int:
        return int(self.at.shape[1])

    def cells(self, column: int) -> Cells:
        return Cells(self.buf, self.at[column], self.size[column], self.wire[column] if self.wire else None)

    def value(self, column: int, row: int) -> bytes | None:
        """Returns one value as the text protocol prints it; None for NULL."""
        return self.cells(column).printed(row)


class ResultSet:
    """The rows of one query. Iterate once; read it to its end, or close the connection."""

    def __init__(
        self, connection: pymysql.connections.Connection[Any], sql: str, can_read: CanRead | None = None
    ) -> None:
        """Sends the query. ``can_read``: says whether the values may come in binary form; None: they are printed.

        Raises SourceUnavailableError and what the server's error means.
        """
        raw: Any = connection  # PyMySQL has no public way to leave an answer unread
        self._connection = raw
        self._place = server_of(connection)
        self._buf = np.empty(BUFFER_BYTES, dtype=np.uint8)
        self._pos = 0
        self._end = 0
        self._socket = socket_of(raw)
        self._statement: int | None = None if can_read is None else self._prepare(sql, can_read)
        self._wire: tuple[WireColumn, ...] = ()
        if self._statement is None:
            self._send(COMMAND.COM_QUERY, sql)
            self.columns = len(self._head())
            """The number of columns."""
        else:
            self._send(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", self._statement, 0, 1))
            self._wire = tuple(self._head())
            self.columns = len(self._wire)
            if can_read is not None and not can_read(self._wire):
                raise SchemaChangedError("the table was altered while it was read", place=f"source {self._place}")

    # --- statements

    def _send(self, command: int, content: str | bytes) -> None:
        with mapped(self._connection):
            forget_timeout(self._connection)
            send_command(self._connection, command, content)
        self._socket.settimeout(0)

    def _prepare(self, sql: str, can_read: CanRead) -> int | None:
        """Prepares the query, and returns the number of the statement; None if the values have to be printed: the
        server refuses to prepare it, or sends a type that cannot be read in binary form."""
        self._send(COMMAND.COM_STMT_PREPARE, sql)
        first = self._packet()
        if first[:1] == bytes([_ERROR]):
            return None  # an error that is not one of preparing comes again
        if first[:1] != bytes([_OK]) or len(first) < _STATEMENT_BYTES:
            raise DamagedError("the server's answer to a preparation cannot be read", place=f"source {self._place}")
        statement, columns, parameters = struct.unpack_from("<IHH", first, 1)
        if parameters:
            self._definitions(parameters)
        if columns and can_read(self._definitions(columns)):
            return int(statement)
        self._close(statement)
        return None

    def _close(self, statement: int) -> None:
        self._send(COMMAND.COM_STMT_CLOSE, struct.pack("<I", statement))

    # --- packets

    def _receive(self, needed: int) -> None:
        """Reads until ``needed`` bytes from the position on are in the buffer."""
        while self._end - self._pos < needed:
            self._read_more(needed)

    def _read_more(self, needed: int) -> None:
        """Reads what is there, and waits for it first. Makes room for ``needed`` bytes from the position on before."""
        if self._pos + needed > len(self._buf) or self._end == len(self._buf):
            held = self._end - self._pos
            target = self._buf
            if needed > len(self._buf) // 2:
                target = np.empty(2 * needed, dtype=np.uint8)
            target[:held] = self._buf[self._pos : self._end].copy()
            self._buf, self._pos, self._end = target, 0, held
        count = 0
        while self._end < len(self._buf):
            try:
                count = self._socket.recv_into(self._buf[self._end :].data)
            except (ssl.SSLWantReadError, BlockingIOError):
                if count:
                    return
                self._wait()
                continue
            except OSError as error:
                raise explain(error, self._place, "") from error
            if count == 0:
                raise SourceUnavailableError("the server closed the connection", place=f"source {self._place}")
            self._end += count

    def _wait(self) -> None:
        """Waits until the server has sent something."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(SILENCE_S * 1000):
            silence = TimeoutError(f"nothing was received for {SILENCE_S:g} s")
            raise explain(silence, self._place, "") from silence

    def _packet(self) -> bytes:
        """Reads one packet of the answer's head, without its header."""
        self._receive(4)
        size = int.from_bytes(self._buf[self._pos : self._pos + 3].tobytes(), "little")
        self._receive(4 + size)
        payload = self._buf[self._pos + 4 : self._pos + 4 + size].tobytes()
        self._pos += 4 + size
        return payload

    def _head(self) -> list[WireColumn]:
        """Reads the definitions of the columns."""
        first = self._packet()
        if first[:1] == bytes([_ERROR]):
            raise self._refused(first)
        if first[:1] in (bytes([_OK]), bytes([_LOCAL_FILE]), b""):
            raise DamagedError("the server answers a query without rows", place=f"source {self._place}")
        return self._definitions(first[0] if first[0] < 251 else int.from_bytes(first[1:3], "little"))

    def _definitions(self, count: int) -> list[WireColumn]:
        definitions = [WireColumn.of(self._packet()) for _ in range(count)]
        if self._packet()[:1] != bytes([_EOF]):
            raise DamagedError("the server's answer is not a result set", place=f"source {self._place}")
        return definitions

    def _refused(self, packet: bytes) -> CdcError:
        code = int.from_bytes(packet[1:3], "little")
        text = packet[3:]
        text = text[6:] if text[:1] == b"#" else text
        error = pymysql.err.OperationalError(code, text.decode("utf-8", "replace"))
        refusal = explain(error, self._place, "")
        refusal.__cause__ = error
        return refusal

    # --- rows

    def __iter__(self) -> Iterator[RowBlock]:
        """Yields all rows. Raises SourceUnavailableError, SourceRefusedError, DamagedError."""
        at = np.empty((self.columns, MAX_ROWS), dtype=np.int64)
        size = np.empty((self.columns, MAX_ROWS), dtype=np.int32)
        state = k.RowSearch.new()
        widths = self._widths()
        rows = 0
        while True:
            state.pos = self._pos
            rows = k.locate_rows(self._buf, self._end, rows, widths, at, size, state)
            status, needed = int(state.status), int(state.needed)
            here = int(state.pos)
            if status == k.MORE and here + needed <= len(self._buf) and self._end < len(self._buf):
                # The located rows stay where they are, because there is room behind them.
                self._pos = here
                self._read_more(needed)
                continue
            if rows:
                yield RowBlock(self._buf, at[:, :rows], size[:, :rows], self._wire)
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
                if self._statement is not None:
                    self._close(self._statement)
                forget_timeout(self._connection)
                self._socket.settimeout(None)
                return

    def _widths(self) -> npt.NDArray[np.int64]:
        return np.array([column.width for column in self._wire], dtype=np.int64)

    def _large_row(self) -> RowBlock:
        """Reads a row that takes more than one packet."""
        parts = []
        while True:
            self._receive(4)
            length = int.from_bytes(self._buf[self._pos : self._pos + 3].tobytes(), "little")
            self._receive(4 + length)
            parts.append(self._buf[self._pos + 4 : self._pos + 4 + length].copy())
            self._pos += 4 + length
            if length < FULL_PACKET:
                break
        row = np.concatenate(parts)
        at = np.empty((self.columns, 1), dtype=np.int64)
        size = np.empty((self.columns, 1), dtype=np.int32)
        if not k.locate_whole(row, self._widths(), at, size):
            raise DamagedError("the server's answer is not a row", place=f"source {self._place}")
        return RowBlock(row, at, size, self._wire)
