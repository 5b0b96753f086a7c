"""The schema history, mostly of servers whose table maps name no columns: MySQL 5.6 with and without GTIDs, with
transactional and other engines."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.base.errors import (
    ConfigError,
    SourceRefusedError,
    SourceUnavailableError,
    UnsupportedDdlError,
    UnsupportedTypeError,
)
from cdc.binlog.entry import EntryFlag
from cdc.binlog.file import BinlogFile
from cdc.binlog.sql.schemas import Schemas
from cdc.capture import Capture, schema_history
from cdc.cli import main as cli
from cdc.config import DestinationConfig, TablesConfig, load
from cdc.source.schemas import read_schemas
from cdc.source.server import Connection
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments, schemas_folder
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import PASSWORD, Server
from tests.support.versions import lacks, needs

Database = Callable[[Server], str]


@pytest.fixture(scope="module")
def no_gtids() -> Iterator[Server]:
    """Configured as many servers are after an upgrade from 5.5: no GTIDs, no checksums, row events of version 1."""
    options = ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--binlog-checksum=NONE"]
    with Server("mysql56", options=[*options, "--log-bin-use-v1-row-events=1"]) as server:
        yield server


def configure(folder: Path, server: Server, db: str, *, start: str = "now") -> DestinationConfig:
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    file = folder / "conf" / "shop.yaml"
    file.write_text(
        f"source: {{url: '{server.url}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {zlib.crc32(str(folder).encode()) + 1}, start: {start}}}\n"
        f"tables: {{include: ['{db}\\..*']}}\n"
        "store: {path: data/store}\nmeta: {path: data/meta}\napply: {target: ./lake, mode: append}\n"
    )
    return load(file)


@pytest.fixture
def db(mysql56: Server, database: Database) -> str:
    return database(mysql56)


@pytest.fixture
def begun(mysql56: Server, db: str, tmp_path: Path) -> DestinationConfig:
    """Returns a destination whose capture began after its tables were created."""
    mysql56.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT)", f"CREATE TABLE {db}.u (id INT PRIMARY KEY)")
    config = configure(tmp_path, mysql56, db)
    Capture(config).run(until_current=True)
    return config


def columns(config: DestinationConfig, table: str, seq: int) -> tuple[str, ...] | None:
    """Returns a table's column names at a seq."""
    path = StoreReader(config.store.path).schema_path(seq)
    assert path is not None
    schema = Schemas.load(path).tables.get(table)
    return None if schema is None else schema.column_names


def entries_of(config: DestinationConfig) -> list[tuple[int, bool]]:
    """Returns (seq, whether it is DDL) of each transaction in the store."""
    entries = [e for s in list_segments(config.store.path) for e in read_entries(s) if e["length"]]
    return [(int(e["seq"]), bool(int(e["flags"]) & EntryFlag.DDL)) for e in entries]


