"""The table of event types says what the framing loop does: one event of every type is sent through it, in a transaction
of a captured table and in one of another table."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import UnsupportedEventError
from cdc.binlog import events
from cdc.binlog import frame_state as k
from cdc.binlog.constants import ROW_EVENTS, EventType, type_name
from cdc.binlog.event_types import BY_TYPE, TABLE, Treatment
from cdc.binlog.file import BinlogFile
from cdc.binlog.framer import Decision, Framer
from cdc.binlog.positions import make_seq
from cdc.capture.statement_filter import StatementFilter
from cdc.config import TablesConfig
from cdc.store.formats.state import TableNumbers
from cdc.testing.binlog import BinlogBuilder
from tests.support.framing import CollectingHooks, feed, rows_of
from tests.support.rare_events import compressed_query, inner, payload_body, tagged, xa_prepare

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
BEGINNINGS = (EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID)


class Hooks(CollectingHooks):
    """Decides as capture does, about the tables of the database ``shop``."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._filter = StatementFilter(TablesConfig(include=(r"shop\..*",)), TableNumbers(folder))
        self.described: list[int] = []
        """The types of the events that describe the file or the stream."""

    def table(self, db: str, table: str) -> int | None:
        assert self.framer is not None
        return self._filter.table(db, table, self.framer.event(), has_checksum=bool(self.framer.st.has_crc))

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        assert self.framer is not None
        decision, ends = self._filter.statement(query, self.framer.where)
        if ends:
            self.framer.st.tx_begin = 0
        return decision

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        self.described.append(EventType.FORMAT_DESCRIPTION)

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        assert self.framer is not None
        if artificial:
            self.framer.start_file("binlog.000001", 4, make_seq(0, 1, 0))
        else:
            self.described.append(EventType.ROTATE)

    def set_statement_end(self, offset: int, length: int) -> int:
        raise AssertionError("nothing was stored")


def begin(log: BinlogBuilder, number: int) -> bytes:
    """Appends the beginning of a transaction by an event of this type, which is returned."""
    if number == EventType.GTID_TAGGED:
        return log.event(number, tagged(b"tag", 1, 1))
    if number == EventType.MARIADB_GTID:
        return log.event(number, struct.pack("<QIB", 1, 0, 0) + bytes(6))
    event = log.gtid()
    if number == EventType.ANONYMOUS_GTID:
        log.events[-1] = event = events.with_checksum(event[:4] + bytes([number]) + event[5:])
    return event


def change(log: BinlogBuilder, number: int, db: str) -> bytes | None:
    """Appends a whole transaction that changes ``db.orders`` with an event of this type, which is returned; None if the
    type does not change rows or definitions."""
    if number in (EventType.QUERY, EventType.MARIADB_QUERY_COMPRESSED):
        log.gtid()
        sql = f"ALTER TABLE {db}.orders ADD c INT"
        log.query(sql, db) if number == EventType.QUERY else compressed_query(log, sql)
        return log.events[-1]
    if number == EventType.TRANSACTION_PAYLOAD:
        log.gtid()
        return log.event(number, payload_body(inner(db=db, table="orders")))
    if number not in {*ROW_EVENTS, EventType.EXECUTE_LOAD_QUERY, EventType.XA_PREPARE}:
        return None
    log.gtid()
    log.query("XA START X'6162',X'',1" if number == EventType.XA_PREPARE else "BEGIN", db)
    if number == EventType.EXECUTE_LOAD_QUERY:
        head = struct.pack("<IIBHH", 1, 0, len(db), 0, 0) + bytes(13) + db.encode() + b"\0"
        event = log.event(number, head + b"LOAD DATA INFILE 'x' INTO TABLE orders")
        log.xid()
        return event
    log.table_map(db, "orders")
    if number == EventType.XA_PREPARE:
        log.rows(db, "orders", [1])
        log.query("XA END X'6162',X'',1", db)
        xa_prepare(log, one_phase=True)
        return log.events[-1]
    is_update = number in (24, 31, 39, 167, 170)
    extra = b"\2\0" if 30 <= number < 160 or number >= EventType.MARIADB_WRITE_ROWS_COMPRESSED else b""
    rows = b"\1" + (b"\xff\xff" if is_update else b"\xff") + bytes(10 if is_update else 5)
    table_id = 100 if db == "shop" else 101  # shop.orders came first
    event = log.event(number, table_id.to_bytes(6, "little") + b"\1\0" + extra + rows)
    log.xid()
    return event


def binlog_with(number: int, db: str, *, inside: bool) -> tuple[BinlogBuilder, bytes]:
    """Returns a binlog with an event of this type, and the event. ``inside``: a type that can stand anywhere stands in
    the transaction of ``db.orders``, else before it."""
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    if number in (EventType.ROTATE, EventType.FORMAT_DESCRIPTION):
        if number == EventType.FORMAT_DESCRIPTION:
            return log, log.format_description()
        return log, log.event(number, struct.pack("<Q", 4) + b"binlog.000002")
    event = change(log, number, db)
    if event is not None:
        return log, event
    anywhere = number not in (EventType.TABLE_MAP, EventType.XID, *BEGINNINGS)
    body = b"\1\0\3why" + bytes(30)  # an INCIDENT with a message
    event_by_type: dict[int, bytes] = {}
    if anywhere and not inside:
        event_by_type[number] = log.event(number, body)
    first = number if number in BEGINNINGS else EventType.GTID
    event_by_type[first] = begin(log, first)
    log.query("BEGIN", db)
    if anywhere and inside:
        event_by_type[number] = log.event(number, body)
    event_by_type[EventType.TABLE_MAP] = log.table_map(db, "orders")
    log.rows(db, "orders", [2])
    event_by_type[EventType.XID] = log.xid()
    return log, event_by_type[number]


