"""``cdc history`` on stores of real servers: keys of every type, altered tables, changed keys, a million changes."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc.cli.main import main
from cdc.lake.foreign_keys.row_history import unlogged_changes
from cdc.lake.history import add_unlogged, definition_of
from cdc.lake.history import search as find
from cdc.lake.rows.row_keys import RowKey
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.foreign_keys import RandomRows, RandomTable

Database = Callable[[Server], str]
HISTORY_ROUNDS = int(os.environ.get("TOWPATH_HISTORY_ROUNDS") or 3)


class Asked:
    """The answers of the command for one destination."""

    def __init__(self, loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
        self.loop, self._capsys = loop, capsys
        self.remarks = ""

    def run(self, *words: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = main(["--conf-dir", str(self.loop.config.file.parent), "history", *words])
        printed = self._capsys.readouterr()
        self.remarks = printed.err
        return code, printed.out

    def changes(self, table: str, key: str) -> list[dict[str, Any]]:
        code, text = self.run("--json", "shop", f"{self.loop.db}.{table}", "--", key)
        assert code == 0, self.remarks
        changes: list[dict[str, Any]] = json.loads(text)
        order = [(change["seq"], change["row"]) for change in changes]
        assert order == sorted(order)
        return changes


def short(changes: list[dict[str, Any]], column: str) -> list[tuple[Any, ...]]:
    return [
        (change["op"], (change["before"] or {}).get(column), (change["after"] or {}).get(column)) for change in changes
    ]


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_every_change_of_a_row(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    loop = Loop(tmp_path, server, database(server), overrides="DB.plain: {keys: [word]}")
    loop.sql(
        "CREATE TABLE one (id INT PRIMARY KEY, v VARCHAR(20), d DECIMAL(6,2))",
        "CREATE TABLE two (a BIGINT UNSIGNED, b VARCHAR(20) COLLATE utf8mb4_general_ci, n INT, PRIMARY KEY (a, b))",
        "CREATE TABLE plain (word VARCHAR(9) NOT NULL, raw VARBINARY(4), at DATETIME(3))",
        "INSERT INTO one VALUES (1, 'a', 1.5), (2, 'b', 2), (-3, 'c', NULL)",
        "UPDATE one SET v = 'A' WHERE id = 1",
        "UPDATE one SET v = CONCAT(v, '!')",
        "UPDATE one SET id = 9 WHERE id = 1",
        "UPDATE one SET d = 7 WHERE id = 9",
        "DELETE FROM one",
        "INSERT INTO two VALUES (18446744073709551615, 'x,y', 1), (1, 'é', 2), (1, 'z', 3)",
        "UPDATE two SET n = n + 1",
        "UPDATE two SET b = 'É' WHERE b = 'é'",
        "INSERT INTO plain VALUES ('w', x'00ff', '2026-01-02 03:04:05.678')",
        "UPDATE plain SET raw = NULL",
    )
    loop.capture()
    asked = Asked(loop, capsys)
    assert short(asked.changes("one", "1"), "v") == [
        ("insert", None, "a"),
        ("update", "a", "A"),
        ("update", "A", "A!"),
        ("delete", "A!", None),
    ]
    assert asked.remarks == ""
    first, *_, last = asked.changes("one", "ID=1")
    assert last["moved_to"] == {"id": 9}
    assert {*first} == {
        "seq", "row", "op", "commit_time", "gtid", "file", "pos", "before", "after",
        "batch", "delta_version", "rebuild", "run", "run_url",
    }  # fmt: skip
    assert first["after"] == {"id": 1, "v": "a", "d": "1.50"} and first["before"] is None
    assert first["seq"] & ((1 << 34) - 1) == first["pos"] and first["gtid"]
    moved = asked.changes("one", '{"id": 9}')
    assert [change["op"] for change in moved] == ["insert", "update", "delete"]
    assert moved[0]["moved_from"] == {"id": 1}
    assert short(asked.changes("one", "-3"), "v") == [
        ("insert", None, "c"), ("update", "c", "c!"), ("delete", "c!", None)
    ]  # fmt: skip
    assert short(asked.changes("two", '{"b": "x,y", "a": 18446744073709551615}'), "n") == [
        ("insert", None, 1), ("update", 1, 2)
    ]  # fmt: skip
    # Equal to the server, but other bytes.
    assert [change["op"] for change in asked.changes("two", "a=1,b=é")] == ["insert", "update", "delete"]
    assert [change["op"] for change in asked.changes("two", "a=1,b=É")] == ["insert"]
    assert short(asked.changes("plain", "w"), "raw") == [("insert", None, "00ff"), ("update", "00ff", None)]
    assert asked.changes("two", "a=77,b=q") == []
    assert "the store has no change of this row; the store begins at 2" in asked.remarks
    code, text = asked.run(f"{loop.db}.one", "1")
    assert code == 0 and "v: a → A" in text and "(moved to id=9)" in text


def test_an_altered_table_and_rows_from_before_the_store(
    mysql9: Server, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    db = database(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.t (k INT PRIMARY KEY, v INT)", f"INSERT INTO {db}.t VALUES (1, 1), (2, 2)")
    loop = Loop(tmp_path, mysql9, db)
    loop.sql(
        "UPDATE t SET v = 3 WHERE k = 1",
        "ALTER TABLE t ADD COLUMN w VARCHAR(9) DEFAULT 'x' FIRST, MODIFY v BIGINT",
        "UPDATE t SET v = 5000000000 WHERE k = 1",
        "ALTER TABLE t RENAME COLUMN k TO id",
        "UPDATE t SET v = 6 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    loop.capture()
    asked = Asked(loop, capsys)
    changes = asked.changes("t", "1")
    assert changes[0]["after"] == {"id": 1, "v": 6, "w": "x"} and len(changes) == 1
    assert f"2 row events of {db}.t are from a time at which it had no column id" in asked.remarks
    assert "the row was there before its first change here; the store begins at" in asked.remarks
    assert short(asked.changes("t", "2"), "w") == [("delete", "x", None)]
    loop.sql("ALTER TABLE t RENAME COLUMN id TO k", "UPDATE t SET v = 7 WHERE k = 1")
    loop.capture()
    assert short(asked.changes("t", "1"), "v") == [("update", 1, 3), ("update", 3, 5000000000), ("update", 6, 7)]


def test_changes_by_foreign_keys(
    mariadb11: Server, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    db = database(mariadb11)
    loop = Loop(tmp_path, mariadb11, db, overrides="DB.secret: {columns: {p: null}}")
    loop.sql(
        "CREATE TABLE g (id INT PRIMARY KEY)",
        "CREATE TABLE p (id INT PRIMARY KEY, g INT, CONSTRAINT of_g FOREIGN KEY (g) REFERENCES g (id) ON DELETE CASCADE)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, v VARCHAR(9), CONSTRAINT of_p FOREIGN KEY (p) REFERENCES p (id)"
        " ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE part (p INT, n INT, v INT, PRIMARY KEY (p, n), CONSTRAINT part_of FOREIGN KEY (p)"
        " REFERENCES p (id) ON UPDATE CASCADE)",
        "CREATE TABLE secret (id INT PRIMARY KEY, p INT, CONSTRAINT hidden FOREIGN KEY (p) REFERENCES p (id)"
        " ON DELETE SET NULL)",
        "INSERT INTO g VALUES (1)",
        "INSERT INTO p VALUES (1, 1), (2, NULL), (3, NULL)",
        "INSERT INTO c VALUES (1, 1, 'x'), (2, 2, 'y'), (3, NULL, 'z')",
        "INSERT INTO part VALUES (2, 1, 0)",
        "INSERT INTO secret VALUES (1, 3)",
        "UPDATE p SET id = 5 WHERE id = 1",
        "UPDATE c SET v = 'w' WHERE id = 1",
        "DELETE FROM g",
        "UPDATE p SET id = 6 WHERE id = 2",
    )
    loop.capture()
    asked = Asked(loop, capsys)
    cascaded = asked.changes("c", "1")
    assert short(cascaded, "p") == [("insert", None, 1), ("update", 1, 5), ("update", 5, 5), ("delete", 5, None)]
    assert short(cascaded, "v")[1:] == [("update", "x", "x"), ("update", "x", "w"), ("delete", "w", None)]
    assert [change.get("foreign_key") for change in cascaded] == [None, "of_p", None, "of_p"]
    deleted = asked.changes("g", "1")[-1]
    assert all(cascaded[-1][name] == deleted[name] for name in ("seq", "file", "pos", "gtid", "commit_time"))
    assert asked.remarks == ""
    assert short(asked.changes("p", "5"), "g") == [("insert", None, 1), ("delete", 1, None)]
    assert short(asked.changes("c", "3"), "p") == [("insert", None, None)]
    assert short(asked.changes("part", "p=2,n=1"), "v") == [("insert", None, 0), ("delete", 0, None)]
    (arrived,) = asked.changes("part", "n=1,p=6")
    assert (arrived["op"], arrived["moved_from"], arrived["after"]) == ("insert", {"p": 2, "n": 1}, {"p": 6, "n": 1})
    assert short(asked.changes("secret", "1"), "id") == [("insert", None, 1)]
    assert (
        f"the foreign key hidden of {db}.secret to {db}.p (ON DELETE SET NULL) may have changed the row as well, "
        "which is not shown, because the column p is left out of the lake, or has other values there" in asked.remarks
    )
    code, shown = asked.run("shop", f"{db}.c", "1")
    assert code == 0 and shown.count("(by the foreign key of_p)") == 2

    loop.sql("INSERT INTO c VALUES (4, 6, 'gone')", "CREATE INDEX v ON c (v)", "INSERT INTO c VALUES (5, 6, '')")
    loop.sql("TRUNCATE c", "INSERT INTO c VALUES (5, 6, 'new')", "DELETE FROM part", "DELETE FROM p WHERE id = 6")
    loop.capture()
    assert short(asked.changes("c", "4"), "v") == [("insert", None, "gone")]
    assert f"a statement such as TRUNCATE or RENAME may have removed the row from {db}.c before" in asked.remarks
    assert short(asked.changes("c", "5"), "v") == [
        ("insert", None, ""),
        ("insert", None, "new"),
        ("delete", "new", None),
    ]
    assert "TRUNCATE" not in asked.remarks


def test_changes_by_foreign_keys_before_the_store_are_named(
    mariadb11: Server, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11), start="now")
    loop.sql(
        "CREATE TABLE g (id INT PRIMARY KEY)",
        "CREATE TABLE p (id INT PRIMARY KEY, g INT, FOREIGN KEY (g) REFERENCES g (id) ON DELETE CASCADE)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        "INSERT INTO g VALUES (1)",
        "INSERT INTO p VALUES (7, 1)",
    )
    loop.capture()
    loop.sql("INSERT INTO c VALUES (1, 7)", "DELETE FROM g")
    loop.capture()
    asked = Asked(loop, capsys)
    assert short(asked.changes("c", "1"), "p") == [("insert", None, 7)]
    assert f"the store has no event of the row 7 of {loop.db}.p, which has foreign keys as well" in asked.remarks
    loop.sql(
        "INSERT INTO c VALUES (2, NULL)",
        "ALTER TABLE c DROP CONSTRAINT c_ibfk_1",
        "ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL",
    )
    loop.capture()
    asked.changes("c", "2")
    assert "statements may have changed the foreign keys since then, and those of now were taken" in asked.remarks


def test_the_history_of_every_row_ends_with_the_row(
    mariadb11: Server, tmp_path: Path, database: Database, seed: int
) -> None:
    cascaded = 0
    for number in range(HISTORY_ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        loop = Loop(folder, mariadb11, database(mariadb11), start="now")
        loop.capture()
        rows = RandomRows(mariadb11, loop.db, random.Random(seed * 1000 + number))
        rows.create()
        rows.change(150)
        loop.capture()
        for table in rows.tables:
            cascaded += require_histories(loop, table)
    assert cascaded


def require_histories(loop: Loop, table: RandomTable) -> int:
    """Compares the ends of rows' histories with the table. Returns the number of changes by foreign keys."""
    reader, name = StoreReader(loop.config.store.path), f"{loop.db}.{table.name}"
    definition = definition_of(reader, name)
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {name}")
        present = {tuple(row[: len(table.primary_key)]): row for row in cursor.fetchall()}
    values: Sequence[Any] = range(1, 9) if table.kind == "INT" else ("B", "Dd", "a", "c ")  # in the order of bytes
    possible = itertools.product(values, repeat=len(table.primary_key))
    cascaded, of_rows = 0, set[tuple[int, int, str]]()
    for identity in {*present, *list(possible)[:12]}:
        texts = dict(zip(table.primary_key, map(str, identity), strict=True))
        key = RowKey.parse(json.dumps(texts), name, definition)
        search = find(reader, key)
        assert search.keys
        unlogged = unlogged_changes(loop.config, reader, name, search.keys)
        add_unlogged(search, key, unlogged, reader.source_file)
        cascaded += len(unlogged.keys)
        if values[0] <= identity[0] <= values[-1]:
            of_rows |= {(change["seq"], change["row"], change["op"]) for change in search.changes}
        row: dict[str, Any] | None = None
        for change in search.changes:
            if row is not None and change["before"] is not None:
                # Of a row that came with its parent's key, the columns that no key compares are not known.
                assert {column: change["before"][column] for column in row} == row, (key, change)
            row = change["after"]
        selected = (
            None if identity not in present else dict(zip(definition.column_names, present[identity], strict=True))
        )
        if row is not None and selected is not None:
            selected = {column: selected[column] for column in row}
        assert row == selected, (key, search.changes, unlogged.doubts)
    if len(table.primary_key) == 1:
        require_range(
            loop, reader, [RowKey.parse(str(end), name, definition) for end in (values[0], values[-1])], of_rows
        )
    return cascaded


