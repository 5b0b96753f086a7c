"""Servers that could name the columns in their binlog and do not: ``binlog_row_metadata`` is MINIMAL or NO_LOG, always or
for a while."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import UnsupportedDdlError
from cdc.capture import Capture
from cdc.cli import main as cli
from cdc.config import DestinationConfig
from cdc.decode import DecodeOptions, read
from cdc.source.server import current_position
from cdc.testing.servers import Server
from tests.servers.capture.test_schema_history import configure
from tests.servers.decode.test_promises import decoded
from tests.support.versions import needs

LEAST = {"mysql9": "MINIMAL", "mariadb11": "NO_LOG"}
"""The server's own default."""


@pytest.fixture(params=LEAST)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server: Server = request.getfixturevalue(request.param)
    yield server
    server.execute("SET GLOBAL binlog_row_metadata = FULL")


@pytest.fixture
def least(server: Server) -> str:
    """The statement after which rows name no columns."""
    return f"SET GLOBAL binlog_row_metadata = {LEAST[server.kind.name]}"


FULL = "SET GLOBAL binlog_row_metadata = FULL"


@pytest.fixture
def db(server: Server, database: Callable[[Server], str]) -> str:
    return database(server)


def capture(config: DestinationConfig) -> None:
    Capture(config).run(until_current=True)


def position(server: Server) -> str:
    with server.connect() as conn:
        at = current_position(conn)
    return f"{{file: {at.file}, pos: {at.pos}}}"


def rows(config: DestinationConfig, db: str, table: str = "t") -> list[dict[str, Any]]:
    """The rows of a table in the store, without the columns that Towpath adds."""
    decoded_rows = decoded(list(read(config.store.path, table=f"{db}.{table}")))
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in decoded_rows]


COLUMNS = "u INT UNSIGNED, e ENUM('red', 'blüe'), s SET('x', 'y'), v VARCHAR(10) CHARACTER SET latin1, f TINYINT(1)"
ROW = {"id": 1, "u": 4294967295, "e": "blüe", "s": "x,y", "v": "Ã¼", "f": True}


def test_values_are_those_of_the_table(server: Server, least: str, db: str, tmp_path: Path) -> None:
    server.execute(least, f"CREATE TABLE {db}.t (id INT PRIMARY KEY, {COLUMNS})")
    config = configure(tmp_path, server, db)
    capture(config)
    server.execute(f"INSERT INTO {db}.t VALUES (1, 4294967295, 'blüe', 'x,y', 'Ã¼', 1)")
    capture(config)
    assert rows(config, db) == [ROW]
    server.execute(
        f"CREATE TABLE {db}.new (id INT PRIMARY KEY, a INT, b INT)",
        f"INSERT INTO {db}.new VALUES (1, 10, 20)",
        f"ALTER TABLE {db}.t ADD n BIGINT UNSIGNED FIRST",
        f"INSERT INTO {db}.t VALUES (18446744073709551615, 2, 1, 'red', 'x', 'y', 0)",
    )
    capture(config)
    assert rows(config, db, "new") == [{"id": 1, "a": 10, "b": 20}]
    last = rows(config, db)[-1]
    assert (last["n"], last["id"], last["e"], last["f"]) == (18446744073709551615, 2, "red", False)


def test_check_warns(server: Server, least: str, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.execute(least, f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    configure(tmp_path, server, db)
    assert cli.main(["--conf-dir", str(tmp_path / "conf"), "check", "shop", "--json"]) == 0
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    about = findings["source: binlog_row_metadata"]
    assert about["level"] == "warning"
    assert about["message"].startswith(f"binlog_row_metadata is {LEAST[server.kind.name]}; rows name no columns")
    assert about["remedy"] == (
        "SET GLOBAL binlog_row_metadata=FULL; and binlog_row_metadata=FULL in the server's configuration."
    )


def test_the_setting_changes_while_capture_reads(server: Server, least: str, db: str, tmp_path: Path) -> None:
    """The table id stays the same, and the columns change places behind it."""
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT, b INT)")
    config = configure(tmp_path, server, db)
    capture(config)
    server.execute(f"INSERT INTO {db}.t VALUES (1, 10, 20)", least, f"INSERT INTO {db}.t VALUES (2, 10, 20)")
    capture(config)
    expected = [{"id": 1, "a": 10, "b": 20}, {"id": 2, "a": 10, "b": 20}]
    assert rows(config, db) == expected
    server.execute(
        f"INSERT INTO {db}.t VALUES (3, 10, 20)",
        f"ALTER TABLE {db}.t CHANGE a b INT, CHANGE b a INT",
        f"INSERT INTO {db}.t VALUES (4, 10, 20)",
        FULL,
        f"INSERT INTO {db}.t VALUES (5, 10, 20)",
    )
    capture(config)
    expected += [{"id": 3, "a": 10, "b": 20}, {"id": 4, "b": 10, "a": 20}, {"id": 5, "b": 10, "a": 20}]
    assert rows(config, db) == expected


def test_a_server_that_was_restarted_with_its_own_default(server: Server, least: str, db: str, tmp_path: Path) -> None:
    """The definitions of the time with names hold until a statement changes them."""
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT, b INT)")
    config = configure(tmp_path, server, db)
    capture(config)
    server.execute(
        f"INSERT INTO {db}.t VALUES (1, 10, 20)",
        least,
        f"INSERT INTO {db}.t VALUES (2, 10, 20)",
        f"ALTER TABLE {db}.t CHANGE a b INT, CHANGE b a INT",
        f"INSERT INTO {db}.t VALUES (3, 10, 20)",
    )
    capture(config)
    assert rows(config, db) == [
        {"id": 1, "a": 10, "b": 20},
        {"id": 2, "a": 10, "b": 20},
        {"id": 3, "b": 10, "a": 20},
    ]


