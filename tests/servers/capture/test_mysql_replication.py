"""Streams that the library mysql-replication reads wrongly, and Towpath rightly: the same real server, read by both. A
test fails when a newer version of the library is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import COMMAND
from pymysqlreplication.event import GtidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from cdc.base.errors import UnsupportedEventError
from cdc.binlog.positions import BinlogPosition
from cdc.capture import Capture
from cdc.config import SourceConfig
from cdc.decode.reader import DecodeOptions, read
from cdc.source.dump import DumpStream
from cdc.testing.servers import Server
from tests.servers.capture.test_capture import configure, kill_dump_threads, position
from tests.servers.capture.test_compressed import PACKED, Compression, event_types, new_file
from tests.support.capturing import capturing, stored_ids
from tests.support.failovers import wait_for
from tests.support.proxy import Proxy
from tests.support.servers_mysql_replication import assert_still_wrong, peer_rows, peer_stream
from tests.support.versions import needs

ON_MARIADB = pytest.mark.parametrize("kind", ["mariadb10", "mariadb11"])
ON_ALL = pytest.mark.parametrize(
    "kind",
    ["mysql9", "mariadb11", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mysql56", "mariadb10"))],
)
ROWS = [WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent]


@contextmanager
def table(kind: str) -> Iterator[Server]:
    """A server of its own, with the empty table ``d.t``."""
    with Server(kind) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v TEXT)")
        yield server


def insert(server: Server, *ids: int, before: str = "DO 0") -> None:
    """Inserts rows into ``d.t``, each in a transaction of its own."""
    server.execute(before, *[f"INSERT INTO d.t VALUES ({n}, REPEAT('text ', 100))" for n in ids])


def executed(server: Server) -> str:
    """The GTIDs of all transactions of a server."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT @@gtid_current_pos" if server.kind.name.startswith("maria") else "SELECT @@gtid_executed"
        )
        row = cursor.fetchone()
    assert row is not None
    return str(row[0]).replace("\n", "")


# --- where a stream begins, and where it continues


@ON_MARIADB
def test_a_file_and_position_of_mariadb(kind: str, tmp_path: Path) -> None:
    """With ``is_mariadb`` the library ignores them, and reads the binlog from its oldest file on."""
    with table(kind) as server:
        insert(server, 1, 2)
        config = configure(tmp_path, server, "d", start=position(server))
        match = re.search(r"file: (\S+), pos: (\d+)", position(server))
        assert match is not None
        insert(server, 3)
        options: dict[str, Any] = {
            "log_file": match[1],
            "log_pos": int(match[2]),
            "resume_stream": True,
            "is_mariadb": True,
        }
        with closing(peer_stream(server, only_events=ROWS, only_schemas=["d"], **options)) as stream:
            theirs = [row["values"]["id"] for event in stream for row in event.rows]
        Capture(config).run(until_current=True)
        assert stored_ids(config, "d.t") == [3]
        assert_still_wrong(theirs, [1, 2, 3], [3])


@ON_ALL
def test_a_connection_that_breaks_in_a_stream_by_gtids(kind: str, tmp_path: Path) -> None:
    """The library asks again for what it asked for at first, and delivers the rows since then twice."""
    with table(kind) as server:
        config = configure(tmp_path, server, "d", start="now")
        Capture(config).run(until_current=True)
        begin = executed(server)
        insert(server, 1, 2)
        options: dict[str, Any] = {"auto_position": begin, "is_mariadb": kind.startswith("maria"), "blocking": True}
        theirs: list[int] = []
        with closing(peer_stream(server, only_events=ROWS, only_schemas=["d"], **options)) as stream:
            ids = (next(iter(row["values"].values())) for event in stream for row in event.rows)  # 5.6: without names
            theirs += islice(ids, 2)
            assert kill_dump_threads(server)
            insert(server, 3)
            for number in ids:
                theirs.append(number)
                if number == 3:
                    break
        assert_still_wrong(theirs, [1, 2, 1, 2, 3], [1, 2, 3])

        with capturing(config):
            wait_for("rows 1 to 3 are captured", lambda: stored_ids(config, "d.t") == [1, 2, 3])
            wait_for("capture has a dump thread", lambda: kill_dump_threads(server))
            insert(server, 4)
            wait_for("row 4 is captured", lambda: 4 in stored_ids(config, "d.t"))
        assert stored_ids(config, "d.t") == [1, 2, 3, 4]


