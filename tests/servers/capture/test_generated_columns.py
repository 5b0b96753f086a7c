"""Generated columns, which MariaDB 11.8.9 leaves out of the rows of updates and deletes: capture takes such rows, and no
rows that lack other columns."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import SourceRefusedError, UnsupportedEventError
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.decode.reader import DecodeOptions, read
from cdc.testing.servers import Server
from tests.support.binlog_files import new_binlog_file
from tests.support.snapshots import write_config
from tests.support.versions import lacks, needs

Database = Callable[[Server], str]
WORK = (
    "INSERT INTO t (id, a, b) VALUES (1, 10, 'x'), (2, NULL, 'y'), (3, 30, NULL), (4, 40, 'z')",
    "UPDATE t SET a = a + 1",
    "UPDATE t SET b = NULL WHERE id = 2",
    "UPDATE t SET id = 5, b = REPEAT('moved', 100) WHERE id = 4",
    "REPLACE INTO t (id, a, b) VALUES (3, 31, 'replaced'), (6, 60, 'new')",
    "DELETE FROM t WHERE id = 1",
)
COLUMNS = ("id", "a", "b")
KEPT = [{"id": 2, "a": None, "b": None}, {"id": 3, "a": 31, "b": "replaced"},
        {"id": 5, "a": 41, "b": "moved" * 100}, {"id": 6, "a": 60, "b": "new"}]  # fmt: skip


@pytest.fixture(params=["mysql9", "mariadb11", pytest.param("mariadb10", marks=pytest.mark.long)])
def begun(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> tuple[Server, str, DestinationConfig]:
    server: Server = request.getfixturevalue(request.param)
    db = database(server)
    config = write_config(server, tmp_path, rf"{db}\..*")
    Capture(config).run(until_current=True)
    return server, db, config


def load_text(file: Path, text: str) -> DestinationConfig:
    file.write_text(text)
    return load(file)


def run(server: Server, db: str, *statements: str) -> None:
    server.execute(f"USE `{db}`", *statements)


def state(config: DestinationConfig, table: str) -> list[dict[str, Any]]:
    """The rows that the changes in the store leave, with their old images compared on the way."""
    row_by_id: dict[int, dict[str, Any]] = {}
    options = DecodeOptions(images="both", columns=COLUMNS)
    for batch in read(config.store.path, table=table, options=options):
        for row in batch.to_pylist():
            if row["_before"] is not None:
                assert row_by_id.pop(row["_before"]["id"]) == row["_before"]
            if row["_op"] != 0:
                row_by_id[row["id"]] = {name: row[name] for name in COLUMNS}
    return [row_by_id[key] for key in sorted(row_by_id)]


@pytest.mark.parametrize("compressed", [False, True])
def test_rows_without_generated_columns_are_captured(
    begun: tuple[Server, str, DestinationConfig], compressed: bool
) -> None:
    server, db, config = begun
    needs(server, "compressed transactions")
    compression = "binlog_transaction_compression" if server.kind.name == "mysql9" else "log_bin_compress"
    server.execute(f"SET GLOBAL {compression} = {'ON' if compressed else 'OFF'}")
    wide = ", ".join(f"g{n} INT AS (a + {n}) {'STORED' if n % 2 else 'VIRTUAL'}" for n in range(9))
    try:
        run(
            server,
            db,
            f"CREATE TABLE t (id INT PRIMARY KEY, {wide}, a INT, s TEXT AS (REPEAT('s', id)), b TEXT)",
        )
        for statement in WORK:
            run(server, db, statement)
            Capture(config).run(until_current=True)  # each run reads the last stored transaction again
    finally:
        server.execute(f"SET GLOBAL {compression} = OFF")
    assert state(config, f"{db}.t") == KEPT
    if server.kind.name == "mariadb11" and not lacks(server, "rows without generated columns"):
        for columns in (None, ["id", "g3"]):
            with pytest.raises(SourceRefusedError, match=r"lack the column g\d, .*columns: \{g\d: drop\}"):
                list(read(config.store.path, table=f"{db}.t", options=DecodeOptions(columns=columns)))


def test_a_generated_column_that_comes_and_goes(begun: tuple[Server, str, DestinationConfig], tmp_path: Path) -> None:
    """All of it is captured at once, so that DDL statements and rows come in one piece of the stream, and the table is
    another one by then."""
    server, db, config = begun
    file = new_binlog_file(server)
    run(
        server,
        db,
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT)",
        *WORK[:2],
        "ALTER TABLE t ADD g INT AS (a + 1) STORED AFTER id",
        *WORK[2:4],
        "ALTER TABLE t DROP g, ADD h VARCHAR(9) AS (CONCAT('h', id)) FIRST",
        *WORK[4:],
    )
    server.execute("FLUSH BINARY LOGS")
    (tmp_path / "files").mkdir()
    shutil.copy(file, tmp_path / "files")
    of_files = load_text(
        tmp_path / "conf" / "of_files.yaml",
        f"source: {{url: 'binlog://{tmp_path / 'files'}', start: earliest}}\ntables: {{include: ['{db}\\..*']}}\n"
        "store: {path: files-store}\nmeta: {path: files-meta}\napply: {target: ./lake}\n",
    )
    Capture(of_files).run(until_current=True)  # definitions follow the statements in the files
    assert state(of_files, f"{db}.t") == KEPT
    if server.kind.name == "mariadb11" and not lacks(server, "rows without generated columns"):
        with pytest.raises(UnsupportedEventError, match="only some of its columns"):
            Capture(config).run(until_current=True)  # the server cannot tell any more that g was generated
        return
    Capture(config).run(until_current=True)
    assert state(config, f"{db}.t") == KEPT


def test_a_generated_column_that_comes_with_its_rows(begun: tuple[Server, str, DestinationConfig]) -> None:
    server, db, config = begun
    run(server, db, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT)", *WORK[:2])
    run(server, db, "ALTER TABLE t ADD g INT AS (a + 1) STORED AFTER id", *WORK[2:])
    Capture(config).run(until_current=True)
    assert state(config, f"{db}.t") == KEPT


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_rows_without_other_columns_are_refused(begun: tuple[Server, str, DestinationConfig], image: str) -> None:
    server, db, config = begun
    run(server, db, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT, g INT AS (a + 1))", *WORK[:2])
    run(server, db, f"SET SESSION binlog_row_image = {image}", "UPDATE t SET a = 7 WHERE id = 2")
    run(server, db, "UPDATE t SET a = 8 WHERE id = 2")
    with pytest.raises(UnsupportedEventError, match=r"only some of its columns.*binlog_row_image=FULL"):
        Capture(config).run(until_current=True)
    rows = state(config, f"{db}.t")
    assert [row["a"] for row in rows] == [11, None, 31, 41]


def test_the_hidden_hash_of_a_unique_text_is_no_column(begun: tuple[Server, str, DestinationConfig]) -> None:
    """MariaDB has it in its table maps (``DB_ROW_HASH_1``), and 11.8.9 leaves it out of updates and deletes."""
    server, db, config = begun
    if server.kind.name == "mysql9":
        run(server, db, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT, DB_ROW_HASH_1 BIGINT UNSIGNED)")
    else:
        run(server, db, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT, UNIQUE (b))")
    run(server, db, *WORK)
    Capture(config).run(until_current=True)
    assert state(config, f"{db}.t") == KEPT
    own = ("DB_ROW_HASH_1",) if server.kind.name == "mysql9" else ()
    for batch in read(config.store.path, table=f"{db}.t"):
        assert tuple(name for name in batch.schema.names if not name.startswith("_")) == (*COLUMNS, *own)