@pytest.mark.parametrize("swaps", [1, 2])
def test_rows_whose_names_nobody_knows(server: Server, least: str, db: str, tmp_path: Path, swaps: int) -> None:
    """Names were missing for a while, before a change of the table, and capture reads it all later. Two changes that
    undo each other leave the definition as it was, and the rows between them have another one."""
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT, b INT)")
    config = configure(tmp_path, server, db)
    capture(config)
    swap = f"ALTER TABLE {db}.t CHANGE a b INT, CHANGE b a INT"
    server.execute(
        f"INSERT INTO {db}.t VALUES (0, 10, 20)",
        *[swap] * (swaps - 1),
        least,
        f"INSERT INTO {db}.t VALUES (1, 10, 20)",
        swap,
        f"INSERT INTO {db}.t VALUES (2, 10, 20)",
        FULL,
        f"INSERT INTO {db}.t VALUES (3, 10, 20)",
    )
    for _ in range(2):  # and it stays so
        with pytest.raises(UnsupportedDdlError, match=r"the column names of its rows .* are unknown"):
            capture(config)
    assert rows(config, db)[0] == {"id": 0, "a": 10, "b": 20}


def test_rows_without_names_before_the_first_ones_with_names(
    server: Server, least: str, db: str, tmp_path: Path
) -> None:
    """A server was just told to write FULL metadata, with a start before it."""
    begin = position(server)
    server.execute(
        least,
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT, b INT)",
        f"INSERT INTO {db}.t VALUES (1, 10, 20)",
        FULL,
        f"INSERT INTO {db}.t VALUES (2, 10, 20)",
    )
    config = configure(tmp_path, server, db, start=begin)
    capture(config)
    assert rows(config, db) == [{"id": 1, "a": 10, "b": 20}, {"id": 2, "a": 10, "b": 20}]
    server.execute(f"ALTER TABLE {db}.t CHANGE a b INT, CHANGE b a INT", f"INSERT INTO {db}.t VALUES (3, 10, 20)")
    capture(config)
    assert rows(config, db)[-1] == {"id": 3, "b": 10, "a": 20}


def test_rows_with_names_before_a_change_are_no_obstacle(server: Server, least: str, db: str, tmp_path: Path) -> None:
    """The server wrote FULL metadata in the past, where capture begins."""
    begin = position(server)
    server.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT, b INT)",
        f"INSERT INTO {db}.t VALUES (1, 10, 20)",
        f"ALTER TABLE {db}.t CHANGE a b INT, CHANGE b a INT",
        least,
        f"INSERT INTO {db}.t VALUES (2, 10, 20)",
    )
    config = configure(tmp_path, server, db, start=begin)
    capture(config)
    assert rows(config, db) == [{"id": 1, "a": 10, "b": 20}, {"id": 2, "b": 10, "a": 20}]