@ON_MARIADB
def test_the_request_for_a_stream_by_gtids(kind: str, request: pytest.FixtureRequest) -> None:
    """The library's packet has a byte more than its header says. The server takes the byte for the beginning of another
    request, and the connection of a long read may be reset."""
    server: Server = request.getfixturevalue(kind)
    begin = bytes([COMMAND.COM_BINLOG_DUMP]) + bytes.fromhex("04000000 0000")  # position and flags
    with Proxy(server.port, record=True) as proxy:
        options: dict[str, Any] = {"is_mariadb": True, "auto_position": executed(server), "blocking": True}
        with closing(peer_stream(server, port=proxy.port, **options)) as stream:
            next(iter(stream))
            dump, behind = dump_request(proxy)
        assert dump + behind == begin + (424_242).to_bytes(4, "little") + bytes(4)
        assert_still_wrong(len(behind), 1, 0)

    with Proxy(server.port, record=True) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        source = SourceConfig(url=url, server_id=41_000_017, password_env="TOWPATH_TEST_PASSWORD", ssl_mode="disabled")
        with closing(DumpStream(source, BinlogPosition("binlog.000001", 4), "towpath-test")) as ours:
            assert ours.recv_into(memoryview(bytearray(1000)))
            dump, behind = dump_request(proxy)
        assert dump == begin + (41_000_017).to_bytes(4, "little") + b"binlog.000001"
        assert behind == b""


def dump_request(proxy: Proxy) -> tuple[bytes, bytes]:
    """The body of the dump request that a client has sent, and the bytes behind it."""
    for sent in proxy.requests:
        data = bytes(sent)
        while len(data) >= 4:
            size = int.from_bytes(data[:3], "little")
            body, data = data[4 : 4 + size], data[4 + size :]
            if body[0] == COMMAND.COM_BINLOG_DUMP and len(body) > 10:
                return body, data
    raise AssertionError("no client has requested a dump")


# --- what the events of a stream say


def test_compressed_changes(server: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    """The library leaves out what is compressed, and says nothing."""
    db = database(server)
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v TEXT)")
    start, file = new_file(server)
    config = configure(tmp_path, server, db, start=start)
    text = "REPEAT('text ', 100)"
    server.execute(f"INSERT INTO {db}.t VALUES (1, {text})")
    with Compression(server):
        server.execute(
            f"INSERT INTO {db}.t VALUES (2, {text})",
            f"UPDATE {db}.t SET id = id + 10 ORDER BY id DESC",
            f"DELETE FROM {db}.t WHERE id = 11",
        )
    server.execute(f"INSERT INTO {db}.t VALUES (3, {text})")
    assert PACKED[server.kind.name] <= event_types(file)
    assert_still_wrong([row["id"] for row in peer_rows(server, file.name, db)], [1, 3], [1, 2, 11, 12, 3])
    Capture(config).run(until_current=True)
    options = DecodeOptions(images="both")
    ours = [row for batch in read(config.store.path, table=f"{db}.t", options=options) for row in batch.to_pylist()]
    assert [(row["_op"], row["id"]) for row in ours] == [(1, 1), (1, 2), (2, 12), (2, 11), (0, 11), (1, 3)]


