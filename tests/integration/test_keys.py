"""Keys of every type and content, from a real server into Delta: equal to SELECT, or refused."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import TargetError, UnsupportedError
from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.compare import changelog, mirror_faults
from tests.support.random_keys import RandomChanges, make_tables

MANY = int(os.environ.get("TOWPATH_KEYS") or 0)
"""More changes of each table, in more batches, with keys of one column as well."""


@pytest.fixture(params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether batches are merged as small or as large ones."""
    if request.param == "large":
        monkeypatch.setattr("cdc.lake.rows.changes.SMALL_BYTES", 0)
    return str(request.param)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [pytest.param("mysql9", marks=pytest.mark.long), "mariadb11"])
@pytest.mark.usefixtures("size")
def test_keys_by_the_hundred(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[Server], str], seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    rng = random.Random(f"{seed} {kind}")
    loop = Loop(tmp_path, server, database(server))
    tables = make_tables(rng, kind[:5] if kind.startswith("mysql") else "mariadb", 1 if MANY else 9)
    loop.sql(*(table.create() for table in tables))
    random_changes = RandomChanges(server, loop.db, rng)
    # A large batch, and then small ones, in which most keys are the least or the greatest of their batch.
    for changes in (40 + 100 * MANY, *[3] * (1 + MANY)):
        random_changes.run(tables, changes)
        loop.capture()
        loop.apply_all()
        faults = [
            f"{table.types}: {fault}"
            for table in tables
            for fault in mirror_faults(server, loop.config.apply.target, loop.db, table.name, table.select)
        ]
        assert not faults, "\n".join([f"seed {seed}", *faults[:20]])


HOSTILE = (
    "${env:HOME}",
    "${spark.app.name}",
    "${a}",
    "it's",
    '"',
    "\\",
    "\\'",
    "`",
    "a\0b",
    "%(x)s",
    ":k",
    "😀",
)


@pytest.mark.usefixtures("size")
def test_no_text_of_the_source_is_read_as_sql(
    mysql9: Server, tmp_path: Path, database: Callable[[Server], str]
) -> None:
    """No key and no table or column name is read as SQL; Delta's log does not contain the driver's environment."""
    home = os.environ["HOME"]
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="'DB.log ${env:HOME}': {mode: append}")
    keys = [f"k{i}" for i in range(len(HOSTILE))]
    columns = ", ".join(f"{key} VARCHAR(40) COLLATE utf8mb4_bin" for key in keys)
    log = "`log ${env:HOME}`"
    loop.sql(
        f"CREATE TABLE t ({columns}, `${{env:HOME}} it's \\` INT, n INT, PRIMARY KEY ({', '.join(keys)}))",
        f"CREATE TABLE {log} (id INT PRIMARY KEY, `${{env:HOME}}` INT)",
        f"INSERT INTO {log} VALUES (1, 1)",
    )
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO `{loop.db}`.t VALUES ({'%s, ' * len(keys)} 1, 1)", HOSTILE)

    def require_equal() -> None:
        loop.capture()
        loop.apply_all()
        assert mirror_faults(mysql9, loop.config.apply.target, loop.db, "t") == []

    require_equal()
    loop.sql("UPDATE t SET n = 2")
    require_equal()
    loop.sql("ALTER TABLE t ADD COLUMN `${env:HOME}` INT", f"UPDATE {log} SET `${{env:HOME}}` = 2", "DELETE FROM t")
    require_equal()
    assert [row["_op"] for row in changelog(loop.config.apply.target, loop.db, "log ${env:HOME}")] == [
        "insert",
        "update",
    ]
    files = [file.read_text() for file in Path(loop.config.apply.target).rglob("_delta_log/*.json")]
    assert any("${env:HOME}" in text for text in files)
    assert not [text for text in files if home in text.replace(str(tmp_path), "")]