def require_range(loop: Loop, reader: StoreReader, ends: list[RowKey], of_rows: set[tuple[int, int, str]]) -> None:
    """Requires that a range has the changes of its rows, those by foreign keys among them. A row that moves within the
    range is one update."""
    whole = ends[0].up_to(ends[1])
    search = find(reader, whole)
    unlogged = unlogged_changes(loop.config, reader, whole.table, search.keys)
    add_unlogged(search, whole, unlogged, reader.source_file)
    moves = {(change["seq"], change["row"]) for change in search.changes if change["op"] == "update"}
    ranged = {(change["seq"], change["row"], change["op"]) for change in search.changes}
    assert {change for change in of_rows if change[:2] not in moves} <= ranged
    assert {change[:2] for change in of_rows} <= {change[:2] for change in ranged}


def test_a_range_of_keys(
    mysql9: Server, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(
        tmp_path, mysql9, database(mysql9), overrides="DB.hidden: {columns: {id: hash}}, DB.named: {columns: {id: {rename: num}}}",
        apply="hash_key_env: TOWPATH_TEST_PASSWORD",
    )  # fmt: skip
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE two (a INT, b VARCHAR(9), n INT, PRIMARY KEY (a, b))",
        "CREATE TABLE hidden (id INT PRIMARY KEY)",
        "CREATE TABLE named (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (-1, 'a'), (2, 'b'), (3, 'c'), (10, 'd')",
        "UPDATE t SET id = id + 4 WHERE id IN (3, 2) ORDER BY id DESC",
        "DELETE FROM t WHERE id = 10",
        "INSERT INTO two VALUES (1, 'B', 1), (1, 'a', 2), (1, 'c', 3), (2, 'b', 4)",
        "INSERT INTO hidden VALUES (1), (2)",
        "INSERT INTO named VALUES (1), (2)",
    )
    loop.capture()
    asked = Asked(loop, capsys)

    def ranged(table: str, first: str, last: str, code: int = 0, *words: str) -> Any:
        answer = asked.run("--json", *words, "shop", f"{loop.db}.{table}", "--to", last, "--", first)
        assert answer[0] == code, asked.remarks
        return json.loads(answer[1]) if answer[1] else asked.remarks

    assert short(ranged("t", "2", "6"), "id") == [
        ("insert", None, 2), ("insert", None, 3), ("delete", 3, None), ("update", 2, 6)
    ]  # fmt: skip
    assert ranged("t", "2", "6")[2]["moved_to"] == {"id": 7}
    assert short(ranged("t", "-5", "99"), "v")[-1] == ("delete", "d", None)
    assert ranged("t", "6", "2") == []
    assert "no change of these rows" in asked.remarks
    assert [change["after"]["n"] for change in ranged("two", "a=1,b=A", "a=1,b=b")] == [1, 2]
    assert "differ in more than b" in ranged("two", "a=1,b=A", "a=2,b=b", 2)
    assert "'x' is no value of the column's type" in ranged("t", "1", "x", 2)
    assert "is not in the lake as it is" in ranged("hidden", "1", "2", 2)
    assert len(ranged("hidden", "1", "2", 0, "--source-values")) == 2
    assert [change["after"] for change in ranged("named", "1", "2")] == [{"num": 1}, {"num": 2}]
    code, text = asked.run("shop", f"{loop.db}.t", "2", "--to", "7")
    assert code == 0 and "id" in text.splitlines()[1], text