@pytest.mark.parametrize("kind", ["mysql56", "no_gtids"])
def test_transactions_are_framed(
    kind: str, request: pytest.FixtureRequest, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    config = configure(tmp_path, server, db)
    assert Capture(config).run(until_current=True).transactions == 0
    with server.connect() as conn, conn.cursor() as cursor:
        cursor.execute("SELECT UNIX_TIMESTAMP()")
        before = cursor.fetchone()
    statements = [
        f"CREATE TABLE {db}.i (id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET gbk) ENGINE=InnoDB",
        f"CREATE TABLE {db}.m (id INT PRIMARY KEY) ENGINE=MyISAM",
        *[f"INSERT INTO {db}.m VALUES (1), (2)", f"UPDATE {db}.m SET id = id + 10"],
        "START TRANSACTION",
        *[f"INSERT INTO {db}.i (id) VALUES (2)", f"UPDATE {db}.i SET v = 'x'"],
        "COMMIT",
        *[f"TRUNCATE TABLE {db}.i", f"ALTER TABLE {db}.i ADD z INT", f"DROP TABLE {db}.m"],
    ]
    rows = [0, 0, 1, 1, 2, 0, 0, 0]
    if kind != "mysql56":  # not allowed with GTIDs
        statements.append(f"CREATE TABLE {db}.s SELECT 1 AS one")
        rows += [1] if not lacks(server, "one transaction of CREATE TABLE SELECT") else [0, 1]
    done = 0
    for part in (statements[:2], statements[2:]):
        server.execute(*part)
        done += Capture(config).run(until_current=True).transactions
    assert done == len(rows)
    assert Capture(config).run(until_current=True).transactions == 0
    [segment] = list_segments(config.store.path)
    entries = [e for e in read_entries(segment) if e["length"]]
    assert [int(e["row_events"]) for e in entries] == rows
    assert [bool(int(e["flags"]) & EntryFlag.DDL) for e in entries] == [
        n == 0 or len(rows) == 9 == i + 1 for i, n in enumerate(rows)
    ]
    assert before is not None
    seconds = [int(e["commit_time_us"]) / 1e6 for e in entries]
    assert all(s == int(s) and before[0] <= s <= before[0] + 20 for s in seconds)
    numbers = [int(e["gtid_number"]) for e in entries]
    assert numbers == (list(range(numbers[0], numbers[0] + 8)) if kind == "mysql56" else [0] * len(rows))
    # A scan of the segment finds what capture wrote.
    (config.store.path / "checkpoint").unlink()
    capsys.readouterr()
    assert cli.main(["inspect", str(segment), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True


def position(server: Server) -> str:
    with server.connect() as conn, conn.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        (file, pos, *_) = cursor.fetchone() or ()
    return f"{{file: {file}, pos: {pos}}}"


def test_a_start_in_the_past_is_possible_where_no_rows_lie_before_a_change(
    mysql56: Server, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = position(mysql56)
    mysql56.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT)",
        f"ALTER TABLE {db}.t CHANGE a b INT",
        f"INSERT INTO {db}.t VALUES (1, 1)",
        f"ALTER TABLE {db}.t ADD INDEX (b)",
    )
    behind = position(mysql56)
    config = configure(tmp_path, mysql56, db, start=begin)
    assert cli.main(["--conf-dir", str(config.file.parent), "check", "shop", "--json"]) == 0
    [warned] = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["subject"] == "source: start"]
    assert warned["level"] == "warning" and "rows there name no columns" in warned["message"]
    assert Capture(config).run(until_current=True).transactions == 4
    assert columns(config, f"{db}.t", entries_of(config)[-1][0]) == ("id", "b")
    mysql56.execute(f"ALTER TABLE {db}.t CHANGE b c INT", f"INSERT INTO {db}.t VALUES (2, 2)")
    # Another store that begins where the first one did would give the first row the names of the second.
    other = configure(tmp_path / "other", mysql56, db, start=begin)
    with pytest.raises(UnsupportedDdlError, match=r"the column names of its rows behind \S+ are unknown") as caught:
        Capture(other).run(until_current=True)
    assert caught.value.place == f"table {db}.t" and "source.start" in (caught.value.remedy or "")
    assert entries_of(other) == [] and not list(schemas_folder(other.store.path).glob("*.json"))
    # The same destination can begin behind them: a table without rows before the statement is not in doubt.
    other = configure(tmp_path / "other", mysql56, db, start=behind)
    assert Capture(other).run(until_current=True).transactions == 2
    assert columns(other, f"{db}.t", entries_of(other)[-1][0]) == ("id", "c")
    # An existing store continues, whatever source.start says now.
    configure(tmp_path, mysql56, db, start="earliest")
    assert Capture(load(config.file)).run(until_current=True).transactions == 2


@pytest.mark.parametrize("statement", ["DROP TABLE {0}.t", "RENAME TABLE {0}.t TO {0}.s", "DROP DATABASE {0}"])
def test_a_table_that_is_gone(mysql56: Server, db: str, tmp_path: Path, statement: str) -> None:
    """Its columns cannot be read any more."""
    begin = position(mysql56)
    mysql56.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)", f"INSERT INTO {db}.t VALUES (1)", statement.format(db))
    mysql56.execute(f"CREATE DATABASE IF NOT EXISTS {db}", f"CREATE TABLE {db}.u (id INT PRIMARY KEY)")
    config = configure(tmp_path, mysql56, db, start=begin)
    with pytest.raises(UnsupportedDdlError, match="the column names of its rows") as caught:
        Capture(config).run(until_current=True)
    assert caught.value.place == f"table {db}.t"