def outcome(number: int, db: str, folder: Path, *, inside: bool) -> str:
    """Frames an event of this type and returns what became of it: ``stored``, ``read``, ``unpacked``, ``dropped`` or the
    message with which framing stopped."""
    log, event = binlog_with(number, db, inside=inside)
    hooks = Hooks(folder)
    src = np.zeros(1 << 16, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True, out_bytes=1 << 20)
    try:
        feed(framer, src, hooks, log.packets, piece=1 << 12, flush_always=False)
    except UnsupportedEventError as error:
        return str(error)
    assert log.events[4] in bytes(hooks.out), "the transaction before it is kept"
    if hooks.described[1:] or hooks.described == [EventType.ROTATE]:
        return "read"
    if event in bytes(hooks.out):
        return "stored"
    payload = number == EventType.TRANSACTION_PAYLOAD
    return "unpacked" if payload and int(rows_of(hooks)[:, k.R_ROW_EVENTS].sum()) == 2 else "dropped"


def treatment_by_kernel(number: int, folder: Path, *, inside: bool) -> tuple[Treatment, str]:
    """Returns what the framing loop does with an event type, and the message if it stops for captured tables."""
    captured = outcome(number, "shop", folder, inside=inside)
    other = outcome(number, "other", folder, inside=inside)
    stops = "binlog.000001" in captured
    if stops:
        return (Treatment.STOPS if "binlog.000001" in other else Treatment.CONDITIONAL), captured
    if captured == "read":
        return Treatment.READ, ""
    if captured in ("stored", "unpacked"):
        assert other == "dropped", "nothing of another table's transaction is kept"
        return Treatment.STORED if captured == "stored" else Treatment.UNPACKED, ""
    assert other == "dropped"
    return Treatment.SKIPPED, ""


@pytest.mark.parametrize("inside", [True, False])
def test_the_framing_loop_does_what_the_table_says(tmp_path: Path, inside: bool) -> None:
    for number in range(256):
        info = BY_TYPE.get(number)
        treatment, message = treatment_by_kernel(number, tmp_path, inside=inside)
        assert treatment == (Treatment.STOPS if info is None else info.treatment), type_name(number)
        if treatment is Treatment.STOPS:
            assert type_name(number) in message and re.search(r"binlog\.000001, behind \d+", message), message
            assert info is None or info.reason in message or "says that it lost events here" in message
            assert info is not None or "which Towpath does not know" in message


def test_the_message_of_an_incident_is_the_servers(tmp_path: Path) -> None:
    assert "events were lost (1): why" in outcome(EventType.INCIDENT, "other", tmp_path, inside=False)


def test_every_type_has_one_row_and_a_name() -> None:
    assert [info.type for info in TABLE] == sorted(EventType)
    assert all(info.reason and not info.reason.endswith(".") for info in TABLE)
    # A type that no supported server writes cannot be in a binlog that is captured.
    assert {info.treatment for info in TABLE if not info.mysql and not info.mariadb} == {Treatment.STOPS}


@pytest.mark.parametrize(
    ("file", "last"),
    [
        ("decode-types-mysql56-v1.binlog", EventType.PREVIOUS_GTIDS),
        ("decode-types-mysql9-v1.binlog", EventType.GTID_TAGGED),
        ("decode-types-mariadb10-v1.binlog", EventType.MARIADB_DELETE_ROWS_COMPRESSED),
        ("decode-types-mariadb11-v1.binlog", EventType.MARIADB_DELETE_ROWS_COMPRESSED),
    ],
)
def test_the_servers_know_no_type_that_the_table_lacks(file: str, last: EventType) -> None:
    """A format description has one byte for each type that its server knows, which is 0 also for types without a fixed
    part."""
    description = BinlogFile.open(GOLDEN / file).description
    lengths = description.post_header_lengths
    assert len(lengths) == last
    column = "mariadb" if description.flavor == "mariadb" else "mysql"
    for number, length in enumerate(lengths, start=1):
        if length:
            assert number in BY_TYPE, number
    for info in TABLE:
        if getattr(info, column):
            assert info.type <= last or "9.x" in info.mysql or info.mariadb.startswith("12"), info


@pytest.mark.parametrize(("server", "is_old"), [("5.5.62-log", True), ("5.0.96", True), ("5.5.68-MariaDB", False)])
def test_binlogs_of_servers_before_mysql_5_6_are_too_old(server: str, is_old: bool) -> None:
    """Their format description ends without a checksum algorithm, and so looked damaged."""
    body = struct.pack("<H50sIB", 4, server.encode(), 1_400_000_000, 19) + bytes(27) + bytes(0 if is_old else 5)
    header = struct.pack("<IBIIIH", 1_400_000_000, 15, 1, 19 + len(body), 4 + 19 + len(body), 0)
    if not is_old:
        assert events.parse_format_description(header + body).server_version == server
        return
    with pytest.raises(UnsupportedEventError, match=rf"of MySQL {server}, which is too old\. MySQL 5\.6 and"):
        events.parse_format_description(header + body)
