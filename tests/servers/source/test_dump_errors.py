"""Error 1236 as real servers send it: each cause that can be brought about is, and every text is in a server's program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cdc.base.errors import CdcError, IdentityError, SourceRefusedError
from cdc.binlog.positions import BinlogPosition
from cdc.config import SourceConfig
from cdc.source.connection import connect
from cdc.source.dump import DumpStream, ShortDump
from cdc.source.dump_errors import REFUSALS, explain_dump_error
from cdc.source.scan import read_transactions
from cdc.source.server import binlog_files, current_position
from cdc.testing.servers import PASSWORD, Server
from cdc.testing.servers import kinds as servers
from tests.support.versions import lacks

KINDS = ("mysql9", "mysql56", "mariadb10", "mariadb11")
PROGRAMS = {
    "mysql9": "usr/sbin/mysqld",
    "mysql56": "server/mysqld",
    "mariadb10": "usr/sbin/mariadbd",
    "mariadb11": "usr/sbin/mariadbd",
}


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def source(server: Server, monkeypatch: pytest.MonkeyPatch) -> SourceConfig:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)
    return SourceConfig(url=server.url, password_env="SOURCE_PW", server_id=41_000_004)


def packets(receive: Callable[[memoryview], int]) -> Iterator[bytes]:
    """Yields the payloads of a dump."""
    buffer, chunk = bytearray(), bytearray(65536)
    while True:
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := int.from_bytes(buffer[:3], "little")):
            yield bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
        buffer += chunk[: receive(memoryview(chunk))]


def refused(source: SourceConfig, position: BinlogPosition) -> tuple[CdcError, str]:
    """Requests a dump that the server refuses. Returns the error, and the server's own text."""
    with ShortDump(source, position) as dump:
        for packet in packets(dump.recv_into):
            assert packet[0] != 0xFE or len(packet) >= 9, "the server has sent everything"
            if packet[0] == 0xFF:
                text = packet[9:].decode()
                return explain_dump_error(int.from_bytes(packet[1:3], "little"), text, source, position), text
    raise AssertionError("unreachable")


def cause(text: str) -> str:
    return next(refusal.title for refusal in REFUSALS if refusal.fits(1236, text))


def test_positions_that_no_server_sends(server: Server, source: SourceConfig) -> None:
    with connect(source) as conn:
        end = current_position(conn)
        first = binlog_files(conn)[0].name
    for position, title, kind in (
        (BinlogPosition(f"{end.file.split('.')[0]}.999999", 4), "The binlog is purged", SourceRefusedError),
        (BinlogPosition(end.file, end.pos + 10_000_000), "The position lies behind the end of the file", IdentityError),
        (BinlogPosition(first, 30), "No event begins at the position", SourceRefusedError),
    ):
        error, text = refused(source, position)
        assert cause(text) == title and type(error) is kind
        assert error.remedy and str(position) in error.message and text.split(";")[0] in error.message


def test_the_same_server_id_twice(server: Server, source: SourceConfig) -> None:
    if server.kind.name == "mysql56":
        return  # it tells replicas apart by their UUIDs, which capture does not send, and serves both
    with connect(source) as conn:
        end = current_position(conn)
    with closing(DumpStream(source, end, "one")) as older, closing(DumpStream(source, end, "two")) as newer:
        for stream in (older, newer):  # one of the two is ended, at once or when it would be sent something
            for packet in packets(stream.recv_into):
                if packet[0] == 0xFF:
                    text = packet[9:].decode()
                    error = explain_dump_error(int.from_bytes(packet[1:3], "little"), text, source, end)
                    assert cause(text) == "Another replica has the same server_id"
                    assert isinstance(error, SourceRefusedError) and "source.server_id 41000004" in error.message
                    return
                if packet[5:6] in (b"\x1b", b"\x29"):
                    break  # a heartbeat: this one lives
    raise AssertionError("both live")


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_files_that_are_damaged_and_missing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)
    source_terms = kind == "mysql9" and not lacks(kind, "source_verify_checksum")
    verify = "source_verify_checksum" if source_terms else "master_verify_checksum"
    with Server(kind) as server:
        source = SourceConfig(url=server.url, password_env="SOURCE_PW", server_id=41_000_005)
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v TEXT)")
        for number in range(3):
            server.execute("FLUSH BINARY LOGS", f"INSERT INTO d.t VALUES ({number}, REPEAT('x', 500))")
        with connect(source) as conn:
            files = [file.name for file in binlog_files(conn)]
        begin = BinlogPosition(files[1], 4)
        path = server.data / files[1]
        content = path.read_bytes()
        # A damaged event, on a server that verifies what it sends.
        server.execute(f"SET GLOBAL {verify} = ON")
        path.write_bytes(content.replace(b"x" * 500, b"x" * 499 + b"y"))
        error, text = refused(source, begin)
        assert cause(text) == "The checksum of an event is wrong on the server" and isinstance(
            error, SourceRefusedError
        )
        server.execute(f"SET GLOBAL {verify} = OFF")
        # A file that is cut inside an event.
        path.write_bytes(content[: content.index(b"x" * 500) + 100])
        error, text = refused(source, begin)
        assert cause(text) == "No event begins at the position"
        path.write_bytes(content)
        # A file that somebody has removed.
        (server.data / files[2]).rename(server.data / "elsewhere")
        error, text = refused(source, begin)
        assert isinstance(error, SourceRefusedError) and "cannot continue behind" in error.message, text


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_do_not_begin_as_binlogs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)
    with Server(kind) as server:
        source = SourceConfig(url=server.url, password_env="SOURCE_PW", server_id=41_000_007)
        server.execute("CREATE DATABASE d", "FLUSH BINARY LOGS")
        with connect(source) as conn:
            first = binlog_files(conn)[0].name
        path = server.data / first
        content = path.read_bytes()
        size = int.from_bytes(content[13:17], "little")  # of the format description, which begins at byte 4
        other_magic, no_description = b"\xfexxx" + content[4:], content[:4] + content[4 + size :]
        # MySQL 5.6 sends a file without a format description.
        for damaged in (other_magic,) if kind == "mysql56" else (other_magic, no_description):
            path.write_bytes(damaged)
            error, text = refused(source, BinlogPosition(first, 4))
            assert cause(text) == "The beginning of the file is damaged" and isinstance(error, SourceRefusedError), text
            assert first in error.message


def test_transactions_without_gtids_behind_gtid_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)
    with Server("mysql9", options=["--gtid-mode=OFF"]) as server:
        source = SourceConfig(url=server.url, password_env="SOURCE_PW", server_id=41_000_006)
        server.execute("CREATE DATABASE d")
        for mode in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
            server.execute(f"SET GLOBAL gtid_mode = {mode}")
        with connect(source) as conn:
            first = binlog_files(conn)[0].name
        error, text = refused(source, BinlogPosition(first, 4))
        assert cause(text) == "Transactions without GTIDs on a server with gtid_mode=ON"
        assert "ON_PERMISSIVE" in str(error)
        with pytest.raises(SourceRefusedError, match="does not send the transactions"):
            list(read_transactions(source, first))
        # The remedy that is named helps.
        server.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
        assert [transaction.gtid for transaction in read_transactions(source, first)] == [None]


def test_every_text_is_in_a_servers_program() -> None:
    """MySQL keeps texts with placeholders in files of messages beside the program."""
    programs = b""
    for kind, program in PROGRAMS.items():
        root = servers.KINDS[kind].root()
        programs += (root / program).read_bytes()
    lower = programs.lower()
    for refusal in REFUSALS:
        for text in refusal.texts:
            assert text.lower().encode() in lower, text
