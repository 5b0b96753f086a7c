"""A TCP server that answers capture's statements as MySQL does, and dumps a history with faults."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cdc.base.closing import Closing
from cdc.base.errors import UsageError
from cdc.testing.binlog import numbered_packets, packets_of
from cdc.testing.source.faults import Fault, Hangup, Pause, error_packet
from cdc.testing.source.history import UUID, History
from cdc.testing.source.wire import EOF, OK, Wire

Rows: TypeAlias = Sequence[Mapping[str, object]]
_NON_BLOCKING = 1
_QUIT, _QUERY, _PING, _BINLOG_DUMP, _REGISTER = 0x01, 0x03, 0x0E, 0x12, 0x15
_HEARTBEAT = re.compile(r"SET @master_heartbeat_period\s*=\s*(\d+)", re.IGNORECASE)
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Answer:
    """The answer to statements that ``pattern`` matches (a case-insensitive search). ``rows`` is called with the source
    and the match; it returns the rows, or None for OK without rows."""

    pattern: str
    rows: Callable[[FakeSource, re.Match[str]], Rows | None]


class FakeSource(Closing):
    """Serves ``history`` on a port of 127.0.0.1 (:attr:`port`), with a thread for each connection.

    The history may grow or be replaced at any time; setting :attr:`history` ends running dumps of the old one. Dumps
    take their faults from :attr:`next_faults`, in order (None: a healthy dump), then :attr:`default_fault`. Statements
    are answered by the last of :attr:`answers` that matches. Append to it, or set :attr:`variables`.
    """

    def __init__(
        self, history: History, *, version: str = "9.7.4", server_uuid: str = UUID, server_id: int = 1
    ) -> None:
        self.server_uuid = server_uuid
        self.server_id = server_id
        self.version = version
        self.variables: dict[str, str] = {
            "log_bin": "ON",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_row_metadata": "FULL",
            "binlog_checksum": "CRC32",
            "log_replica_updates": "ON",
            "server_uuid": server_uuid,
        }
        self.tables: dict[str, tuple[str, ...]] = {"orders": ("id",), "lines": ("id",)}
        """Tables of ``shop`` in information_schema, with their columns. All columns are INT, the first is the key."""
        self.answers: list[Answer] = list(_ANSWERS)
        self.next_faults: list[Fault | None] = []
        self.default_fault: Fault | None = None
        self.purged: set[str] = set()
        """Names of binlog files that the server has purged."""
        self.statements: list[str] = []
        """The statements received, oldest first."""
        self.dumps: list[tuple[str, int]] = []
        """The positions from which dumps were requested, oldest first. Short dumps are not included."""
        self._history = history
        self._changed = 0
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._mutex = threading.Lock()
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, name="fake source", daemon=True)
        self._accepting.start()

    @property
    def history(self) -> History:
        return self._history

    @history.setter
    def history(self, other: History) -> None:
        self._history = other
        self._changed += 1

    @property
    def url(self) -> str:
        return f"mysql://cdc@127.0.0.1:{self.port}"

    def close(self) -> None:
        """Closes all connections and ends the server."""
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._mutex:
            for conn in self._open:
                _shut(conn)
        self._accepting.join()
        for thread in self._threads:
            thread.join()

    # --- connections -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._mutex:
                self._open.add(conn)
            thread = threading.Thread(target=self._serve, args=(conn,), name="fake source", daemon=True)
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()

    def _serve(self, conn: socket.socket) -> None:
        wire = Wire(conn)
        heartbeat_s = 10.0
        try:
            if not wire.greet(self.version, conn.fileno()):
                return
            while packet := wire.read():
                command, body = packet[0], packet[1:]
                if command == _QUIT:
                    return
                if command == _BINLOG_DUMP and body[4] & _NON_BLOCKING:
                    self._short_dump(conn, body[10:].decode(), int.from_bytes(body[:4], "little"))
                    return
                if command == _BINLOG_DUMP:
                    self._dump(conn, body[10:].decode(), int.from_bytes(body[:4], "little"), heartbeat_s)
                    return
                if command == _QUERY:
                    text = body.decode("utf-8", "replace")
                    match = _HEARTBEAT.search(text)
                    heartbeat_s = int(match[1]) / 1e9 if match else heartbeat_s
                    self._answer(wire, text)
                else:
                    wire.write(OK)
        except OSError:
            pass  # the client has disconnected
        finally:
            with self._mutex:
                self._open.discard(conn)
            conn.close()

    def ask(self, text: str) -> Rows | None:
        """Returns the rows that answer a statement; None for OK without rows. Raises UsageError without an answer."""
        self.statements.append(text)
        for answer in reversed(self.answers):
            match = re.search(answer.pattern, text, re.IGNORECASE | re.DOTALL)
            if match is not None:
                return answer.rows(self, match)
        raise UsageError(f"the fake source has no answer to: {text[:200]}")

    def _answer(self, wire: Wire, text: str) -> None:
        try:
            rows = self.ask(text)
        except UsageError as error:
            wire.write(error_packet(1220, error.message, 1)[4:])
            return
        if rows is None:
            wire.write(OK)
        else:
            wire.write_rows(rows)

    # --- dumps

    def _short_dump(self, conn: socket.socket, file: str, pos: int) -> None:
        """Sends the events from a position to the present end, without faults, and then EOF."""
        try:
            if file in self.purged:
                raise UsageError("Could not find first log file name in binary log index file")
            events = self._history.dump(file, pos)
        except UsageError as error:
            conn.sendall(error_packet(1236, error.message, 1))
            return
        packets = numbered_packets(events)
        conn.sendall(b"".join([*packets, len(EOF).to_bytes(3, "little"), bytes([(len(packets) + 1) & 0xFF]), EOF]))

    def _dump(self, conn: socket.socket, file: str, pos: int, heartbeat_s: float) -> None:
        self.dumps.append((file, pos))
        fault = self.next_faults.pop(0) if self.next_faults else self.default_fault
        changed, history, sent, number = self._changed, self._history, 0, 1
        while not self._closing and changed == self._changed:
            try:
                if file in self.purged:
                    raise UsageError("Could not find first log file name in binary log index file")
                events = history.dump(file, pos)
            except UsageError as error:
                conn.sendall(error_packet(1236, error.message, sent + 1))
                return
            if len(events) > sent:
                packets = numbered_packets(events[sent:], number)
                number += sum((1 + len(event)) // 0xFFFFFF + 1 for event in events[sent:])
                for action in [b"".join(packets)] if fault is None or sent else fault.apply(packets):
                    if isinstance(action, Hangup):
                        conn.shutdown(socket.SHUT_WR)
                        return
                    if isinstance(action, Pause):
                        time.sleep(action.seconds)
                    else:
                        conn.sendall(action)
                sent = len(events)
            if self._wait(conn, history, file, pos, sent, heartbeat_s):
                return
            if len(history.dump(file, pos)) == sent:
                conn.sendall(packets_of(history.heartbeat(), number))
                number += 1

    def _wait(self, conn: socket.socket, history: History, file: str, pos: int, sent: int, heartbeat_s: float) -> bool:
        """Waits until the history grows or a heartbeat is due. Returns whether the client has disconnected."""
        until = time.monotonic() + heartbeat_s
        size, files = history.files[-1].size, len(history.files)
        while time.monotonic() < until and not self._closing and self._history is history:
            readable, _, _ = select.select([conn], [], [], min(_LOOK_EVERY_S, heartbeat_s))
            if readable and not conn.recv(1):
                return True
            if (history.files[-1].size, len(history.files)) != (size, files):
                return False
        return False


def _shut(conn: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        conn.shutdown(socket.SHUT_RDWR)


# --- answers to capture's statements ---------------------------------------------------------------------------------


def _none(_: FakeSource, __: re.Match[str]) -> None:
    return None


def _nothing(_: FakeSource, __: re.Match[str]) -> Rows:
    return []


def _variables(source: FakeSource, match: re.Match[str]) -> Rows:
    names = re.findall(r"'([^']*)'", match[1])
    values = {**source.variables, "server_uuid": source.server_uuid, "gtid_executed": source.history.gtids}
    return [{"Variable_name": n.lower(), "Value": values[n.lower()]} for n in names if n.lower() in values]


def _files(source: FakeSource, _: re.Match[str]) -> Rows:
    kept = [file for file in source.history.files if file.name not in source.purged]
    return [{"Log_name": file.name, "File_size": file.size} for file in kept]


def _status(source: FakeSource, _: re.Match[str]) -> Rows:
    end = source.history.end
    return [{"File": end.file, "Position": end.pos, "Executed_Gtid_Set": source.history.gtids}]


def _subset(_: FakeSource, match: re.Match[str]) -> Rows:
    (uuid, number), (source, last) = match[1].split(":"), (match[2] or ":1-0").split(":1-")
    return [{"there": int(uuid == source and int(number) <= int(last))}]


def _columns(source: FakeSource, _: re.Match[str]) -> Rows:
    return [
        {
            "db": "shop", "tab": table, "name": column, "data_type": "int", "column_type": "int", "nullable": "NO",
            "def": None, "extra": "", "charset": None, "coll": None, "comm": "",
        }
        for table, columns in source.tables.items()
        for column in columns
    ]  # fmt: skip


def _keys(source: FakeSource, _: re.Match[str]) -> Rows:
    return [{"db": "shop", "tab": table, "name": columns[0]} for table, columns in source.tables.items()]


def _identity(source: FakeSource, _: re.Match[str]) -> Rows:
    return [{"version": source.version, "comment": "MySQL Community Server", "server_id": source.server_id}]


_ANSWERS = (
    Answer(r"^\s*(SET|ROLLBACK|COMMIT|START TRANSACTION)\b", _none),
    Answer(r"SELECT VERSION\(\) AS version", _identity),
    Answer(r"SHOW GLOBAL VARIABLES (?:WHERE Variable_name IN|LIKE) (.*)", _variables),
    Answer(r"SHOW BINARY LOGS", _files),
    Answer(r"SELECT GTID_SUBSET\('([^']*)', '([^']*)'\)", _subset),
    Answer(r"SHOW (BINARY LOG|MASTER) STATUS", _status),
    Answer(r"CONVERT_TZ\(", lambda _, match: [dict.fromkeys(re.findall(r"AS (o\d+)", match.string), 0)]),
    Answer(r"SELECT t, o FROM .*CONVERT_TZ\(", _nothing),
    Answer(r"UNIX_TIMESTAMP\(SYSDATE\(6\)\)", lambda *_: [{"time_us": time.time_ns() // 1000}]),
    Answer(r"SHOW (REPLICAS|SLAVE HOSTS)", _nothing),
    Answer(r"SHOW (REPLICA|SLAVE|ALL SLAVES) STATUS", _nothing),
    Answer(r"SHOW GLOBAL STATUS WHERE Variable_name IN \(.Slaves_running.", _nothing),
    Answer(r"SELECT CURRENT_USER\(\)", lambda *_: [{"account": "cdc@%"}]),
    Answer(r"SHOW GRANTS", lambda *_: [{"Grants": "GRANT ALL PRIVILEGES ON *.* TO `cdc`@`%`"}]),
    Answer(
        r"FROM information_schema\.TABLES",
        lambda source, _: [
            {
                "db": "shop",
                "tab": table,
                "coll": "utf8mb4_0900_ai_ci",
                "kind": "BASE TABLE",
                "comm": "",
                "engine": "InnoDB",
            }
            for table in source.tables
        ],
    ),
    Answer(r"FROM information_schema\.TABLES .*'rds_configuration'", _nothing),
    Answer(r"FROM information_schema\.TABLES WHERE TABLE_TYPE = 'SEQUENCE'", _nothing),
    Answer(r"FROM information_schema\.TABLES WHERE ENGINE = 'MRG_MyISAM'", _nothing),
    Answer(r"FROM information_schema\.TABLES WHERE CREATE_OPTIONS LIKE '%partitioned%'", _nothing),
    Answer(r"SHOW CREATE TABLE `shop`\.`(\w+)`", lambda _, m: [{"Create Table": f"CREATE TABLE `{m[1]}` (`id` int)"}]),
    Answer(r"FROM information_schema\.COLUMNS", _columns),
    Answer(r"SELECT DISTINCT .* FROM information_schema\.COLUMNS\b.*PRIVILEGES", _nothing),
    Answer(r"FROM information_schema\.STATISTICS", _keys),
    Answer(r"FROM information_schema\.KEY_COLUMN_USAGE", _nothing),
)
