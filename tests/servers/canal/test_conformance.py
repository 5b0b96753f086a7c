"""The answers of ``cdc server`` and those of Canal's own server for the same binlog, field by field.

Every difference has to be one of those that ``docs/formats/canal.md`` lists, and each of those has to occur.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.canal import RunningPeer, canal_server, enable_canal, peer_server
from cdc.canal import packets as p
from cdc.canal.fields import data
from cdc.connector import connect
from cdc.testing.servers import Server
from tests.support.canal_client import Batch, RawClient
from tests.support.canal_compare import Difference, all_entries, differences, refusal
from tests.support.canal_proto import parsed
from tests.support.canal_shop import capture, write_shop
from tests.support.type_matrix.catalog import read_catalog
from tests.support.type_matrix.plan import tables
from tests.support.type_matrix.workload import create, run

CHARSETS = ("utf8mb4", "utf8", "latin1", "gbk", "binary")

STATEMENTS = """
CREATE TABLE shop.orders (id INT UNSIGNED PRIMARY KEY, shop_id SMALLINT, note VARCHAR(40), price DECIMAL(10,2), at DATETIME) CHARACTER SET utf8mb4
CREATE TABLE shop.items (shop_id INT, item CHAR(8), amount DOUBLE, PRIMARY KEY (shop_id, item)) COMMENT 'two columns'
CREATE TABLE shop.log (line TEXT) ENGINE=MyISAM
INSERT INTO shop.orders VALUES (1, 7, 'first', 1.25, '2024-02-29 12:00:00'), (2, NULL, NULL, NULL, NULL), (4000000000, -3, '', -0.01, NULL)
BEGIN
UPDATE shop.orders SET note = 'zwölf €', price = NULL WHERE id = 1
UPDATE shop.orders SET id = 3 WHERE id = 2
INSERT INTO shop.items VALUES (1, 'a', 1.5), (1, 'b', 1e300), (2, 'a', -0.1)
DELETE FROM shop.items WHERE item = 'b'
UPDATE shop.items SET amount = amount WHERE shop_id = 2
COMMIT
INSERT INTO shop.log VALUES ('without transactions'), (NULL)
DELETE FROM shop.log
ALTER TABLE shop.orders ADD COLUMN colour VARCHAR(10) DEFAULT 'red'
UPDATE shop.orders SET colour = 'blue' WHERE id = 3
CREATE INDEX by_note ON shop.orders (note)
DROP INDEX by_note ON shop.orders
ALTER TABLE shop.orders ADD INDEX by_price (price)
ALTER TABLE shop.orders DROP INDEX by_price
RENAME TABLE shop.items TO shop.goods
INSERT INTO shop.goods VALUES (9, 'z', 0)
ALTER TABLE shop.goods RENAME TO shop.items
TRUNCATE TABLE shop.items
REPLACE INTO shop.orders VALUES (1, 8, 'replaced', 2.5, NULL, NULL)
DELETE FROM shop.orders
DROP TABLE shop.items
"""
"""One a line. Canal asks the source for a table's columns, so each statement is read before the next one runs."""

TRANSACTIONS = 60
"""The number of transactions, of 1 to 40 rows each, whose batches are compared."""


# Entries and batches ---------------------------------------------------------------------------------------------------


class Pair:
    """A source, Canal's own server at the position at which its history begins, and Towpath's configuration for it."""

    def __init__(self, server: Server, peer: RunningPeer, file: Path) -> None:
        self.server, self.peer, self.file = server, peer, file

    def capture(self) -> None:
        capture(self.file)

    def theirs(self, quiet_s: float) -> list[Any]:
        """The entries that Canal's server has, without those of statements that make no entry here."""
        with client(self.peer.port) as connection:
            return [
                entry for batch in all_entries(connection, quiet_s=quiet_s) for entry in batch if not is_left_out(entry)
            ]

    def ours(self) -> list[Any]:
        self.capture()
        with canal_server(self.file.parent, self.file.parent / "server.log") as (_, port), client(port) as connection:
            return [entry for batch in all_entries(connection, quiet_s=0.3) for entry in batch]


def client(port: int) -> RawClient:
    return RawClient(port).login().subscribe(r"shop\..*")


def is_left_out(entry: Any) -> bool:
    """Whether this is a statement of a temporary table, or one of databases."""
    return entry.entry_type == 2 and (b" TEMPORARY TABLE " in entry.store_value or b" DATABASE " in entry.store_value)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    program = peer_server()
    if program.missing:
        pytest.skip(program.missing)
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql56", options=getattr(request, "param", ())))
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.rows (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(2000))",
        )
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            start = cursor.fetchall()[0][:2]
        file = write_shop(tmp_path, server, "shop")
        enable_canal(file)
        capture(file)
        peer = stack.enter_context(RunningPeer(program, server, (str(start[0]), int(start[1])), tmp_path / "peer.log"))
        yield Pair(server, peer, file)


