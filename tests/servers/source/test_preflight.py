"""The preflight of real servers: each wrong setting, privilege and table is refused with one message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pymysql
import pytest

from cdc.base.errors import CdcError, SourceRefusedError, SourceUnavailableError
from cdc.binlog.sql.schemas import ColumnSchema
from cdc.config import DestinationConfig, parse
from cdc.source.connection import connect
from cdc.source.findings import Finding
from cdc.source.preflight import check_kind, check_source, require_source
from cdc.source.server import ServerInfo
from cdc.source.table_checks import unsupported
from cdc.testing.servers import PASSWORD, Server, free_port
from tests.support.versions import lacks, needs, with_types

TABLES = (
    "CREATE DATABASE pre",
    "CREATE TABLE pre.good (id INT PRIMARY KEY, a TEXT CHARACTER SET utf8mb4)",
    "CREATE TABLE pre.nokey (a INT NOT NULL, b INT)",
    "CREATE TABLE pre.ours (id INT PRIMARY KEY, _SEQ INT)",
    """CREATE TABLE pre.types (id INT PRIMARY KEY, t TIME, b BIT(3), d DECIMAL(65,30), s SET('/* a */'), y YEAR,
        g GEOMETRY, c VARCHAR(9) CHARACTER SET gbk, e ENUM('/* a */') CHARACTER SET ucs2, v VARBINARY(3),
        ts TIMESTAMP(6) NULL, j JSON, f FLOAT(7,3) UNSIGNED ZEROFILL, m MULTIPOLYGON, gc GEOMETRYCOLLECTION)""",
    "CREATE VIEW pre.view1 AS SELECT 1 AS one",
)


@pytest.fixture(scope="module", params=["mysql9", "mariadb10"])
def source(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        server.execute(*TABLES)
        yield server


def config(
    server: Server,
    folder: Path,
    *,
    include: str = r"pre\.good",
    user: str = "t",
    password: str = PASSWORD,
    mode: str = "upsert",
    overrides: str = "{}",
    server_id: int = 77,
    url: str | None = None,
) -> DestinationConfig:
    (folder / "password").write_text(password + "\n")
    url = url or server.url.replace("//t@", f"//{user}@")
    text = f"""
