"""The server's own account: its binlog files, read by its own tool, without any code of Towpath's.

The text of ``mysqlbinlog -v`` is read line by line. Rows of a prepared XA transaction count at its XA COMMIT. A
transaction without an end, which the death of the server cut off, does not count.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cdc.testing.servers import Server, client_tool
from tests.soak.histories.accounts import (
    Account,
    Change,
    Transaction,
    ddl,
    is_captured_ddl,
    is_captured_table,
)

_END = "/*!*/;"
_MYSQL_GTID = re.compile(r"SET @@SESSION\.GTID_NEXT= '([0-9a-fA-F-]{36}:\S+)'")
_MARIADB_GTID = re.compile(r"#\d{6} .*\tGTID (\d+-\d+-\d+)")
_EVENT = re.compile(r"#\d{6} .*end_log_pos \d+ (?:CRC32 0x[0-9a-f]+ )?\t(\w+)")
_ROW = re.compile(r"### (INSERT INTO|UPDATE|DELETE FROM) `(\w+)`\.`(\w+)`")
_TOKEN = re.compile(r"###   @1=(-?\d+|NULL)")
_XA = re.compile(r"XA (PREPARE|COMMIT|ROLLBACK) (X'\S+)( ONE PHASE)?$")
_KINDS = {"INSERT INTO": "insert", "UPDATE": "update", "DELETE FROM": "delete"}


def read_server(server: Server) -> Account:
    """Reads all binlog files of a server on which nothing changes any more."""
    family = server.kind.name
    tool = client_tool(family, "mariadb-binlog") if family.startswith("maria") else client_tool("mysql9", "mysqlbinlog")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        files = [server.data / row[0] for row in cursor.fetchall()]
    reading = BinlogText()
    for file in files:
        _read_file(reading, tool, file)
    return reading.account


def _read_file(reading: BinlogText, tool: list[str], file: Path) -> None:
    command = [*tool, "--no-defaults", "--base64-output=decode-rows", "-v", str(file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        reading.new_file()
        reading.read(process.stdout)
        complaint = process.stderr.read()
    # The event that a killed MariaDB was writing is half there, at the end of the file.
    assert process.returncode == 0 or "read_log_event" in complaint, f"{file.name}: {complaint[-2000:]}"


class BinlogText:
    """Reads the text of binlog files, one after another."""

    def __init__(self) -> None:
        self.account = Account()
        self._prepared: dict[str, list[Change]] = {}
        """Changes of the XA transactions that have not ended, by their xid."""
        self.new_file()

    def new_file(self) -> None:
        """Forgets a transaction without an end."""
        self._gtid = ""
        self._open = False
        self._changes: list[Change] = []
        self._row: list[str | None] | None = None
        """The kind of the row that is being read, its table, its token before and after."""
        self._image = 3
        self._statement: list[str] | None = None
        """The lines of the QUERY event that is being read."""

    def read(self, lines: Iterable[str]) -> None:
        """Reads the text of one file."""
        for line in lines:
            self._line(line.rstrip("\n"))
        self._end_row()

    def _line(self, line: str) -> None:
        if line.startswith("###"):
            self._row_line(line)
            return
        self._end_row()
        if self._statement is not None:
            if line == _END:
                statement, self._statement = "\n".join(self._statement), None
                self._ended_statement(statement)
            elif not line.endswith(_END):
                self._statement.append(line)
        elif line.startswith("#"):
            self._event(line)
        elif match := _MYSQL_GTID.match(line):
            self._begin(match[1])
        elif line.startswith(("START TRANSACTION", "XA START")):  # MariaDB's GTID event, as text
            self._open = True
        elif line == f"COMMIT{_END}":  # an XID event
            self._commit()
        elif match := _XA.match(line):  # an event XA PREPARE
            self._xa(match[1], match[2], one_phase=match[3] is not None)

    def _event(self, line: str) -> None:
        if match := _MARIADB_GTID.match(line):
            self._begin(match[1])
        elif (match := _EVENT.match(line)) and match[1] in ("Query", "Query_compressed"):
            self._statement = []

    def _row_line(self, line: str) -> None:
        if match := _ROW.match(line):
            self._end_row()
            self._row = [_KINDS[match[1]], f"{match[2]}.{match[3]}", None, None]
        elif self._row is not None and line == "### WHERE":
            self._image = 2
        elif self._row is not None and line == "### SET":
            self._image = 3
        elif self._row is not None and (match := _TOKEN.match(line)):
            self._row[self._image] = match[1]

    def _end_row(self) -> None:
        if self._row is not None:
            kind, table, before, after = self._row
            self._row = None
            assert kind is not None and table is not None
            if is_captured_table(table):
                self._changes.append(Change(kind, table, _token(before), _token(after)))

    def _ended_statement(self, statement: str) -> None:
        verb = statement.split(None, 1)[0].upper() if statement else ""
        if verb == "BEGIN" or statement.startswith("XA START"):
            self._open = True
        elif verb == "COMMIT":
            self._commit()
        elif verb == "ROLLBACK" and " TO " not in statement.upper():
            self._changes = []
            self._commit()
        elif match := _XA.match(statement):
            self._xa(match[1], match[2], one_phase=False)
        elif verb not in ("SAVEPOINT", "ROLLBACK", "RELEASE", "XA"):
            if is_captured_ddl(statement):
                self._changes.append(ddl(statement))
            if not self._open:
                self._commit()

    def _xa(self, what: str, xid: str, *, one_phase: bool) -> None:
        if what == "PREPARE":
            self._prepared[xid], self._changes = self._changes, []
        elif not one_phase:
            self._changes = self._prepared.pop(xid, [])
            if what == "ROLLBACK":
                self._changes = []
        self._commit()

    def _begin(self, gtid: str) -> None:
        self._gtid, self._open, self._changes = gtid, False, []

    def _commit(self) -> None:
        assert self._gtid, "a transaction has no GTID"
        self.account.add_gtid(self._gtid)
        if self._changes:
            self.account.transactions.append(Transaction(self._gtid, tuple(self._changes)))
        self._gtid, self._open, self._changes = "", False, []


def _token(text: str | None) -> int | None:
    return None if text is None or text == "NULL" else int(text)