def test_bad_input_ends_with_one_sentence(
    mysql9: Server, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    asked = Asked(loop, capsys)

    def refused(*words: str) -> str:
        code, text = asked.run(*words)
        assert (code, text) == (2, ""), words
        return asked.remarks

    assert "there is no store yet" in refused("shop", f"{loop.db}.t", "1")
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE two (a INT, d DATE, raw BINARY(2), PRIMARY KEY (a, d, raw))",
        "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO two VALUES (1, '2026-01-01', x'0102')",
    )
    loop.capture()
    name = f"{loop.db}.t"
    assert "two or three" in refused("shop", name, "1", "2")
    assert "'t' is not the name of a table" in refused("shop", "t", "1")
    assert f"There is {loop.db}.t, {loop.db}.two" in refused("shop", f"{loop.db}.other", "1")
    assert "'x' is no value of the column's type, int32" in refused("shop", name, "x")
    assert "'99999999999' is no value" in refused("shop", name, "99999999999")
    assert "has no column ix" in refused("shop", name, '{"ix": 1}')
    assert "id is null, which identifies no row" in refused("shop", name, '{"id": null}')
    assert "is not a JSON object" in refused("shop", name, '{"id": ')
    assert "the key is id, and id, v is given" in refused("shop", name, '{"id": 1, "v": 1}')
    assert "the key is a, d, raw, and a is given" in refused("shop", f"{loop.db}.two", "a=1")
    assert "'1' is not a key" in refused("shop", f"{loop.db}.two", "1")
    assert "like 2026-03-01" in refused("shop", f"{loop.db}.two", "a=1,d=yesterday,raw=0102")
    assert "in hexadecimal digits" in refused("shop", f"{loop.db}.two", "a=1,d=2026-01-01,raw=zz")
    assert len(asked.changes("two", "a=1,d=2026-01-01,raw=0x0102")) == 1
    assert "no configuration" in refused("other", name, "1") or "other" in asked.remarks


@pytest.mark.long
def test_a_million_changes_take_seconds(
    mysql9: Server, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, word CHAR(36), n INT, at TIMESTAMP(6) DEFAULT now(6))",
        "CREATE TABLE noise (id INT PRIMARY KEY)",
        "INSERT INTO noise VALUES (1)",
    )
    for _ in range(5):
        loop.sql(
            "INSERT INTO t (word, n) WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 1000) "
            "SELECT uuid(), a.i FROM c a JOIN (SELECT i FROM c LIMIT 100) b"
        )
    loop.sql("UPDATE t SET n = n + 1", "UPDATE t SET n = -1 WHERE id = 77777")
    loop.capture()
    asked = Asked(loop, capsys)
    asked.changes("t", "1")  # loads the kernels
    began = time.monotonic()
    changes = asked.changes("t", "77777")
    seconds = time.monotonic() - began
    assert [change["op"] for change in changes] == ["insert", "update", "update"]
    assert seconds < 20, f"{seconds:.1f} s for a million changes"
    print(f"{seconds:.2f} s for a million changes")