source: {{url: '{url}', password_file: {folder}/password, server_id: {server_id}, start: earliest}}
tables: {{include: ['{include}'], overrides: {overrides}}}
store: {{path: ./store}}
meta: {{path: ./meta}}
apply: {{target: ./lake, mode: {mode}}}
"""
    return parse(text, folder / "conf" / "dest.yaml")


def problems(findings: list[Finding]) -> list[str]:
    return [f"{f.level} {f.subject}: {f.message}" for f in findings if f.level != "ok"]


def value(server: Server, expression: str) -> str:
    with server.connect() as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT {expression}")
        row = cursor.fetchone()
        assert row is not None
        return str(row[0])


def test_a_good_server_passes(source: Server, tmp_path: Path) -> None:
    findings = check_source(config(source, tmp_path))
    assert problems(findings) == []
    assert {f.subject for f in findings} >= {"source", "source: binlog", "source: privileges", "source: server_id"}
    good = config(source, tmp_path)
    require_source(good, connect(good.source))


@pytest.mark.parametrize(
    ("variable", "wrong"),
    [
        ("binlog_format", "STATEMENT"),
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_image", "NOBLOB"),
    ],
)
def test_a_wrong_setting_is_refused(source: Server, tmp_path: Path, variable: str, wrong: str) -> None:
    before = value(source, f"@@GLOBAL.{variable}")
    source.execute(f"SET GLOBAL {variable} = '{wrong}'")
    try:
        destination = config(source, tmp_path)
        with pytest.raises(SourceRefusedError) as caught:
            require_source(destination, connect(destination.source))
        assert str(caught.value).startswith(f"source: {variable}: {variable} is {wrong}; ")
        assert f"SET GLOBAL {variable}={before};" in str(caught.value)
        assert caught.value.exit_code == 2
    finally:
        source.execute(f"SET GLOBAL {variable} = '{before}'")


def test_foreign_keys_with_actions_are_named(source: Server, tmp_path: Path) -> None:
    """MySQL 9.7 writes the rows that they change; MariaDB and earlier versions do not."""
    with source.connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT VERSION()")
        version = str((cursor.fetchone() or ("",))[0])
        has_events = "maria" not in version.lower() and tuple(map(int, version.split("-")[0].split(".")[:2])) >= (9, 7)
    source.execute(
        "CREATE DATABASE fk",
        "CREATE TABLE fk.p (id INT PRIMARY KEY)",
        "CREATE TABLE fk.c (id INT PRIMARY KEY, p INT, CONSTRAINT of_p FOREIGN KEY (p) REFERENCES fk.p (id) "
        "ON DELETE CASCADE ON UPDATE SET NULL)",
        "CREATE TABLE fk.d (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES fk.p (id) ON DELETE RESTRICT)",
    )
    try:
        findings = check_source(config(source, tmp_path, include=r"fk\..*"))
        assert problems(findings) == []
        expected = (
            "the foreign key of_p to fk.p (ON DELETE CASCADE, ON UPDATE SET NULL) changes rows without row events; "
            "apply executes its actions on the rows of the Delta table"
        )
        assert [f.message for f in findings if "foreign key" in f.message] == ([] if has_events else [expected])
        dropped = "{fk.c: {columns: {p: drop}}}"
        findings = check_source(config(source, tmp_path, include=r"fk\..*", overrides=dropped))
        warnings = [(f.level, f.message) for f in findings if "foreign key" in f.message]
        assert [level for level, _ in warnings] == ([] if has_events else ["warning"])
        assert all("the column p is left out of the lake" in message for _, message in warnings)
    finally:
        source.execute("DROP DATABASE fk")


def test_tables_whose_rows_belong_to_others_are_refused(source: Server, tmp_path: Path) -> None:
    source.execute(
        "CREATE DATABASE mg",
        *[f"CREATE TABLE mg.below{n} (id INT PRIMARY KEY) ENGINE = MyISAM" for n in (1, 2)],
        "CREATE TABLE mg.alone (id INT PRIMARY KEY) ENGINE = MyISAM",
        "CREATE TABLE mg.`all, of` (id INT NOT NULL, KEY (id)) ENGINE = MERGE UNION = (mg.below1, mg.below2) "
        "INSERT_METHOD = LAST",
    )
    try:
        messages = problems(check_source(config(source, tmp_path, include=r"mg\..*")))
        named = [text for text in messages if "no primary key" not in text]
        merge = "error table mg.all, of: has the engine mrg_myisam: it shows the rows of other tables, which change "
        assert named == [
            f"{merge}without an event of it",
            *[
                f"error table mg.below{n}: its rows may change through the MERGE table mg.all, of, and the binlog has "
                "them as rows of mg.all, of then"
                for n in (1, 2)
            ],
        ]
        destination = config(source, tmp_path, include=r"mg\.below1")
        with pytest.raises(SourceRefusedError, match=r"its rows may change through the MERGE table mg.all, of"):
            require_source(destination, connect(destination.source))
    finally:
        source.execute("DROP DATABASE mg")


def test_compression_is_no_trouble(source: Server, tmp_path: Path) -> None:
    needs(source, "compressed transactions")
    mysql = source.kind.name == "mysql9"
    variable = "binlog_transaction_compression" if mysql else "log_bin_compress"
    source.execute(f"SET GLOBAL {variable} = ON")
    try:
        assert problems(check_source(config(source, tmp_path))) == []
    finally:
        source.execute(f"SET GLOBAL {variable} = OFF")


def test_short_retention_is_a_warning(source: Server, tmp_path: Path) -> None:
    needs(source, "binlog_expire_logs_seconds")
    before = value(source, "@@GLOBAL.binlog_expire_logs_seconds")
    source.execute("SET GLOBAL binlog_expire_logs_seconds = 3600")
    try:
        [message] = problems(check_source(config(source, tmp_path)))
        assert message.startswith("warning source: retention: the server purges binlog files after 1.0 h")
    finally:
        source.execute(f"SET GLOBAL binlog_expire_logs_seconds = {before}")


def test_the_retention_of_rds_is_read_where_it_is(source: Server, tmp_path: Path) -> None:
    """A table like Amazon's stands for the service."""
    source.execute(
        "CREATE TABLE mysql.rds_configuration (name VARCHAR(100) PRIMARY KEY, value VARCHAR(100))",
        "INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', NULL)",
    )
    try:
        wrong = "warning source: retention: the service purges binlog files as soon as it can"
        assert [text[: len(wrong)] for text in problems(check_source(config(source, tmp_path)))] == [wrong]
        source.execute("UPDATE mysql.rds_configuration SET value = '168'")
        assert problems(check_source(config(source, tmp_path))) == []
    finally:
        source.execute("DROP TABLE mysql.rds_configuration")


