"""The binlog files of a fake source, and the transactions that a store must hold of them."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cdc.base.errors import UsageError
from cdc.binlog.constants import EventType
from cdc.binlog.events import with_checksum
from cdc.binlog.positions import BinlogPosition, make_seq
from cdc.binlog.xa_rows import own_table_id
from cdc.testing.binlog import BinlogBuilder

_HEADER = struct.Struct("<IBIIIH")
_ARTIFICIAL = 0x20
Statement: TypeAlias = Sequence[tuple[str, Sequence[int]]]
UUID = "01010101-0101-0101-0101-010101010101"
"""The server's UUID in the GTIDs of :class:`~cdc.testing.binlog.BinlogBuilder`."""
EXCLUDED = "noise"
"""Tables of this name are excluded from capture; all others are captured."""


@dataclass(frozen=True)
class HistoryTransaction:
    """One transaction: its position, and its events, each with the table of a table map or row event."""

    file: str
    start: int
    end: int
    gno: int
    events: tuple[tuple[bytes, str | None], ...]
    ddl: bool = False
    prepared: bool = False
    """Whether it ends with an XA PREPARE: a store holds nothing of it."""
    commits: HistoryTransaction | None = None
    """The prepared transaction whose XA COMMIT it is."""

    @property
    def seq(self) -> int:
        return make_seq(0, int(self.file.rpartition(".")[2]), self.end)

    @property
    def kept(self) -> bytes:
        """The bytes that a store holds of it; empty if no table of it is captured."""
        if self.commits is not None:
            return self._committed(self.commits.rows)
        return b"" if self.prepared else self.rows

    def _committed(self, rows: bytes) -> bytes:
        """Returns the rows of a prepared transaction between the two events of its XA COMMIT."""
        (gtid, _), (commit, _) = self.events
        out, at, ids = [gtid], 0, {}
        while at < len(rows):
            event = bytearray(rows[at : at + int.from_bytes(rows[at + 9 : at + 13], "little")])
            at += len(event)
            if event[4] not in (EventType.TABLE_MAP, EventType.WRITE_ROWS):
                continue
            table_id = bytes(event[19:25])
            if event[4] == EventType.TABLE_MAP:
                ids[table_id] = own_table_id(bytes(event[:-4]))
            event[13:17], event[19:25] = commit[13:17], ids[table_id]
            out.append(with_checksum(bytes(event)))
        return b"".join([*out, commit]) if len(out) > 1 else b""

    @property
    def rows(self) -> bytes:
        """Its events, without those of tables that are not captured; empty if there are no others."""
        if not self.ddl and not any(table not in (None, EXCLUDED) for _, table in self.events):
            return b""
        out: list[bytes] = []
        last_row = -1
        for event, table in self.events:
            is_rows = event[4] == EventType.WRITE_ROWS
            if table == EXCLUDED:
                if is_rows and event[25] & 1 and last_row >= 0:
                    # The flag STMT_END_F moves to the last row event that is kept.
                    row = bytearray(out[last_row][:-4])
                    row[25] |= 1
                    out[last_row] = with_checksum(bytes(row) + bytes(4))
                    last_row = -1
                continue
            if is_rows:
                last_row = -1 if event[25] & 1 else len(out)
            out.append(event)
        return b"".join(out)


@dataclass
class HistoryFile:
    """One binlog file: its events, each with the offset at which it begins (not truncated to 32 bits)."""

    name: str
    events: list[tuple[int, bytes]] = field(default_factory=list)
    size: int = 4