Known = dict[str, Callable[[Difference], bool]]

# Differences -----------------------------------------------------------------------------------------------------------


def compared(theirs: list[Any], ours: list[Any], expected: Known) -> None:
    """Asserts that entries differ in nothing but in known differences, and that each of these occurs."""
    assert [(entry.entry_type, entry.header.logfile_offset) for entry in ours] == [
        (entry.entry_type, entry.header.logfile_offset) for entry in theirs
    ]
    seen = set()
    unknown = []
    for left, right in zip(theirs, ours, strict=True):
        for difference in differences(left, right):
            names = [name for name, covers in expected.items() if covers(difference)]
            seen.update(names)
            if not names:
                where = "" if difference.column is None else f" {difference.column.name} {difference.column.mysql_type}"
                unknown.append(
                    f"{difference.field} of {right.header.table_name}{where}: {difference.theirs!r}, ours {difference.ours!r}"
                )
    assert not unknown, "\n".join(unknown[:20])
    assert seen == set(expected), f"these do not occur: {set(expected) - seen}"


def kind_of(difference: Difference) -> str:
    return "" if difference.column is None else str(difference.column.mysql_type).partition("(")[0].partition(" ")[0]


def is_gtid(difference: Difference) -> bool:
    """Canal names GTIDs only if it follows the source by them."""
    if difference.field == "header.gtid":
        return not difference.theirs and ":" in difference.ours
    return difference.field == "header.props" and difference.theirs == [
        pair for pair in difference.ours if pair[0] != "curtGtid"
    ]


def is_binary(difference: Difference) -> bool:
    return (
        difference.field == "column.value"
        and kind_of(difference) == "binary"
        and difference.ours.rstrip("\0") == difference.theirs
    )


def is_decimal(difference: Difference) -> bool:
    """Zeros at the end of the fraction that Canal leaves out."""
    if difference.field != "column.value" or kind_of(difference) != "decimal":
        return False
    return (
        "." in difference.theirs
        and difference.ours.startswith(difference.theirs)
        and not difference.ours[len(difference.theirs) :].strip("0")
    )


def is_float(difference: Difference) -> bool:
    """Java has written some numbers with a digit more than needed up to version 18."""
    return difference.field == "column.value" and (difference.theirs, difference.ours) == (
        "1.17549435E-38",
        "1.1754944E-38",
    )


def is_name(difference: Difference) -> bool:
    return difference.field == "column.name" and difference.theirs == difference.ours.replace("`", "``")


# Tests -----------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_values_of_every_type(pair: Pair) -> None:
    with pair.server.connect() as connection:
        catalog = read_catalog(connection, "shop")
        catalog = replace(catalog, charsets={name: catalog.charsets[name] for name in CHARSETS})
        created = tables(connection, catalog)
        create(connection, "shop", created)
        run(connection, "shop", created)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'shop'"
                " AND CHARACTER_SET_NAME NOT IN ('utf8', 'utf8mb4')"
            )
            others = {(str(table), str(column)) for table, column in cursor.fetchall()}

    def is_charset(difference: Difference) -> bool:
        """Canal reads all texts as UTF-8."""
        if difference.column is None or difference.field not in ("column.value", "column.updated"):
            return False
        return (difference.entry.header.table_name, difference.column.name) in others

    def is_unparsed(difference: Difference) -> bool:
        """Canal cannot read a CREATE TABLE with a character set of BINARY."""
        return "BINARY" in parsed_sql(difference.entry) and difference.theirs in (7, (7, True), "", "shop")

    expected: Known = {
        "GTID": is_gtid,
        "BINARY": is_binary,
        "DECIMAL": is_decimal,
        "FLOAT": is_float,
        "backticks": is_name,
        "character sets": is_charset,
        "statements": is_unparsed,
    }
    compared(pair.theirs(quiet_s=3), pair.ours(), expected)


def parsed_sql(entry: Any) -> str:
    return str(parsed("RowChange", entry.store_value).sql) if entry.entry_type == 2 else ""


@pytest.mark.long
def test_statements_and_transactions(pair: Pair) -> None:
    theirs = []
    with pair.server.connect() as connection, connection.cursor() as cursor:
        inside = False
        for statement in STATEMENTS.strip().splitlines():
            cursor.execute(statement)
            inside = statement == "BEGIN" or (inside and statement != "COMMIT")
            if not inside:
                pair.capture()
                theirs += pair.theirs(quiet_s=0.3)
    compared(theirs, pair.ours(), {"GTID": is_gtid})


