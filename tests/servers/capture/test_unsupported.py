"""Rare events on real servers: compressed transactions and events, XA and tagged GTIDs of other databases do not stop
capture; what cannot be captured of captured tables does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from cdc.base.errors import UnsupportedEventError
from cdc.batches.manifest import ByteRange
from cdc.binlog.entry import Entries, EntryFlag
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.lake.apply.schema.statements import read_statements
from cdc.source.connection import query
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import list_segments
from cdc.testing.servers import HOST, USER, Server
from tests.support.capturing import stored_ids
from tests.support.versions import lacks, status_statement

Database = Callable[[Server], str]


def tagged(tag: str) -> list[str]:
    return [] if lacks("mysql9", "tagged GTIDs") else [f"SET gtid_next = 'AUTOMATIC:{tag}'"]


def is_mysql(server: Server) -> bool:
    return server.kind.name.startswith("mysql")


def position(server: Server) -> tuple[str, int]:
    with server.connect() as conn, conn.cursor() as cursor:
        cursor.execute(status_statement(server))
        row = cursor.fetchone()
    assert row is not None
    return str(row[0]), int(row[1])


def configure(folder: Path, server: Server, db: str, start: tuple[str, int]) -> DestinationConfig:
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    file = folder / "conf" / "shop.yaml"
    flavor = "mysql" if is_mysql(server) else "mariadb"
    file.write_text(
        f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {abs(hash(str(folder))) % 4_000_000_000 + 1}, start: {{file: {start[0]}, pos: {start[1]}}}}}\n"
        f"tables: {{include: ['{db}\\..*']}}\n"
        f"store: {{path: data/store}}\nmeta: {{path: data/meta}}\napply: {{target: ./lake}}\n"
    )
    return load(file)


def compression(server: Server, on: bool) -> list[str]:
    if is_mysql(server):
        if lacks(server, "compressed transactions"):
            return []
        return [f"SET SESSION binlog_transaction_compression = {'ON' if on else 'OFF'}"]
    return ["SET GLOBAL log_bin_compress_min_len = 10", f"SET GLOBAL log_bin_compress = {'ON' if on else 'OFF'}"]


@pytest.fixture
def compressing(server: Server) -> object:
    """Resets the global settings that a test changes."""
    yield None
    if not is_mysql(server):
        server.execute("SET GLOBAL log_bin_compress = OFF", "SET GLOBAL log_bin_compress_min_len = DEFAULT")


def index(config: DestinationConfig) -> Entries:
    return np.concatenate([np.array(IndexFile(segment).entries) for segment in list_segments(config.store.path)])


def executed(entries: Entries) -> dict[str, set[int]]:
    """Returns every GTID in the index, by source and tag (MariaDB: by domain)."""
    result: dict[str, set[int]] = {}
    for entry in entries:
        count, number, source = int(entry["gtid_count"]), int(entry["gtid_number"]), bytes(entry["gtid_source"])
        key = source.hex() + ":" + bytes(entry["gtid_tag"]).decode()
        if int(entry["flags"]) & EntryFlag.GTID_MARIADB:
            key = str(int.from_bytes(source[:4], "little"))
        result.setdefault(key, set()).update(range(number - count + 1, number + 1))
    return {key: numbers for key, numbers in result.items() if numbers}


def servers_gtids(server: Server, before: str) -> dict[str, set[int]]:
    """Returns the GTIDs that the server has executed since ``before``, in the form of :func:`executed`."""
    with server.connect() as conn:
        if not is_mysql(server):
            after = query(conn, "SELECT @@gtid_binlog_pos AS p")[0]["p"]
            first, last = (int(str(text).rsplit("-", 1)[1]) for text in (before, after))
            return {str(after).split("-", 1)[0]: set(range(first + 1, last + 1))}
        with conn.cursor() as cursor:
            cursor.execute("SELECT GTID_SUBTRACT(@@gtid_executed, %s)", (before,))
            row = cursor.fetchone()
    assert row is not None
    result: dict[str, set[int]] = {}
    for gtid_range in str(row[0]).replace("\n", "").split(","):
        source, *parts = gtid_range.strip().split(":")
        tag = ""
        for part in parts:
            if re.match("[a-z_]", part.strip()):
                tag = part.strip()
                continue
            ends = [int(n) for n in part.split("-")]
            key = source.replace("-", "") + ":" + tag
            result.setdefault(key, set()).update(range(ends[0], ends[-1] + 1))
    return result


def gtids_now(server: Server) -> str:
    with server.connect() as conn:
        name = "@@gtid_executed" if is_mysql(server) else "@@gtid_binlog_pos"
        return str(query(conn, f"SELECT {name} AS p")[0]["p"])


def test_other_databases_do_not_stop_capture(
    server: Server, database: Database, tmp_path: Path, compressing: object
) -> None:
    """Compressed, XA and tagged transactions of another database lie between captured ones, also across a rotation."""
    db, other = database(server), database(server)
    start, before = position(server), gtids_now(server)
    text = "REPEAT('text ', 50)"
    server.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v TEXT)",
        f"CREATE TABLE {other}.t (id INT PRIMARY KEY, v TEXT)",
        f"INSERT INTO {db}.t VALUES (1, 'a')",
    )
    server.execute(
        *compression(server, True),
        f"INSERT INTO {other}.t VALUES (1, {text}), (2, {text})",
        f"UPDATE {other}.t SET v = CONCAT(v, 'x')",
        f"CREATE TABLE {other}.u (id INT) COMMENT '{'long ' * 60}'",
        f"DELETE FROM {other}.t",
        "SET SESSION binlog_format = STATEMENT",
        f"INSERT INTO {other}.t VALUES (3, '{'statement ' * 40}')",
        "SET SESSION binlog_format = ROW",
        *compression(server, False),
    )
    server.execute(f"INSERT INTO {db}.t VALUES (2, 'b')")
    # Two XA transactions that end later, one of them compressed if a session can enable that.
    first = server.connect()
    with first.cursor() as cursor:
        for xid, packed in (("'p'", False), ("'q','branch',7", True)):
            for statement in (
                *(compression(server, packed) if is_mysql(server) else ()),
                f"XA START {xid}",
                f"INSERT INTO {other}.t VALUES ({10 + packed}, {text})",
                f"XA END {xid}",
                f"XA PREPARE {xid}",
            ):
                cursor.execute(statement)
            server.execute(f"INSERT INTO {db}.t VALUES ({3 + packed}, 'during')")
            if is_mysql(server):
                first.close()
                first = server.connect()
                cursor = first.cursor()
            else:
                cursor.execute(f"XA {'ROLLBACK' if packed else 'COMMIT'} {xid}")
    first.close()
    server.execute("FLUSH BINARY LOGS", f"INSERT INTO {db}.t VALUES (5, 'c')")
    if is_mysql(server):
        server.execute("XA COMMIT 'p'", "XA ROLLBACK 'q','branch',7")
    # XA in one phase and tagged GTIDs are captured.
    server.execute(
        "XA START 'one'", f"INSERT INTO {db}.t VALUES (6, 'one')", "XA END 'one'", "XA COMMIT 'one' ONE PHASE"
    )
    config = configure(tmp_path, server, db, start)
    Capture(config).run(until_current=True)
    if is_mysql(server):
        server.execute(
            *tagged("towpath_one"),
            f"INSERT INTO {other}.t VALUES (20, 'tag')",
            f"INSERT INTO {other}.t VALUES (21, 'tag'), (22, 'tag')",
            f"INSERT INTO {other}.t VALUES (23, 'tag')",
            f"INSERT INTO {db}.t VALUES (7, 'tag')",
            *tagged("other"),
            *compression(server, True),
            f"INSERT INTO {other}.t VALUES (24, {text})",
        )
    Capture(config).run(until_current=True)
    server.execute(f"INSERT INTO {db}.t VALUES (8, 'end')")
    Capture(config).run(until_current=True)
    wanted = [1, 2, 3, 4, 5, 6, *([7] if is_mysql(server) else []), 8]
    assert stored_ids(config, f"{db}.t") == wanted
    assert executed(index(config)) == servers_gtids(server, before)
    if is_mysql(server):
        tags = {bytes(tag).decode() for tag in index(config)["gtid_tag"]}
        assert tags == ({"", "towpath_one", "other"} if tagged("other") else {""})
    # Each run reads the last stored transaction again and continues after it.
    server.execute(f"INSERT INTO {db}.t VALUES (9, 'again')")
    Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == [*wanted, 9]


CAPTURED = {
    "statement": (
        ["SET SESSION binlog_format = STATEMENT", "INSERT INTO {db}.t VALUES (2, 'b')"],
        r"the statement changes {db}\.t, and the binlog has its text",
    ),
    "image": (
        ["SET SESSION binlog_row_image = MINIMAL", "DELETE FROM {db}.t WHERE id = 1"],
        r"rows of {db}\.t \(DELETE_ROWS.* hold only some of its columns",
    ),
}


@pytest.mark.parametrize("case", CAPTURED)
def test_captured_tables_stop_capture_and_the_printed_position_continues(
    server: Server, database: Database, tmp_path: Path, case: str
) -> None:
    db, other = database(server), database(server)
    start = position(server)
    server.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v TEXT)",
        f"CREATE TABLE {other}.t (id INT PRIMARY KEY, v TEXT)",
        f"INSERT INTO {db}.t VALUES (1, 'a')",
    )
    run, words = CAPTURED[case]
    server.execute(*[s.format(db=db, other=other) for s in run])
    server.execute(f"INSERT INTO {db}.t VALUES (3, 'c')")
    config = configure(tmp_path / "one", server, db, start)
    for _ in range(2):  # the second run stops at the same event
        with pytest.raises(UnsupportedEventError, match=words.format(db=db)) as caught:
            Capture(config).run(until_current=True)
        assert stored_ids(config, f"{db}.t") == [1]
    printed = re.search(r"\(source\.start: (\{file: .*?, pos: \d+\})\)", str(caught.value))
    assert printed is not None
    place = yaml.safe_load(printed[1])
    continued = configure(tmp_path / "two", server, db, (place["file"], place["pos"]))
    Capture(continued).run(until_current=True)
    assert stored_ids(continued, f"{db}.t") == [3]


def test_a_compressed_ddl_of_a_captured_table_is_captured(
    mariadb11: Server, database: Database, tmp_path: Path
) -> None:
    db = database(mariadb11)
    start = position(mariadb11)
    mariadb11.execute("SET GLOBAL log_bin_compress_min_len = 10", "SET GLOBAL log_bin_compress = ON")
    try:
        mariadb11.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v TEXT) COMMENT '{'long ' * 60}'")
    finally:
        mariadb11.execute("SET GLOBAL log_bin_compress = OFF", "SET GLOBAL log_bin_compress_min_len = DEFAULT")
    config = configure(tmp_path, mariadb11, db, start)
    Capture(config).run(until_current=True)
    mariadb11.execute(f"INSERT INTO {db}.t VALUES (1, 'a')")
    Capture(config).run(until_current=True)  # rereads the stored statement
    entries = index(config)
    assert [int(n) & EntryFlag.DDL for n in entries["flags"][entries["length"] > 0]] == [EntryFlag.DDL, 0]
    stored = entries[entries["length"] > 0][0]
    [segment, *_] = list_segments(config.store.path)
    part = ByteRange(path=str(segment), offset=int(stored["offset"]), length=int(stored["length"]))
    [parsed] = read_statements((part,), ignores_case=False)
    assert parsed.sql.startswith(f"CREATE TABLE {db}.t") and parsed.statement.tables == ((db, "t"),)
    assert stored_ids(config, f"{db}.t") == [1]


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_merge_table_over_a_captured_table_stops_capture(
    server: Server, database: Database, tmp_path: Path, is_captured: bool
) -> None:
    """Created while capture runs, in the captured database or in another one, and gone when capture looks."""
    db, other = database(server), database(server)
    start = position(server)
    columns = "(id INT NOT NULL, v INT, KEY (id))"
    merge = f"{db if is_captured else other}.mg"
    server.execute(
        f"CREATE TABLE {db}.t {columns} ENGINE = MyISAM",
        f"INSERT INTO {db}.t VALUES (1, 1)",
        f"CREATE TABLE {other}.x AS SELECT 1 AS merge UNION (SELECT 2)",
        f"CREATE TABLE {merge} {columns} ENGINE = MERGE UNION = ({db}.t) INSERT_METHOD = LAST",
        f"INSERT INTO {merge} VALUES (2, 2)",
        f"DROP TABLE {merge}",
    )
    config = configure(tmp_path, server, db, start)
    with pytest.raises(UnsupportedEventError, match=rf"the rows of .*{db}\.t change through a MERGE table"):
        Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == [1]