class History:
    """The history of a server. Grows by :meth:`transaction`, :meth:`ddl` and :meth:`rotate`. All changes are in the
    database ``shop``."""

    def __init__(self, *, base: str = "binlog", server_id: int = 1, first_file: int = 1, value: int = 0) -> None:
        """``value`` is added to every row value, so that two histories of the same shape can differ."""
        self.base = base
        self.server_id = server_id
        self.value = value
        self.files: list[HistoryFile] = []
        self.transactions: list[HistoryTransaction] = []
        self._gno = 0
        self._prepared: dict[str, HistoryTransaction] = {}
        self._begin_file(first_file)

    # --- growing -----------------------------------------------------------------------------------------------------

    def transaction(self, *statements: Statement) -> None:
        """Appends GTID, BEGIN, the statements and XID. A statement is a list of pairs of a table and the values of its
        rows; each pair becomes one row event."""
        log, start = self._log, self._pos
        log.gno = self._gno
        log.gtid()
        log.query("BEGIN")
        tables: list[str | None] = [None, None]
        for statement in statements:
            tables += self._statement(statement)
        log.xid()
        tables.append(None)
        self._gno = log.gno
        self._take(start, tables, ddl=False)

    def prepare(self, xid: str, *statements: Statement) -> None:
        """Appends an XA transaction that is prepared. ``xid`` is its gtrid."""
        log, start = self._log, self._pos
        log.gno = self._gno
        log.gtid()
        log.query(f"XA START X'{xid.encode().hex()}',X'',1")
        tables: list[str | None] = [None, None]
        for statement in statements:
            tables += self._statement(statement)
        log.query(f"XA END X'{xid.encode().hex()}',X'',1")
        log.event(EventType.XA_PREPARE, b"\0" + struct.pack("<iII", 1, len(xid), 0) + xid.encode())
        self._gno = log.gno
        self._take(start, [*tables, None, None], ddl=False, prepared=True)
        self._prepared[xid] = self.transactions[-1]

    def end_prepared(self, xid: str, *, commit: bool = True) -> None:
        """Appends the XA COMMIT or XA ROLLBACK of a prepared transaction."""
        log, start = self._log, self._pos
        log.gno = self._gno
        log.gtid()
        log.query(f"XA {'COMMIT' if commit else 'ROLLBACK'} X'{xid.encode().hex()}',X'',1")
        self._gno = log.gno
        prepared = self._prepared.pop(xid, None)
        self._take(start, [None, None], ddl=False, prepared=not commit, commits=prepared if commit else None)

    def ddl(self, sql: str = "CREATE TABLE extra (id INT PRIMARY KEY)") -> None:
        """Appends GTID and a DDL statement."""
        log, start = self._log, self._pos
        log.gno = self._gno
        log.ddl(sql)
        self._gno = log.gno
        self._take(start, [None, None], ddl=True)

    def large_table_map(self, table: str, size: int) -> None:
        """Appends a transaction of one row whose table map has ``size`` bytes of unknown metadata."""
        log, start = self._log, self._pos
        log.gno = self._gno
        log.gtid()
        log.query("BEGIN")
        log.table_map("shop", table, padding=size)
        log.rows("shop", table, [self.value])
        log.xid()
        self._gno = log.gno
        self._take(start, [None, None, table, table, None], ddl=False)

    def rotate(self) -> None:
        """Ends the file with a ROTATE event and begins the next one."""
        name = f"{self.base}.{int(self.files[-1].name.rpartition('.')[2]) + 1:06}"
        self._log.event(EventType.ROTATE, struct.pack("<Q", 4) + name.encode())
        self._collect()
        self._begin_file(int(name.rpartition(".")[2]))

    def skip_bytes(self, size: int) -> None:
        """Leaves a gap of ``size`` bytes in the file, as if it held events that a dump does not send. Use less than
        4 GiB between two transactions, as on a server."""
        self._pos += size
        self._log.pos = self._pos

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def end(self) -> BinlogPosition:
        """The position at which the next event will be written."""
        return BinlogPosition(self.files[-1].name, self.files[-1].size)

    @property
    def gtids(self) -> str:
        """The set of executed GTIDs."""
        return f"{UUID}:1-{self._gno}" if self._gno else ""

    def file(self, name: str) -> HistoryFile | None:
        return next((file for file in self.files if file.name == name), None)

    def dump(self, name: str, pos: int) -> list[bytes]:
        """Returns the events that a server sends from a position to the history's end. Raises UsageError with the
        server's error text if no event begins there."""
        file = self.file(name)
        if file is None:
            raise UsageError("Could not find first log file name in binary log index file")
        if pos > file.size:
            raise UsageError("Client requested source to start replication from position > file size")
        borders = {4, file.size, *(start for start, _ in file.events)}
        if pos not in borders:
            raise UsageError("log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source")
        events: list[bytes] = []
        for number in range(self.files.index(file), len(self.files)):
            file = self.files[number]
            events.append(self._artificial_rotate(file.name, pos))
            description = file.events[0][1]
            events.append(description if pos == 4 else _without_position(description))
            events += [event for start, event in file.events[1:] if start >= pos]
            pos = 4
        return events

    def heartbeat(self) -> bytes:
        """Returns the heartbeat event that a server sends when it has no other event."""
        name = self.files[-1].name.encode()
        head = _HEADER.pack(
            0, EventType.HEARTBEAT, self.server_id, 19 + len(name) + 4, self.files[-1].size & 0xFFFFFFFF, _ARTIFICIAL
        )
        return with_checksum(head + name + bytes(4))

    def expected(self) -> dict[int, bytes]:
        """Returns the bytes that a store must hold, by seq, in order."""
        return {t.seq: t.kept for t in self.transactions if t.kept}

    # --- private -----------------------------------------------------------------------------------------------------

    def _statement(self, statement: Statement) -> list[str | None]:
        """Appends the events of a statement. Returns the table of each."""
        tables: list[str | None] = [table for table, _ in statement]
        for table, _ in statement:
            self._log.table_map("shop", table)
        for number, (table, values) in enumerate(statement):
            self._log.rows("shop", table, [v + self.value for v in values], end=number == len(statement) - 1)
            tables.append(table)
        return tables

    def _begin_file(self, number: int) -> None:
        name = f"{self.base}.{number:06}"
        self._log = BinlogBuilder(server_id=self.server_id)
        self.files.append(HistoryFile(name))
        self._taken = 0
        self._pos = 4
        self._collect()

    def _collect(self) -> list[bytes]:
        new = self._log.events[self._taken :]
        self._taken = len(self._log.events)
        file = self.files[-1]
        for event in new:
            file.events.append((self._pos, event))
            self._pos += len(event)
        file.size = self._pos
        return new

    def _take(
        self,
        start: int,
        tables: list[str | None],
        *,
        ddl: bool,
        prepared: bool = False,
        commits: HistoryTransaction | None = None,
    ) -> None:
        pairs = tuple(zip(self._collect(), tables, strict=True))
        name = self.files[-1].name
        self.transactions.append(
            HistoryTransaction(name, start, self._pos, self._gno, pairs, ddl, prepared=prepared, commits=commits)
        )

    def _artificial_rotate(self, name: str, pos: int) -> bytes:
        body = struct.pack("<Q", pos) + name.encode()
        head = _HEADER.pack(0, EventType.ROTATE, self.server_id, 19 + len(body) + 4, 0, _ARTIFICIAL)
        return head + body + zlib.crc32(head + body).to_bytes(4, "little")