# Without GTIDs, which entries have here and not with Canal: they count for a batch's size.
@pytest.mark.long
@pytest.mark.parametrize("pair", [("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")], indirect=True)
def test_batches_and_errors(pair: Pair) -> None:
    with pair.server.connect() as connection, connection.cursor() as cursor:
        for number_ in range(TRANSACTIONS):
            cursor.execute("BEGIN")
            for row in range(number_ % 7 + 1):
                rows = ", ".join(f"('{'x' * (number_ * 31 % 1999)}')" for _ in range(row * 5 + 1))
                cursor.execute(f"INSERT INTO shop.rows (note) VALUES {rows}")
            cursor.execute("COMMIT")
    theirs = conversation(pair.peer.port)
    pair.capture()
    with canal_server(pair.file.parent, pair.file.parent / "server.log") as (_, port):
        ours = conversation(port)
    assert ours == theirs


@pytest.mark.long
def test_the_python_connector_reads_from_canals_server(pair: Pair) -> None:
    pair.server.execute(*(f"INSERT INTO shop.rows (note) VALUES ('{number}')" for number in range(50)))
    notes: list[str | None] = []
    with connect(f"127.0.0.1:{pair.peer.port}", "shop", client_id=7) as connector:
        connector.subscribe(r"shop\.rows")
        first = connector.get_without_ack(1, timeout_s=20)
        connector.rollback()
        deadline = time.monotonic() + 30
        while len(notes) < 50 and time.monotonic() < deadline:
            batch = connector.get_without_ack(10, timeout_s=1)
            if batch:
                notes += [row.new["note"] for entry in batch.entries for row in entry.rows]
                connector.ack(batch.id)
    assert first.entries
    assert notes == [str(number) for number in range(50)]


def conversation(port: int) -> list[Any]:
    """Returns a server's answers to right and wrong requests: positions and numbers of entries, codes of errors."""
    seen: list[Any] = []
    with RawClient(port) as connection:
        connection.login()
        connection.ask()
        seen.append(("get without subscription", refusal(connection)[0]))
        connection.ack(5)
        seen.append(("ack without subscription", refusal(connection)[0]))
        for kind in (p.SUBSCRIPTION, p.UNSUBSCRIPTION, p.GET, p.CLIENT_ACK, p.CLIENT_ROLLBACK):
            connection.send(kind, data(1, "shop"))
            seen.append(("no client id", kind, refusal(connection)[0]))
        connection.send(p.SUBSCRIPTION, data(1, "other") + data(2, "1001"))
        seen.append(("unknown destination", refusal(connection)[0]))
        connection.send(42, data(1, "shop"))
        seen.append(("unknown packet", refusal(connection)[0]))
    with client(port) as connection:
        entries = [entry for batch in read_ahead(connection) for entry in batch]
        seen.append(("everything", len(entries), entries[-1].header.logfile_offset))
        connection.rollback()
        for size in (1, 2, 7):  # larger ones may end later here, since Canal writes fields that are zero
            batches = [connection.get(size) for _ in range(6)]
            seen.append(("batches", size, [shape(batch) for batch in batches]))
            connection.rollback()
        a, b, c = (connection.get(3) for _ in range(3))
        connection.ack(b.id)
        seen.append(("ack of the second batch", refusal(connection)[0]))
        connection.ack(c.id + 1000)
        seen.append(("ack of an unknown batch", refusal(connection)[0]))
        connection.ack(0)
        seen.append(("ack of batch 0", refusal(connection)[0]))
        connection.ack(-1)
        connection.ack(a.id)
        connection.ack(a.id)
        seen.append(("ack of an acked batch", refusal(connection)[0]))
        connection.rollback(c.id + 1000)
        seen.append(("rollback of an unknown batch", refusal(connection)[0]))
        connection.rollback(b.id)
        repeated = connection.get(3)
        seen.append(("rollback of the first batch", shape(repeated) == shape(b), shape(repeated)))
        connection.ack(repeated.id)
    with client(port) as connection:
        seen.append(("after a new connection", shape(connection.get(3))))
        connection.rollback()
        read_ahead(connection)
        seen.append(("get of nothing", connection.get(10).id, connection.get(10, timeout_ms=50).id))
        connection.rollback()
        connection.unsubscribe()
        connection.ask()
        seen.append(("get after the end of the subscription", refusal(connection)[0]))
    return seen


def read_ahead(connection: RawClient) -> list[list[Any]]:
    """The entries that a client gets without an ack, until none has come for a second."""
    batches: list[list[Any]] = []
    last = time.monotonic()
    while time.monotonic() - last < (1 if batches else 10):
        batch = connection.get(1000)
        if batch.entries:
            batches.append(batch.entries)
            last = time.monotonic()
        else:
            time.sleep(0.05)
    return batches


def shape(batch: Batch) -> tuple[int, list[int]]:
    """The position of a batch's first entry, and the types of all."""
    return batch.entries[0].header.logfile_offset, [entry.entry_type for entry in batch.entries]