def test_a_zero_date_in_a_key_is_refused_or_kept_as_text(
    mysql9: Server, tmp_path: Path, database: Callable[[Server], str]
) -> None:
    overrides = "DB.texts: {columns: {d: text, m: text, at: text}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    key = "d DATE, m DATETIME(3), at TIMESTAMP(2), PRIMARY KEY (d, m, at)"
    loop.sql(
        "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
        f"CREATE TABLE texts ({key}, n INT)",
        "CREATE TABLE plain (d DATE PRIMARY KEY, n INT)",
        "INSERT INTO plain VALUES ('2024-02-29', 1)",
        "UPDATE plain SET n = 2",
        "INSERT INTO texts VALUES ('2020-00-00', '2024-02-31 01:02:03.4', '0000-00-00', 1),"
        " ('0000-00-00', '0000-00-00', '2024-01-01 00:00:00.25', 2), ('2020-01-00', '0000-00-00', '0000-00-00', 3)",
        "UPDATE texts SET n = 7 WHERE n = 1",
        "DELETE FROM texts WHERE n = 2",
        "UPDATE texts SET d = '2020-02-31' WHERE n = 3",
    )
    loop.capture()
    loop.apply_all()
    loop.require_equal("plain")
    asked = {name: f"CAST({name} AS CHAR)" for name in ("d", "m", "at")}
    assert mirror_faults(mysql9, loop.config.apply.target, loop.db, "texts", asked) == []

    loop.sql("SET sql_mode = ''", "INSERT INTO plain VALUES ('2020-00-00', 3)")
    loop.capture()
    lease = loop.fetch()
    with pytest.raises(UnsupportedError, match=r"zero or impossible date in the key.*different keys") as refused:
        pipeline.merge(loop.config, lease)
    assert refused.value.remedy is not None
    assert "{columns: {d: text}}" in refused.value.remedy
    assert loop.delta("plain") == [{"d": loop.select("plain", "2 DESC")[1]["d"], "n": 2}]


def test_bytes_that_mean_nothing_in_a_key_are_refused_or_kept_as_bytes(
    mariadb11: Server, tmp_path: Path, database: Callable[[Server], str]
) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11), overrides="DB.raw: {columns: {k: bytes}}")
    columns = "k VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY, n INT"
    loop.sql(
        f"CREATE TABLE raw ({columns})",
        f"CREATE TABLE texts ({columns})",
        "INSERT INTO raw VALUES ('a', 1), ('?', 2)",
        "INSERT INTO texts VALUES ('a', 1), ('?', 2), ('??', 3)",
        "UPDATE texts SET n = 4 WHERE k = '??'",
        "SET sql_mode = ''",
    )
    loop.capture()
    loop.apply_all()
    loop.require_equal("texts", order="2")
    # The server's own conversion would refuse such bytes; as its character set's own they go in as they are.
    odd = "(CONVERT(UNHEX('6180') USING binary), 5), (CONVERT(UNHEX('6181') USING binary), 6)"
    loop.sql("SET sql_mode = ''", f"INSERT IGNORE INTO raw VALUES {odd}", "DELETE FROM raw WHERE n = 5")
    if {row["n"] for row in loop.select("raw")} != {1, 2, 6}:
        pytest.fail("the server did not store the bytes")
    loop.capture()
    loop.apply_all()
    assert sorted(row["k"] for row in loop.delta("raw")) == [b"?", b"a", b"a\x81"]
    loop.sql("SET sql_mode = ''", f"INSERT IGNORE INTO texts VALUES {odd}")
    loop.capture()
    lease = loop.fetch()
    with pytest.raises(UnsupportedError, match="bytes that mean nothing in its character set"):
        pipeline.merge(loop.config, lease)


STATES: dict[str, tuple[str, ...]] = {
    "bare": (),
    "staged": ("_staged_commits/",),
    "temporary": (
        "_staged_commits/",
        ".00000000000000000000.json.4fc4.tmp",
        "..00000000000000000000.json.4fc4.tmp.crc",
    ),
}


def test_what_a_kill_leaves_of_a_table_is_made_anew(
    mysql9: Server, tmp_path: Path, database: Callable[[Server], str]
) -> None:
    """The folders are those that Spark leaves while it creates a table. A table may be named ``_delta_log``."""
    loop = Loop(tmp_path, mysql9, database(mysql9))
    for name in STATES:
        loop.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
        for entry in ("", *STATES[name]):
            path = loop.path(name) / "_delta_log" / entry
            path.mkdir(parents=True, exist_ok=True) if entry in ("", "_staged_commits/") else path.write_text("{")
    loop.sql("CREATE TABLE _delta_log (id INT PRIMARY KEY)", "INSERT INTO _delta_log VALUES (1)")
    loop.sql("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    loop.capture()
    loop.apply_all()
    for name in (*STATES, "other", "_delta_log"):
        assert mirror_faults(mysql9, loop.config.apply.target, loop.db, name) == []
    loop.sql("CREATE TABLE taken (id INT PRIMARY KEY)", "INSERT INTO taken VALUES (1)")
    (loop.path("taken") / "_delta_log").mkdir(parents=True)
    (loop.path("taken") / "rows.csv").write_text("1")
    loop.capture()
    lease = loop.fetch(1)
    with pytest.raises(TargetError, match="holds files, but is not a Delta table"):
        pipeline.merge(loop.config, lease)
    # The way out that is named everywhere: an excluded table is left alone, in batches that were made before, too.
    file = loop.config.file
    file.write_text(file.read_text().replace("tables: {include", f"tables: {{exclude: ['{loop.db}.taken'], include"))
    from cdc.config import load

    assert pipeline.merge(load(file), lease) == []