def test_a_time_needs_gtids(no_gtids: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    needs(no_gtids, "times by GTIDs alone")
    db = database(no_gtids)
    config = configure(tmp_path, no_gtids, db, start="{time: '2026-01-01T00:00:00Z'}")
    with pytest.raises(ConfigError, match=r"MySQL before 5\.7 without GTIDs"):
        Capture(config).run(until_current=True)


def test_init_names_the_start(
    mysql56: Server, db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CDC_SOURCE_PASSWORD", PASSWORD)
    monkeypatch.chdir(tmp_path)
    mysql56.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    assert cli.main(["init", mysql56.url, "--target", "./lake", "--tables", rf"{db}\..*", "--name", "old"]) == 0
    capsys.readouterr()
    assert "start: snapshot" in (tmp_path / "conf/old.yaml").read_text()
    assert cli.main(["check", "old"]) == 0
    assert "no metadata (the server is too old for it)" in capsys.readouterr().out
    assert cli.main(["capture", "old", "--until-current"]) == 0


def test_a_definition_that_cannot_be_read(
    mysql56: Server, db: str, begun: DestinationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement is not stored without its definition. Transactions before it are, and later ones are stored once."""
    mysql56.execute(
        f"INSERT INTO {db}.t VALUES (1, 1)",
        f"ALTER TABLE {db}.t CHANGE a b INT",
        f"INSERT INTO {db}.t VALUES (2, 2)",
    )
    calls = 0

    def fails_once(conn: Connection, tables: TablesConfig) -> Schemas:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first call is at the start of capture
            raise SourceUnavailableError("the connection failed")
        return read_schemas(conn, tables)

    monkeypatch.setattr(schema_history, "read_schemas", fails_once)
    assert Capture(begun).run(until_current=True).transactions == 3
    assert calls == 4
    assert [ddl for _, ddl in entries_of(begun)] == [False, True, False]
    assert [columns(begun, f"{db}.t", seq) for seq, _ in entries_of(begun)] == [("id", "a"), ("id", "b"), ("id", "b")]
    [segment] = list_segments(begun.store.path)
    assert BinlogFile.open(segment).entries["seq"].tolist()[-3:] == [seq for seq, _ in entries_of(begun)]


@pytest.mark.parametrize("kind", ["mysql9", "mysql56"])
def test_a_migration_of_many_statements_takes_few_looks(
    kind: str, request: pytest.FixtureRequest, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without names in table maps. The definitions hold for each statement and for the rows behind it."""
    server: Server = request.getfixturevalue(kind)
    name = database(server)
    server.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    config = configure(tmp_path, server, name)
    Capture(config).run(until_current=True)
    server.execute(
        *(f"CREATE TABLE {name}.n{number} (id INT PRIMARY KEY)" for number in range(60)),
        *(f"ALTER TABLE {name}.t ADD c{number} INT" for number in range(20)),
        f"INSERT INTO {name}.t (id, c19) VALUES (1, 1)",
    )
    calls = 0

    def counted(conn: Connection, tables: TablesConfig) -> Schemas:
        nonlocal calls
        calls += 1
        return read_schemas(conn, tables)

    monkeypatch.setattr(schema_history, "read_schemas", counted)
    assert Capture(config).run(until_current=True).transactions == 81
    assert calls < 20
    entries = entries_of(config)
    assert [ddl for _, ddl in entries] == [True] * 80 + [False]
    assert all(columns(config, f"{name}.n59", seq) == ("id",) for seq, _ in entries[60:])
    assert columns(config, f"{name}.t", entries[-1][0]) == ("id", *(f"c{number}" for number in range(20)))


def test_definitions_do_not_apply_to_earlier_rows(mysql56: Server, db: str, begun: DestinationConfig) -> None:
    """Changes made while capture was stopped apply from the statement on, and to its table only."""
    mysql56.execute(
        f"INSERT INTO {db}.t VALUES (1, 1)",
        f"ALTER TABLE {db}.u ADD b INT",
        f"INSERT INTO {db}.t VALUES (2, 2)",
        f"ALTER TABLE {db}.t CHANGE a renamed INT",
        f"INSERT INTO {db}.t VALUES (3, 3)",
        f"ALTER TABLE {db}.t ADD INDEX (renamed)",
        f"INSERT INTO {db}.t VALUES (4, 4)",
    )
    assert Capture(begun).run(until_current=True).transactions == 7
    seqs = [seq for seq, _ in entries_of(begun)]
    old, new = ("id", "a"), ("id", "renamed")
    assert [columns(begun, f"{db}.t", seq) for seq in seqs] == [old] * 3 + [new] * 4
    assert [columns(begun, f"{db}.u", seq) for seq in seqs] == [("id",)] + [("id", "b")] * 6


@pytest.mark.parametrize("rows_between", [False, True])
def test_two_changes_of_one_table(mysql56: Server, db: str, begun: DestinationConfig, rows_between: bool) -> None:
    mysql56.execute(
        f"ALTER TABLE {db}.t CHANGE a b INT",
        *([f"INSERT INTO {db}.t VALUES (1, 1)"] if rows_between else []),
        f"INSERT INTO {db}.u VALUES (1)",
        f"ALTER TABLE {db}.t CHANGE b a2 INT",
        f"INSERT INTO {db}.t VALUES (2, 1)",
    )
    if not rows_between:
        assert Capture(begun).run(until_current=True).transactions == 4
        assert columns(begun, f"{db}.t", entries_of(begun)[-1][0]) == ("id", "a2")
        return
    for _ in range(2):  # the second run stops at the same statement
        with pytest.raises(UnsupportedDdlError, match=r"the column names of its rows .* are unknown") as caught:
            Capture(begun).run(until_current=True)
        assert str(caught.value).startswith(f"table {db}.t: ")
        assert [ddl for _, ddl in entries_of(begun)] == [True, False, False]


def test_a_table_that_was_left_out_for_a_while(mysql56: Server, db: str, begun: DestinationConfig) -> None:
    """Its definition is read anew when it is included again, because nobody followed the statements meanwhile."""
    text = begun.file.read_text()
    begun.file.write_text(text.replace("']}", f"'], exclude: ['{db}\\.t']}}", 1))
    mysql56.execute(f"INSERT INTO {db}.u VALUES (1)")
    Capture(load(begun.file)).run(until_current=True)
    mysql56.execute(f"ALTER TABLE {db}.t CHANGE a b INT", f"INSERT INTO {db}.u VALUES (2)")
    Capture(load(begun.file)).run(until_current=True)
    begun.file.write_text(text)
    mysql56.execute(f"INSERT INTO {db}.t VALUES (1, 1)")
    Capture(begun).run(until_current=True)
    assert columns(begun, f"{db}.t", entries_of(begun)[-1][0]) == ("id", "b")


def test_a_drop_removes_the_definition(mysql56: Server, db: str, begun: DestinationConfig) -> None:
    mysql56.execute(
        f"DROP TABLE {db}.t",
        f"CREATE TABLE {db}.T2 (x INT)",
        f"RENAME TABLE {db}.T2 TO {db}.t",
        f"INSERT INTO {db}.t VALUES (1)",
        f"DROP TABLE {db}.u",
    )
    Capture(begun).run(until_current=True)
    last = entries_of(begun)[-1][0]
    assert (columns(begun, f"{db}.t", last), columns(begun, f"{db}.u", last)) == (("x",), None)
    assert any(Schemas.load(path).unsure for path in schemas_folder(begun.store.path).glob("*.json"))


SMILE, ROCKET = "\U0001f600", "\U0001f680"


def test_members_that_the_server_shows_as_question_marks(mysql56: Server, db: str, tmp_path: Path) -> None:
    """Capture refuses them unless they are configured or the column is dropped. The stored schema has the true members."""
    mysql56.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, e ENUM('a','{SMILE}','?') CHARACTER SET utf8mb4,"
        f" s SET('{ROCKET}','it''s') CHARACTER SET utf16)"
    )

    def configured(override: str) -> DestinationConfig:
        file = configure(tmp_path, mysql56, db).file
        text = file.read_text(encoding="utf-8").replace("']}\n", f"'], overrides: {{{db}.t: {override}}}}}\n")
        file.write_text(text, encoding="utf-8")
        return load(file)

    for override in (
        "{mode: append}",
        "{columns: {e: drop}}",
        f"{{columns: {{s: null}}, members: {{e: [a, '{SMILE}']}}}}",
    ):
        with pytest.raises(SourceRefusedError, match=r"question marks|the server shows"):
            Capture(configured(override)).run(until_current=True)
    assert Capture(configured("{columns: {e: drop, s: null}}")).run(until_current=True).transactions == 0
    config = configured(f"""{{members: {{e: [a, '{SMILE}', '?'], S: ['{ROCKET}', "it's"]}}}}""")
    assert Capture(config).run(until_current=True).transactions == 0
    mysql56.execute(f"INSERT INTO {db}.t VALUES (1, '{SMILE}', '{ROCKET}')", f"ALTER TABLE {db}.t ADD COLUMN n INT")
    assert Capture(config).run(until_current=True).transactions == 2
    for seq, _ in entries_of(config):
        path = StoreReader(config.store.path).schema_path(seq)
        assert path is not None
        by_name = {column.name: column.column_type for column in Schemas.load(path).tables[f"{db}.t"].columns}
        assert by_name["e"] == f"enum('a','{SMILE}','?')" and by_name["s"] == f"set('{ROCKET}','it''s')"
    mysql56.execute(f"CREATE TABLE {db}.u (id INT PRIMARY KEY, e ENUM('{ROCKET}') CHARACTER SET utf8mb4)")
    with pytest.raises(SourceRefusedError, match="question marks"):
        Capture(config).run(until_current=True)


def test_members_of_a_table_that_is_created_while_capture_runs(
    mysql56: Server, begun: DestinationConfig, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql56.execute(f"CREATE TABLE {db}.v (id INT PRIMARY KEY, e ENUM('{ROCKET}') CHARACTER SET utf8mb4)")
    # As if the table had been created after the preflight.
    monkeypatch.setattr("cdc.capture.servers.require_source", lambda *_: None)
    monkeypatch.setattr("cdc.capture.schema_history.SchemaHistory.begin", lambda *_: None)
    with pytest.raises(UnsupportedTypeError, match="question marks"):
        Capture(begun).run(until_current=True)
    assert len(entries_of(begun)) == 0
