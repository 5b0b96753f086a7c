"""The stream of the binlog over compressed connections."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from cdc.base.errors import SourceRefusedError, SourceUnavailableError
from cdc.capture import Capture
from cdc.config import SourceConfig, load
from cdc.source.compressed_socket import CompressedSocket
from cdc.source.connection import connect, query
from cdc.store.formats.layout import list_segments
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.versions import needs, status_statement

Database = Callable[[Server], str]
WAYS = [("mysql9", "zlib"), ("mysql9", "zstd"), ("mariadb11", "zlib"), ("mysql56", "zlib")]


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)


def source(server: Server, compression: str, **keys: Any) -> SourceConfig:
    given = {"url": server.url, "password_env": "SOURCE_PW", "server_id": 7, "compression": compression}
    return SourceConfig.model_validate(given | keys)


@pytest.mark.parametrize("mode", ["disabled", "preferred"])
@pytest.mark.parametrize(("kind", "algorithm"), WAYS)
def test_queries_are_answered(kind: str, algorithm: Any, mode: str, request: pytest.FixtureRequest) -> None:
    if algorithm == "zstd":
        needs(kind, "zstd")
    server: Server = request.getfixturevalue(kind)
    text = "x" * 3_000_000
    with connect(source(server, algorithm, ssl_mode=mode), compression=algorithm) as connection:
        assert query(connection, "SELECT REPEAT('x', 3000000) AS v") == [{"v": text}]
        assert query(connection, "SELECT %s AS v", ["y" * 500_000]) == [{"v": "y" * 500_000}]
        assert query(connection, "SHOW SESSION STATUS LIKE 'Compression'")[0]["Value"] == "ON"


def test_an_algorithm_that_the_server_lacks_is_refused(mariadb11: Server) -> None:
    with pytest.raises(SourceRefusedError, match=r"does not offer compression by zstd.* source\.compression"):
        connect(source(mariadb11, "zstd"), compression="zstd")


@pytest.mark.parametrize(("kind", "algorithm"), WAYS[:3])
def test_the_store_is_the_same(
    kind: str, algorithm: str, request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> None:
    if algorithm == "zstd":
        needs(kind, "zstd")
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    with server.connect() as connection:
        [at] = query(connection, status_statement(kind))
    server.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v LONGTEXT)",
        *(f"INSERT INTO {db}.t VALUES ({i}, REPEAT('{i}', {i * 7}))" for i in range(200)),
        f"INSERT INTO {db}.t VALUES (1000, REPEAT('large', 1000000))",
        f"UPDATE {db}.t SET v = CONCAT(v, 'x')",
    )
    stored = []
    for server_id, name, more in ((70123, "plain", ""), (70124, "compressed", f", compression: {algorithm}")):
        file = tmp_path / name / "conf" / "shop.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(
            f"source: {{url: '{server.url.partition(':')[0]}://{USER}@{HOST}:{server.port}', password_env: SOURCE_PW,"
            f" server_id: {server_id}, start: {{file: {at['File']}, pos: {at['Position']}}}{more}}}\n"
            f"tables: {{include: ['{db}\\..*']}}\n"
            "store: {path: data/store}\nmeta: {path: data/meta}\napply: {target: ./lake}\n"
        )
        config = load(file)
        Capture(config).run(until_current=True)
        stored.append([segment.read_bytes() for segment in list_segments(config.store.path)])
    assert stored[0] == stored[1]
    assert sum(map(len, stored[0])) > 10_000_000


class Chunks:
    """A socket that gives bytes in pieces, with a time-out between each two of them."""

    def __init__(self, data: bytes, size: int) -> None:
        self._pieces = [data[at : at + size] for at in range(0, len(data), size)]
        self._is_late = False

    def recv(self, _size: int) -> bytes:
        self._is_late = not self._is_late
        if self._is_late:
            raise TimeoutError
        return self._pieces.pop(0) if self._pieces else b""


def packet(content: bytes, size: int) -> bytes:
    return len(content).to_bytes(3, "little") + b"\0" + size.to_bytes(3, "little") + content


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
@pytest.mark.parametrize(
    ("algorithm", "pack"), [("zlib", zlib.compress), ("zstd", zstandard.ZstdCompressor().compress)]
)
def test_packets_arrive_in_pieces(algorithm: Any, pack: Callable[[bytes], bytes], size: int) -> None:
    parts = [b"a" * 300, b"", b"b" * 10, b"c" * 5000]
    data = b"".join(packet(pack(part), len(part)) if len(part) > 50 else packet(part, 0) for part in parts)
    reading: Any = CompressedSocket(Chunks(data, size), algorithm)  # type: ignore[arg-type]
    received, buffer = b"", bytearray(64)
    while True:
        try:
            n = reading.recv_into(memoryview(buffer))
        except TimeoutError:
            continue
        if not n:
            break
        received += buffer[:n]
    assert received == b"".join(parts)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (packet(b"no zlib", 20), "cannot be unpacked"),
        (packet(zlib.compress(b"abc"), 20), "has 3 bytes instead of 20"),
    ],
)
def test_damaged_packets_break_the_connection(data: bytes, message: str) -> None:
    reading: Any = CompressedSocket(Chunks(data, 100), "zlib")  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        reading.recv_into(memoryview(bytearray(64)))
    with pytest.raises(ConnectionError, match=message):
        reading.recv_into(memoryview(bytearray(64)))


def test_a_server_that_goes_away_is_noticed(mysql9: Server, tmp_path: Path) -> None:
    with connect(source(mysql9, "zlib"), compression="zlib") as connection:
        [[number]] = ([*row.values()] for row in query(connection, "SELECT CONNECTION_ID()"))
        with mysql9.connect() as other:
            query(other, f"KILL {number}")
        with pytest.raises(SourceUnavailableError):
            query(connection, "SELECT 1")