SEEDS = [pytest.param(seed, marks=[pytest.mark.long] if seed >= 3 else []) for seed in range(30)]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_value_comes_into_another_column(server: Server, least: str, db: str, tmp_path: Path, seed: int) -> None:
    """The setting and the columns change at random moments. A row always has ten times its id in ``a``, and one more
    in ``b``; if capture cannot know the columns, it stops."""
    dice = random.Random(seed)
    begin = position(server)
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT, b INT)")
    config = configure(tmp_path, server, db, start=dice.choice(["now", begin]))
    if config.source.start == "now":
        capture(config)
    inserted: list[int] = []
    refused, has_more = "", False

    def change() -> str:
        nonlocal has_more
        if dice.random() < 0.6:
            inserted.append(len(inserted) + 1)
            return (
                f"INSERT INTO {db}.t (id, b, a) VALUES ({inserted[-1]}, {inserted[-1] * 10 + 1}, {inserted[-1] * 10})"
            )
        if dice.random() < 0.5:
            return dice.choice([least, FULL])
        if dice.random() < 0.6:
            return f"ALTER TABLE {db}.t CHANGE a b INT, CHANGE b a INT"
        has_more = not has_more
        return f"ALTER TABLE {db}.t {'ADD c INT FIRST' if has_more else 'DROP c'}"

    for _ in range(dice.randint(2, 5)):
        server.execute(*[change() for _ in range(dice.randint(1, 6))])
        try:
            capture(config)
        except UnsupportedDdlError as error:
            refused = str(error)
            break
    stored = rows(config, db)
    assert [(row["a"], row["b"]) for row in stored] == [(row["id"] * 10, row["id"] * 10 + 1) for row in stored]
    assert [row["id"] for row in stored] == inserted[: len(stored)]
    assert "the column names of its rows" in refused or len(stored) == len(inserted)


def test_compressed_transactions(mysql9: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    """Their table maps lie inside."""
    needs(mysql9, "compressed transactions")
    db = database(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT, b INT)")
    config = configure(tmp_path, mysql9, db)
    capture(config)
    try:
        mysql9.execute(
            "SET SESSION binlog_transaction_compression = ON",
            f"INSERT INTO {db}.t VALUES (1, 10, 20)",
            "SET GLOBAL binlog_row_metadata = MINIMAL",
            f"INSERT INTO {db}.t VALUES (2, 10, 20)",
            f"ALTER TABLE {db}.t CHANGE a b INT, CHANGE b a INT",
            f"INSERT INTO {db}.t VALUES (3, 10, 20)",
        )
        capture(config)
    finally:
        mysql9.execute(FULL)
    assert rows(config, db) == [
        {"id": 1, "a": 10, "b": 20},
        {"id": 2, "a": 10, "b": 20},
        {"id": 3, "b": 10, "a": 20},
    ]


def test_columns_that_the_server_hides(mysql9: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    """A key that the server made by itself is in the rows, and in information_schema only for those who ask for it. The
    column behind an index of an expression is in neither."""
    needs(mysql9, "invisible keys")
    db = database(mysql9)
    mysql9.execute(
        "SET GLOBAL binlog_row_metadata = MINIMAL",
        "SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF",
        "SET SESSION sql_generate_invisible_primary_key = ON",
        f"CREATE TABLE {db}.t (a VARCHAR(20), i INT INVISIBLE, g INT AS (i + 1) VIRTUAL, KEY ((UPPER(a))))",
    )
    config = configure(tmp_path, mysql9, db)
    try:
        capture(config)
        mysql9.execute(f"INSERT INTO {db}.t (a, i) VALUES ('x', 1)", f"UPDATE {db}.t SET i = 2")
        capture(config)
    finally:
        mysql9.execute(FULL, "SET GLOBAL show_gipk_in_create_table_and_information_schema = ON")
    assert rows(config, db) == [{"my_row_id": 1, "a": "x", "i": i, "g": i + 1} for i in (1, 2)]


def test_generated_columns_that_rows_lack(mariadb11: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    db = database(mariadb11)
    mariadb11.execute(
        "SET GLOBAL binlog_row_metadata = NO_LOG",
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, a INT, g INT AS (a + 1) VIRTUAL, u UUID, n INET4)",
    )
    config = configure(tmp_path, mariadb11, db)
    try:
        capture(config)
        key = "55907609-e98b-11f1-aa91-02fc00000001"
        mariadb11.execute(
            f"INSERT INTO {db}.t (id, a, u, n) VALUES (1, 2, '{key}', '1.2.3.4')", f"UPDATE {db}.t SET a = 5"
        )
        capture(config)
    finally:
        mariadb11.execute(FULL)
    stored = decoded(
        list(read(config.store.path, table=f"{db}.t", options=DecodeOptions(columns=["id", "a", "u", "n"])))
    )
    assert [(row["id"], row["a"], row["u"], row["n"]) for row in stored] == [(1, a, key, "1.2.3.4") for a in (2, 5)]


def test_members_that_the_server_shows_as_question_marks(
    server: Server, least: str, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have to be written into the configuration, since no table map holds them."""
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, e ENUM('a', '\U0001f600') CHARACTER SET utf8mb4)")
    config = configure(tmp_path, server, db)
    command = ["--conf-dir", str(config.file.parent), "check", "shop"]
    assert cli.main(command) == 0
    server.execute(least)
    assert cli.main(command) == 2
    assert "question marks" in capsys.readouterr().out
