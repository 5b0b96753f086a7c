"""The dump request on every server: the stream is the server's file byte by byte, with the requested session settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cdc.base.errors import SourceRefusedError
from cdc.binlog.constants import FLAG_ARTIFICIAL, EventType
from cdc.binlog.positions import BinlogPosition
from cdc.config import SourceConfig
from cdc.source.connection import connect
from cdc.source.dump import DumpStream, dump_request, open_dump, register_request
from cdc.source.server import binlog_files, current_position, replicas
from cdc.testing.servers import PASSWORD, Server

LIMIT_S = 30


@pytest.fixture(params=["mysql9", "mysql56", "mariadb10", "mariadb11"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def source(server: Server, monkeypatch: pytest.MonkeyPatch) -> SourceConfig:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)
    return SourceConfig(url=server.url, password_env="SOURCE_PW", server_id=41_000_001, heartbeat_s=0.3)


def events(dump: DumpStream) -> Iterator[bytes]:
    """Returns the events without the packets' headers."""
    buffer, deadline = bytearray(), time.monotonic() + LIMIT_S
    chunk = bytearray(65536)
    while time.monotonic() < deadline:
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := int.from_bytes(buffer[:3], "little")):
            packet = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            assert packet[0] == 0, packet
            yield packet[1:]
        buffer += chunk[: dump.recv_into(memoryview(chunk))]
    raise AssertionError("nothing more came in time")


def test_the_stream_is_the_file(server: Server, source: SourceConfig, database: Callable[[Server], str]) -> None:
    """Includes checksums and MariaDB's GTID events. The replica is listed, and heartbeats arrive as requested."""
    server.execute("FLUSH BINARY LOGS")
    name = database(server)
    server.execute(
        f"CREATE TABLE `{name}`.t (id INT PRIMARY KEY, v TEXT)",
        *(f"INSERT INTO `{name}`.t VALUES ({i}, REPEAT('äö', 200))" for i in range(20)),
    )
    with connect(source) as control:
        end = current_position(control)
        with closing(DumpStream(source, BinlogPosition(end.file, 4), "towpath-dump-test")) as dump:
            received: list[bytes] = []
            for event in events(dump):
                if event[4] == EventType.HEARTBEAT:
                    if received and _end(received[-1]) == end.pos:
                        break
                elif not _flags(event) & FLAG_ARTIFICIAL:
                    received.append(event)
            listed = {(r.server_id, r.host) for r in replicas(control)}
    written = _split((server.data / end.file).read_bytes()[: end.pos])
    # In a file being written, the format description has the flag that the file is in use.
    assert received[1:] == [e for e in written[1:] if e[4] != EventType.MARIADB_ANNOTATE_ROWS]
    assert len(received) > 60
    assert (source.server_id, "towpath-dump-test") in listed
    kinds = {event[4] for event in received}
    assert (EventType.MARIADB_GTID in kinds) == server.kind.name.startswith("mariadb")


def _flags(event: bytes) -> int:
    return int.from_bytes(event[17:19], "little")


def _end(event: bytes) -> int:
    return int.from_bytes(event[13:17], "little")


def _split(file: bytes) -> list[bytes]:
    parts, at = [], 4
    while at < len(file):
        size = int.from_bytes(file[at + 9 : at + 13], "little")
        parts.append(file[at : at + size])
        at += size
    return parts


def test_a_position_in_the_middle(server: Server, source: SourceConfig) -> None:
    """The server uses the request's offset and file name."""
    with connect(source) as control:
        files = [f.name for f in binlog_files(control)]
        server.execute("CREATE DATABASE IF NOT EXISTS dump_middle")
        middle = current_position(control)
        server.execute("DROP DATABASE dump_middle")
        assert middle.file in files
    with closing(DumpStream(source, middle, "towpath-dump-test")) as dump:
        real = (e for e in events(dump) if not _flags(e) & FLAG_ARTIFICIAL)
        event = next(e for e in real if e[4] not in (EventType.FORMAT_DESCRIPTION, EventType.HEARTBEAT))
    assert _end(event) - len(event) == middle.pos


def test_a_closed_dump_ends_on_the_server(
    server: Server, source: SourceConfig, database: Callable[[Server], str]
) -> None:
    """The server is blocked while it writes. It notices at once that the connection was closed."""
    db = database(server)
    with connect(source) as control:
        position = current_position(control)
    server.execute(f"CREATE TABLE {db}.large (id INT PRIMARY KEY, v LONGTEXT)")
    server.execute(*[f"INSERT INTO {db}.large VALUES ({n}, REPEAT('x', 4000000))" for n in range(8)])
    stream = DumpStream(source, position, "towpath-test")
    stream.recv_into(memoryview(bytearray(100)))
    stream.close()
    deadline = time.monotonic() + 20
    while stream.thread_id in threads(server):
        assert time.monotonic() < deadline, "the server still writes to a closed connection"
        time.sleep(0.1)


def threads(server: Server) -> set[int]:
    with server.connect() as conn, conn.cursor() as cursor:
        cursor.execute("SHOW PROCESSLIST")
        return {int(row[0]) for row in cursor.fetchall()}


def test_a_user_without_the_privilege_is_refused(server: Server, source: SourceConfig) -> None:
    server.execute("CREATE USER dump_nobody@'%' IDENTIFIED BY 'x'")
    try:
        nobody = source.model_copy(update={"url": server.url.replace(source.user, "dump_nobody"), "password_env": None})
        with pytest.raises(SourceRefusedError):
            open_dump(nobody, BinlogPosition("binlog.000001", 4), "towpath-dump-test").close()
    finally:
        server.execute("DROP USER dump_nobody@'%'")


def test_the_requests_byte_by_byte() -> None:
    assert register_request(7, "ab", 3306) == bytes.fromhex("07000000 02 6162 00 00 ea0c 00000000 00000000")
    assert dump_request(7, BinlogPosition("b.000001", 2**32 - 1)) == (
        bytes.fromhex("ffffffff 0000 07000000") + b"b.000001"
    )
    with pytest.raises(ValueError, match="61 bytes; servers accept 60"):
        register_request(7, "x" * 61, 3306)