def test_statements_of_a_finding_are_what_helps(source: Server, tmp_path: Path) -> None:
    """Running the statements as they stand makes the finding disappear."""
    source.execute("SET GLOBAL binlog_row_metadata = MINIMAL", "SET GLOBAL binlog_row_image = MINIMAL")
    try:
        wrong = [f for f in check_source(config(source, tmp_path)) if f.level != "ok"]
        assert {(f.level, f.advice.value) for f in wrong if f.advice} == {
            ("warning", "binlog_row_metadata = MINIMAL"),
            ("error", "binlog_row_image = MINIMAL"),
        }
        source.execute(*(statement for f in wrong if f.advice for statement in f.advice.statements))
        assert problems(check_source(config(source, tmp_path))) == []
    finally:
        source.execute("SET GLOBAL binlog_row_metadata = FULL", "SET GLOBAL binlog_row_image = FULL")


def test_every_type_passes(source: Server, tmp_path: Path) -> None:
    types = {
        "mysql9": ["VECTOR(3)", "INT AS (id) VIRTUAL"],
        "mariadb10": ["UUID", "INET4", "INET6", "VARCHAR(300) COMPRESSED", "BLOB COMPRESSED", "TIME(3)"],
    }[source.kind.name]
    more = [f"c{number} {name}" for number, name in enumerate(with_types(source, dict.fromkeys(types)))]
    more += ["u INT INVISIBLE"] if not lacks(source, "invisible columns") else []
    before = ["SET GLOBAL mysql56_temporal_format = OFF"] if source.kind.name == "mariadb10" else []
    after = ["SET GLOBAL mysql56_temporal_format = ON"] if before else []
    source.execute(*before, f"CREATE TABLE pre.more (id INT PRIMARY KEY, {', '.join(more)}, d DATETIME)", *after)
    try:
        assert problems(check_source(config(source, tmp_path, include=r"pre\.(types|more)"))) == []
    finally:
        source.execute("DROP TABLE pre.more")


@pytest.mark.parametrize(
    ("data_type", "column_type"),
    [("quaternion", "quaternion(4)"), ("time", "time /* lunar */"), ("text", "text /*M!130000 SHREDDED*/")],
)
def test_an_unknown_type(tmp_path: Path, data_type: str, column_type: str) -> None:
    column = ColumnSchema(
        name="q",
        data_type=data_type,
        column_type=column_type,
        nullable=True,
        default=None,
        extra="",
        charset=None,
        collation=None,
    )
    assert unsupported(column) == f"type {column_type}"


def test_partial_updates_of_json_are_accepted(tmp_path: Path, mysql9: Server) -> None:
    mysql9.execute("SET GLOBAL binlog_row_value_options = PARTIAL_JSON")
    try:
        assert problems(check_source(config(mysql9, tmp_path, include=r"nothing\..*")))[1:] == []
    finally:
        mysql9.execute("SET GLOBAL binlog_row_value_options = ''")


@pytest.mark.parametrize(
    ("flavor", "version", "refused"),
    [
        ("mysql", (5, 5, 62), "Capture a server of MySQL 5.6 or later."),
        ("mysql", (5, 6, 0), None),
        ("mariadb", (10, 0, 38), "Capture a server of MariaDB 10.1 or later."),
        ("mariadb", (10, 1, 0), None),
    ],
)
def test_the_oldest_servers(
    tmp_path: Path, flavor: Literal["mysql", "mariadb"], version: tuple[int, ...], refused: str | None
) -> None:
    text = (
        f"source: {{url: '{flavor}://t@host', server_id: 1}}\ntables: {{include: ['a']}}\n"
        "store: {path: ./store}\nmeta: {path: ./meta}\napply: {target: ./lake}\n"
    )
    info = ServerInfo(flavor, "", version, "uuid", 2, has_row_metadata=False)
    errors = [f for f in check_kind(parse(text, tmp_path / "conf" / "d.yaml"), info) if f.level == "error"]
    assert [f.remedy for f in errors] == ([] if refused is None else [refused])