def _without_position(description: bytes) -> bytes:
    """Returns a format description as a server sends it if the dump begins after it."""
    return with_checksum(description[:13] + bytes(4) + description[17:])


def sample_history(*, value: int = 0) -> History:
    """Returns a few transactions that cover the framer's cases: several row events, an excluded table, a statement
    whose last row event is excluded, DDL, a rotation. Small enough to inject a fault at every byte."""
    history = History(value=value)
    history.transaction([("orders", [1, 2])])
    history.transaction([(EXCLUDED, [1])])
    history.transaction([("orders", [3]), (EXCLUDED, [2])], [("lines", [4, 5, 6])])
    history.ddl()
    history.rotate()
    history.transaction([("lines", range(12))])
    history.transaction([("orders", [7])])
    return history


def random_history(seed: int, *, transactions: int = 60) -> History:
    """Returns a random history: transactions of all sizes, excluded tables, DDL, rotations. A transaction ends it: a
    reader cannot tell without heartbeats that it has reached the end of a file without events."""
    rng = random.Random(seed)
    history = History()
    for _ in range(transactions):
        what = rng.random()
        if what < 0.05:
            history.rotate()
        elif what < 0.1:
            history.ddl(f"CREATE TABLE t{rng.randrange(100)} (id INT PRIMARY KEY)")
        elif what < 0.25:
            history.transaction([(EXCLUDED, range(rng.randint(1, 50)))])
        else:
            statements: list[Statement] = []
            for _ in range(rng.choice((1, 1, 2, 5, 20))):
                tables = rng.sample(["orders", "lines", EXCLUDED], rng.choice((1, 1, 2, 3)))
                statements.append([(table, range(rng.choice((1, 3, 100)))) for table in tables])
            history.transaction(*statements)
    history.transaction([("orders", [1])])
    return history


def prepared_history() -> History:
    """Returns a history of prepared XA transactions: commits in another order, a rollback, one of an excluded table,
    an xid that is used again, one that stays pending, and rotations between. After a rotation the ids of tables are
    others."""
    history = History()
    history.transaction([("orders", [1])])
    history.prepare("a", [("orders", [2, 3])], [("lines", [4]), (EXCLUDED, [5])])
    history.prepare("b", [("lines", [6])])
    history.prepare("none", [(EXCLUDED, [7])])
    history.transaction([("lines", [8])])
    history.end_prepared("b")
    history.prepare("b", [("orders", [9])])
    history.rotate()
    history.transaction([("lines", [10])])
    history.end_prepared("a")
    history.prepare("pending", [("orders", [11])])
    history.end_prepared("none")
    history.prepare("dropped", [("lines", [12])])
    history.end_prepared("dropped", commit=False)
    history.end_prepared("b")
    history.transaction([(EXCLUDED, [13])])
    return history