def test_tagged_gtids(tmp_path: Path) -> None:
    """The library does not see them: it gives the rows behind the wrong GTID, begins at no set that has one, and does
    not read a file after one."""
    needs("mysql9", "tagged GTIDs")
    with table("mysql9") as server:
        config = configure(tmp_path, server, "d", start=position(server))
        source = executed(server).partition(":")[0]
        insert(server, 1)
        insert(server, 2, before="SET gtid_next = 'AUTOMATIC:blue'")
        begin = executed(server)
        assert begin == f"{source}:1-3:blue:1"
        insert(server, 3)

        truth = [(f"{source}:3", 1), (f"{source}:blue:1", 2), (f"{source}:4", 3)]
        options: dict[str, Any] = {"only_events": [GtidEvent, *ROWS], "only_schemas": ["d"]}
        with closing(peer_stream(server, log_file="binlog.000002", log_pos=4, resume_stream=True, **options)) as stream:
            gtid, theirs = "", []
            for event in stream:
                if isinstance(event, GtidEvent):
                    gtid = event.gtid
                else:
                    theirs += [(gtid, row["values"]["id"]) for row in event.rows]
        assert_still_wrong(theirs, [(f"{source}:3", 1), (f"{source}:3", 2), (f"{source}:4", 3)], truth)
        with closing(peer_stream(server, auto_position=begin)) as stream, pytest.raises(ValueError, match="blue"):
            next(iter(stream))
        server.execute("FLUSH BINARY LOGS")
        after = peer_stream(server, log_file="binlog.000003", log_pos=4, resume_stream=True)
        with closing(after) as stream, pytest.raises(AssertionError):
            list(stream)

        Capture(config).run(until_current=True)
        ours = [row for batch in read(config.store.path, table="d.t") for row in batch.to_pylist()]
        assert [(row["_gtid"], row["id"]) for row in ours] == truth
        later = configure(tmp_path / "later", server, "d", start=f"{{gtid: '{begin}'}}")
        Capture(later).run(until_current=True)
        assert stored_ids(later, "d.t") == [3]


@ON_ALL
def test_events_that_the_server_lost(kind: str, tmp_path: Path) -> None:
    """A statement on a MyISAM table writes more than the server's cache takes: its rows are in the table and not in the
    binlog, where an INCIDENT event says so. The library skips it; capture stops."""
    with Server(kind) as server:
        server.execute(
            "CREATE DATABASE d",
            "CREATE TABLE d.s (id INT PRIMARY KEY, v VARCHAR(1000))",
            "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(1000)) ENGINE = MyISAM",
            "INSERT INTO d.s VALUES " + ", ".join(f"({n}, REPEAT('x', 1000))" for n in range(1, 21)),
            "SET GLOBAL max_binlog_stmt_cache_size = 4096",
            "SET GLOBAL binlog_stmt_cache_size = 4096",
        )
        config = configure(tmp_path, server, "d", start="now", tables="t")
        Capture(config).run(until_current=True)
        begin = re.search(r"file: (\S+),", position(server))
        assert begin is not None
        with pytest.raises(pymysql.Error, match="max_binlog_stmt_cache_size"):
            server.execute("INSERT INTO d.t SELECT * FROM d.s")
        server.execute("INSERT INTO d.t VALUES (100, 'after')")
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM d.t ORDER BY id")
            truth = [row[0] for row in cursor.fetchall()]
        theirs = [next(iter(row.values())) for row in peer_rows(server, begin[1], "d")]
        assert len(truth) > 1
        assert_still_wrong(theirs, [100], truth)
        for _ in range(2):  # the second run stops at the same event
            with pytest.raises(UnsupportedEventError, match=r"INCIDENT \(26\): the server says that it lost") as caught:
                Capture(config).run(until_current=True)
        assert stored_ids(config, "d.t") == []
        behind = re.search(r"\(source\.start: (\{file: .*?, pos: \d+\})\)", str(caught.value))
        assert behind is not None
        if kind != "mysql56":  # which begins at its present position only
            later = configure(tmp_path / "later", server, "d", start=behind[1], tables="t")
            Capture(later).run(until_current=True)
            assert stored_ids(later, "d.t") == [100]