def test_keys(source: Server, tmp_path: Path) -> None:
    include = r"pre\.nokey"
    [message] = problems(check_source(config(source, tmp_path, include=include)))
    assert message == "error table pre.nokey: has no primary key, which mode upsert needs"
    assert problems(check_source(config(source, tmp_path, include=include, mode="append"))) == []
    assert problems(check_source(config(source, tmp_path, include=include, overrides="{pre.nokey: {keys: [a]}}"))) == []
    found2 = problems(check_source(config(source, tmp_path, include=include, overrides="{pre.nokey: {keys: [b, z]}}")))
    assert found2 == [
        "error table pre.nokey: key column 'b' may be NULL, and NULL identifies no row",
        "error table pre.nokey: has no column 'z', which keys names",
    ]


def test_a_table_that_apply_refuses_does_not_stop_capture(source: Server, tmp_path: Path) -> None:
    include = r"pre\.(nokey|ours)"
    destination = config(source, tmp_path, include=include)
    errors = [f for f in check_source(destination) if f.level == "error"]
    assert [(f.subject, f.stops) for f in errors] == [("table pre.nokey", "apply"), ("table pre.ours", "apply")]
    require_source(destination, connect(destination.source))


def test_a_column_named_like_a_metadata_column(source: Server, tmp_path: Path) -> None:
    [message] = problems(check_source(config(source, tmp_path, include=r"pre\.ours")))
    assert message == "error table pre.ours: column '_SEQ' has the name of one of Towpath's metadata columns"


def test_server_id_of_the_source_itself(source: Server, tmp_path: Path) -> None:
    [message] = problems(check_source(config(source, tmp_path, server_id=source.port)))
    assert message == f"error source: server_id: {source.port} is the source's own server_id"


def test_server_id_of_another_replica(source: Server, tmp_path: Path) -> None:
    with registered(source, server_id=4711, host="elsewhere"):
        [message] = problems(check_source(config(source, tmp_path, server_id=4711)))
        assert message.startswith("error source: server_id: another replica at elsewhere uses 4711")
        running = check_source(config(source, tmp_path, server_id=4711), own_capture_running=True)
        assert problems(running) == []


def registered(server: Server, *, server_id: int, host: str) -> pymysql.Connection[pymysql.cursors.Cursor]:
    """Returns a connection that has registered as a replica, as replication clients do."""
    conn = server.connect()
    name = host.encode()
    payload = (
        server_id.to_bytes(4, "little")
        + bytes([len(name)])
        + name
        + bytes([0, 0])
        + (3306).to_bytes(2, "little")
        + bytes(8)
    )
    conn._execute_command(0x15, payload)  # type: ignore[attr-defined]
    conn._read_ok_packet()  # type: ignore[attr-defined]
    return conn


def test_a_url_of_the_other_flavor(source: Server, tmp_path: Path) -> None:
    other = "mariadb" if source.kind.name == "mysql9" else "mysql"
    url = f"{other}://{source.url.split('://')[1]}"
    [message] = problems(check_source(config(source, tmp_path, url=url)))
    assert message.startswith(f"error source: url: source.url says {other}://, but the server is M")


@pytest.mark.parametrize(
    ("grants", "include", "expected"),
    [
        (
            [],
            r"pre\..*",
            [
                "error source: privileges: 'w'@'127.0.0.1' may not read the binlog (REPLICATION SLAVE is missing)",
                "error source: privileges: 'w'@'127.0.0.1' may not ask for the current position",
                "error source: tables: 'w'@'127.0.0.1' sees no table that tables.include matches",
            ],
        ),
        (
            ["REPLICATION SLAVE, REPLICATION CLIENT ON *.*", "SELECT ON pre.good", "INSERT ON pre.nokey"],
            r"pre\.(good|nokey)",
            [
                "warning source: tables: 'w'@'127.0.0.1' may SELECT only some tables",
                "error table pre.nokey: 'w'@'127.0.0.1' may not SELECT all of its columns",
            ],
        ),
        (
            ["REPLICATION SLAVE, REPLICATION CLIENT ON *.*", "SELECT (id) ON pre.good"],
            r"pre\.good",
            [
                "warning source: tables: 'w'@'127.0.0.1' may SELECT only some tables",
                "error table pre.good: 'w'@'127.0.0.1' may not SELECT all of its columns",
            ],
        ),
        (
            ["REPLICATION SLAVE, REPLICATION CLIENT ON *.*", "SELECT (id, a), INSERT (id) ON pre.good"],
            r"pre\.good",
            ["warning source: tables: 'w'@'127.0.0.1' may SELECT only some tables"],
        ),
        (["REPLICATION SLAVE, REPLICATION CLIENT ON *.*", "SELECT ON pre.*"], r"pre\.good", []),
        (
            ["SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.*"],
            r"nothing\..*",
            [r"warning source: tables: no table matches tables.include (nothing\..*) yet"],
        ),
    ],
)
def test_privileges(source: Server, tmp_path: Path, grants: list[str], include: str, expected: list[str]) -> None:
    source.execute("CREATE USER w@'127.0.0.1' IDENTIFIED BY 'grün€'")
    try:
        source.execute(*(f"GRANT {grant} TO w@'127.0.0.1'" for grant in grants))
        messages = problems(check_source(config(source, tmp_path, include=include, user="w", password="grün€")))
        assert len(messages) == len(expected)
        assert all(line.startswith(start) for line, start in zip(messages, expected, strict=True))
    finally:
        source.execute("DROP USER w@'127.0.0.1'")


