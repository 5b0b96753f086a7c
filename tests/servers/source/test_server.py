"""Facts that a server reports about itself and its tables."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError, DamagedError, SourceRefusedError, VersionError
from cdc.binlog.gtids import parse_state
from cdc.binlog.sql.schemas import Schemas
from cdc.config import SourceConfig, TablesConfig
from cdc.source.connection import connect
from cdc.source.history import executed_gtids
from cdc.source.schemas import read_schemas
from cdc.source.server import Connection, Flavor, binlog_files, clock_and_position, current_position, describe
from cdc.testing.servers import PASSWORD, Server


@pytest.fixture(scope="module", params=["mysql9", "mariadb10", "mariadb11"])
def source(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def conn(source: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)
    with connect(SourceConfig(url=source.url, password_env="SOURCE_PW", server_id=7)) as conn:
        yield conn


def test_identity(source: Server, conn: Connection) -> None:
    info = describe(conn)
    assert info.flavor == source.url.split(":")[0]
    assert info.version_info[: len(source.kind.release)] == source.kind.release
    assert info.server_id == source.port
    assert len(info.server_uuid) >= 28
    assert describe(conn) == info


def test_positions_and_files_advance(source: Server, conn: Connection) -> None:
    before = current_position(conn)
    assert before.file == binlog_files(conn)[-1].name
    source.execute("CREATE DATABASE IF NOT EXISTS moved")
    assert current_position(conn) > before
    source.execute("FLUSH BINARY LOGS")
    after = current_position(conn)
    assert after.file_number == before.file_number + 1
    files = binlog_files(conn)
    assert files[-1].name == after.file
    assert all(f.size_bytes > 100 for f in files)


def test_the_clock_is_read_before_the_position(source: Server, conn: Connection) -> None:
    source.execute("CREATE DATABASE IF NOT EXISTS moved", "CREATE DATABASE IF NOT EXISTS clocked")
    first = clock_and_position(conn)
    assert abs(first.time_us / 1e6 - time.time()) < 5
    assert first.gtid
    assert "\n" not in first.gtid
    source.execute("DROP DATABASE clocked")
    second = clock_and_position(conn)
    assert second.position > first.position
    assert second.time_us > first.time_us
    assert second.gtid != first.gtid


def test_the_session_is_in_utc(conn: Connection) -> None:
    with conn.cursor() as cursor:
        cursor.execute("SELECT @@time_zone, @@autocommit")
        assert cursor.fetchone() == ("+00:00", 1)


def test_schemas(source: Server, conn: Connection, tmp_path: Path) -> None:
    source.execute(
        "DROP DATABASE IF EXISTS sch",
        "CREATE DATABASE sch",
        """CREATE TABLE sch.a (b INT UNSIGNED NOT NULL, a VARCHAR(20) CHARACTER SET latin1 DEFAULT 'x',
            c ENUM('p','q''r'), d DATETIME(3), g INT AS (b + 1) VIRTUAL, PRIMARY KEY (a, b))""",
        "CREATE TABLE sch.`two words` (`ä b` BIGINT) DEFAULT CHARSET latin1 COLLATE latin1_bin",
        "CREATE TABLE sch.left_out (id INT)",
        "CREATE VIEW sch.a_view AS SELECT 1 AS one",
    )
    schemas = read_schemas(conn, TablesConfig(include=(r"sch\..*",), exclude=(r".*left_out",)))
    assert list(schemas.tables) == ["sch.a", "sch.two words"]
    table = schemas.tables["sch.a"]
    assert table.column_names == ("b", "a", "c", "d", "g")
    assert table.primary_key == ("a", "b")
    columns = {c.name: c for c in table.columns}
    assert (columns["b"].data_type, columns["b"].nullable) == ("int", False)
    assert "unsigned" in columns["b"].column_type
    assert columns["a"].charset == "latin1"
    assert columns["c"].column_type == "enum('p','q''r')"
    assert columns["d"].column_type == "datetime(3)"
    assert "VIRTUAL" in columns["g"].extra
    assert schemas.tables["sch.two words"].column_names == ("ä b",)
    assert schemas.tables["sch.two words"].primary_key == ()
    assert (schemas.tables["sch.two words"].charset, schemas.tables["sch.two words"].collation) == (
        "latin1",
        "latin1_bin",
    )

    path = tmp_path / "schemas" / "1.json"
    schemas.save(path)
    assert Schemas.load(path) == schemas
    assert [p.name for p in path.parent.iterdir()] == ["1.json"]


def test_nothing_included(conn: Connection) -> None:
    assert read_schemas(conn, TablesConfig(include=(r"no_such\..*", r"mysql\..*"))).tables == {}


@pytest.mark.parametrize(
    ("text", "error", "expected"),
    [
        (b"{", DamagedError, "is not a file of table schemas"),
        (b'{"tables": {"a.b": {"columns": 5}}}', DamagedError, "is not a file of table schemas: tables.a.b.columns"),
        (b'{"version": 9, "tables": {}}', VersionError, "has format version 9; this Towpath knows 1"),
        (b'{"version": 9, "more": {}}', VersionError, "has format version 9; this Towpath knows 1"),
    ],
)
def test_an_invalid_schema_file(tmp_path: Path, text: bytes, error: type[Exception], expected: str) -> None:
    path = tmp_path / "5.json"
    path.write_bytes(text)
    with pytest.raises(error, match=expected):
        Schemas.load(path)
    with pytest.raises(DamagedError, match="is missing"):
        Schemas.load(tmp_path / "6.json")


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_long_sets_of_gtids_are_read_whole(kind: str) -> None:
    """SHOW VARIABLES cuts values, silently. A server that has had many masters has such a set."""
    with Server(kind) as server, server.connect() as conn, conn.cursor() as cursor:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (a INT)")
        for number in range(400):
            if kind == "mysql9":
                cursor.execute(f"SET gtid_next = '{uuid.uuid4()}:1'")
                cursor.execute("BEGIN")
                cursor.execute("COMMIT")
            else:
                cursor.execute(f"SET SESSION gtid_domain_id = {1_000_000 + number}")
                cursor.execute("INSERT INTO d.t VALUES (1)")
        flavor: Flavor = "mysql" if kind == "mysql9" else "mariadb"
        state = parse_state(executed_gtids(conn, flavor) or "", flavor)
        printed = {"mysql": "@@GLOBAL.gtid_executed", "mariadb": "@@GLOBAL.gtid_binlog_state"}[flavor]
        cursor.execute(f"SELECT {printed}")
        whole = str(cursor.fetchall()[0][0])
    assert len(whole) > 4096
    assert state == parse_state("".join(whole.split()), flavor)


def test_tls_is_verified(source: Server, tmp_path: Path) -> None:
    """MySQL generates certificates without a host name: the authority is accepted, the name is not."""
    strangers = tmp_path / "none.pem"
    with pytest.raises(ConfigError, match="is not a file"):
        connect(SourceConfig(url=source.url, server_id=7, ssl_ca=strangers))
    if source.kind.name != "mysql9":
        return
    authority = source.data / "ca.pem"
    with pytest.raises(SourceRefusedError, match="the server's certificate is not accepted"):
        connect(SourceConfig(url=source.url, server_id=7, ssl_ca=authority))


def test_password_sources(source: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = source.url.split("@")[1]
    scheme = source.url.split(":")[0]
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", f"mysql://t:{PASSWORD}@elsewhere:1/")
    connect(SourceConfig(url=f"{scheme}://other@{host}", server_id=7, connection="shop_db")).close()
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", f'{{"login": "t", "password": "{PASSWORD}"}}')
    connect(SourceConfig(url=f"{scheme}://other@{host}", server_id=7, connection="shop_db")).close()
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", '{"password": "Sesam"')
    with pytest.raises(ConfigError, match="is neither a URL nor a JSON object") as caught:
        connect(SourceConfig(url=source.url, server_id=7, connection="shop_db"))
    assert "Sesam" not in str(caught.value)
    monkeypatch.delenv("AIRFLOW_CONN_SHOP_DB")
    with pytest.raises(ConfigError, match="Set AIRFLOW_CONN_SHOP_DB, or use password_env or password_file"):
        connect(SourceConfig(url=source.url, server_id=7, connection="shop_db"))
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_VARIABLE is not set"):
        connect(SourceConfig(url=source.url, server_id=7, password_env="NO_SUCH_VARIABLE"))
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        connect(SourceConfig(url=source.url, server_id=7, password_file=tmp_path / "none"))


def test_a_password_that_rotates(source: Server, tmp_path: Path) -> None:
    """The file, or the command, is asked at each connect."""
    secret = tmp_path / "password"
    url = f"{source.url.split('//')[0]}//rotating@{source.url.split('@')[1]}"
    by_file = SourceConfig(url=url, server_id=7, password_file=secret)
    by_command = SourceConfig(url=url, server_id=7, password_command=("cat", str(secret)))
    source.execute("CREATE USER rotating@'%' IDENTIFIED BY 'first'")
    try:
        for password in ("first", "second", "third"):
            source.execute(f"ALTER USER rotating@'%' IDENTIFIED BY '{password}'")
            if password == "second":
                with pytest.raises(SourceRefusedError, match="refuses user 'rotating' with this password"):
                    connect(by_command)
            secret.write_text(f"{password}\n")
            connect(by_file).close()
            connect(by_command).close()
    finally:
        source.execute("DROP USER rotating@'%'")