def test_privileges_by_a_role(source: Server, tmp_path: Path) -> None:
    link = "TO" if source.kind.name == "mysql9" else "FOR"
    source.execute(
        "CREATE USER r@'127.0.0.1' IDENTIFIED BY 'x'",
        "CREATE ROLE reader",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader",
        "GRANT reader TO r@'127.0.0.1'",
        f"SET DEFAULT ROLE reader {link} r@'127.0.0.1'",
    )
    try:
        assert problems(check_source(config(source, tmp_path, user="r", password="x"))) == []
    finally:
        source.execute("DROP USER r@'127.0.0.1'", "DROP ROLE reader")


@pytest.mark.parametrize(
    ("url", "password", "error", "expected"),
    [
        (None, "wrong", SourceRefusedError, "the server refuses user 't' with this password"),
        ("mysql://nobody@127.0.0.1:{port}", "x", SourceRefusedError, "the server refuses user 'nobody'"),
        ("mysql://t@no-such-host.invalid:{port}", "pw", SourceUnavailableError, "the host's name is not known"),
        ("mysql://t@127.0.0.1:{free}", "pw", SourceUnavailableError, "nothing listens there (connection refused)"),
    ],
)
def test_no_connection(
    source: Server, tmp_path: Path, url: str | None, password: str, error: type[CdcError], expected: str
) -> None:
    given = None if url is None else url.format(port=source.port, free=free_port())
    with pytest.raises(error) as caught:
        check_source(config(source, tmp_path, url=given, password=password))
    assert expected in str(caught.value)
    assert password not in str(caught.value).replace("password", "")


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("mysql9", ["--skip-log-bin"], "source: log_bin: the server writes no binlog (log_bin is OFF)"),
        (
            "mariadb11",
            ["--binlog-ignore-db=pre"],
            "source: binlog_ignore_db: the server's binlog_ignore_db keeps changes",
        ),
    ],
)
def test_servers_that_cannot_be_captured(tmp_path: Path, kind: str, options: list[str], expected: str) -> None:
    with Server(kind, options=options) as server:
        server.execute("CREATE DATABASE pre", "CREATE TABLE pre.good (id INT PRIMARY KEY)")
        destination = config(server, tmp_path)
        with pytest.raises(SourceRefusedError) as caught:
            require_source(destination, connect(destination.source))
        assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("kind", "option", "sessions"),
    [
        ("mysql9", "binlog-ignore-db=other", "sessions whose default database is other: a TRUNCATE"),
        ("mysql9", "binlog-do-db=pre", "sessions whose default database is not pre: a TRUNCATE"),
        (
            "mariadb11",
            "binlog-do-db=pre",
            "sessions whose default database is not pre or that have no default database: a TRUNCATE",
        ),
    ],
)
def test_filters_of_the_binlog_must_be_accepted(tmp_path: Path, kind: str, option: str, sessions: str) -> None:
    with Server(kind, options=[f"--{option}"]) as server:
        server.execute("CREATE DATABASE pre", "CREATE TABLE pre.good (id INT PRIMARY KEY)")
        destination = config(server, tmp_path)
        with pytest.raises(SourceRefusedError, match=sessions) as caught:
            require_source(destination, connect(destination.source))
        assert "source.accept_binlog_filters: true" in str(caught.value)
        source = destination.source.model_copy(update={"accept_binlog_filters": True})
        accepted = destination.model_copy(update={"source": source})
        require_source(accepted, connect(accepted.source))
        (finding,) = [f for f in check_source(accepted) if f.level != "ok"]
        assert finding.level == "warning" and sessions in finding.message
