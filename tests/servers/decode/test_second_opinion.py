"""The second opinion about the stores of real servers: every type is compared without a difference, in whatever form
its rows are stored, or named as left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from cdc.binlog.table_map import ColumnType
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.decode import column_types
from cdc.decode.kernels import constants as k
from cdc.lake.second_opinion import values
from cdc.lake.second_opinion.report import SecondOpinion
from cdc.lake.second_opinion.sample import of_store
from cdc.server.destinations import ServedDestination
from cdc.testing.servers import Server
from tests.servers.capture.test_capture import configure, position
from tests.servers.capture.test_compressed import Compression
from tests.support.encryption import FIRST, encrypted
from tests.support.server import client_config, in_thread, with_tokens

ON_BOTH = pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
ON_ALL = pytest.mark.parametrize(
    "kind", ["mysql9", "mariadb11", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mysql56", "mariadb10"))]
)

NUMBERS = [
    *(
        f"n_{name}{sign.replace(' ', '_')} {name.upper()}{sign.upper()}"
        for name in ("tinyint", "smallint", "mediumint", "int", "bigint")
        for sign in ("", " unsigned")
    ),
    "small DECIMAL(12,2)", "large DECIMAL(38,10)", "huge DECIMAL(65,30)", "whole DECIMAL(20,0)", "f FLOAT", "d DOUBLE",
    "b1 BIT(1)", "b12 BIT(12)", "b64 BIT(64)", "y YEAR",
]  # fmt: skip
TIMES = [
    f"t_{kind}{digits} {kind.upper()}({digits}) NULL"
    for kind in ("time", "datetime", "timestamp")
    for digits in (0, 3, 6)
]
TEXTS = [
    "c CHAR(20)", "vc VARCHAR(300)", "tt TINYTEXT", "tx TEXT", "mt MEDIUMTEXT", "lt LONGTEXT", "bin BINARY(6)",
    "vb VARBINARY(300)", "tb TINYBLOB", "bl BLOB", "mb MEDIUMBLOB", "lb LONGBLOB",
    *(f"t_{charset} VARCHAR(20) CHARACTER SET {charset}" for charset in
      ("latin1", "latin2", "cp1251", "koi8r", "gbk", "utf16", "ucs2", "utf32", "ascii", "utf8")),
    "e ENUM('red', 'grün', '') CHARACTER SET utf8mb4", "s SET('a', 'b', 'ü') CHARACTER SET utf8mb4",
    "e_latin1 ENUM('x', 'y') CHARACTER SET latin1", "day DATE", "g GEOMETRY", "p POINT",
]  # fmt: skip
OWN = {"mysql9": ["j JSON"], "mariadb11": ["u UUID", "i4 INET4", "i6 INET6", "vec VECTOR(3)"]}
OWN_VALUES = {
    "mysql9": """'{"a": [1, -2.5, true, null, "ü"], "b": {"c": 18446744073709551615}}'""",
    "mariadb11": "'123e4567-e89b-12d3-a456-426655440000', '10.0.0.0', 'fe80::', VEC_FromText('[1, 2.5, -3]')",
}


def everything(kind: str) -> list[str]:
    """The columns of a table with every type that can be compared, as a server of this kind has them."""
    utf8 = "t_utf8 VARCHAR(20) CHARACTER SET utf8mb4"
    columns = [*NUMBERS, *TIMES, *TEXTS, *OWN.get(kind, [])]
    return [utf8 if column.startswith("t_utf8 ") else column for column in columns]


def rows_of(kind: str) -> list[str]:
    """Rows for these columns: extremes, ordinary values, zeros, and NULLs."""
    low = [f"-{1 << bits - 1}, 0" for bits in (8, 16, 24, 32, 64)]
    high = [f"{(1 << bits - 1) - 1}, {(1 << bits) - 1}" for bits in (8, 16, 24, 32, 64)]
    own = OWN_VALUES.get(kind)
    tail = "" if own is None else f", {own}"
    texts = (
        "'a', 'Straße', '', REPEAT('text ', 50), 'ü', 'z', x'61620000', x'00FF00', '', x'FF', REPEAT('b', 300), x'00'"
    )
    charsets = "'Tür', 'Žlutý', 'Привет', 'Привет', '中文', 'Tür', 'Tür', 'Tür😀', 'plain', '😀'"
    point = "ST_GeomFromText('POINT(1.5 -2)')"
    members = f"'grün', 'a,ü', 'y', '2024-02-29', {point}, {point}"
    times = (
        "'-12:34:56', '838:59:59.000', '01:02:03.000004', '1000-01-01', '2024-02-29 12:34:56.789', "
        "'9999-12-31 23:59:59.999999', '1970-01-02', '2024-02-29 12:34:56.789', '2038-01-19 03:14:07.999999'"
    )
    numbers = "-12.34, 12345678901234567890.0123456789, -1e30, 99999999999999999999, 1.5, -2.25e-300, 1, 2748, 18446744073709551615"
    zeros = "0, 0, 0, 0, 0, 0, 0, 0, 0"
    all_null = ", ".join(["NULL"] * (len(everything(kind))))
    return [
        f"1, {', '.join(low)}, {numbers}, 1901, {times}, {texts}, {charsets}, {members}{tail}",
        (
            f"2, {', '.join(high)}, {zeros}, 0, {times.replace('-12:34:56', '-00:00:01')}, {texts}, {charsets}, "
            f"'', '', 'x', '0000-00-00', {point}, {point}{tail}"
        ),
        f"3, {all_null}",
    ]


class Source:
    """A database of a server, and a destination that captures it."""

    def __init__(self, server: Server, db: str, folder: Path) -> None:
        self.server, self.db, self.kind = server, db, server.kind.name
        self.config = configure(folder, server, db, start=position(server))

    def execute(self, *statements: str) -> None:
        self.server.execute(f"USE `{self.db}`", "SET sql_mode = '', time_zone = '+00:00'", *statements)

    def table(self, name: str, columns: list[str], *rows: str) -> None:
        """Creates a table, inserts rows, and updates and deletes one."""
        create = f"CREATE TABLE {name} (id INT PRIMARY KEY, {', '.join(columns)}) CHARSET utf8mb4"
        self.execute(create, *(f"INSERT INTO {name} VALUES ({row})" for row in rows))
        self.execute(f"UPDATE {name} SET id = id + 100 WHERE id < 3", f"DELETE FROM {name} WHERE id > 100")

    def opinion(self, **options: Any) -> SecondOpinion:
        """Captures, and asks for a second opinion about all rows."""
        Capture(self.config).run(until_current=True)
        return of_store(self.config, **{"rows": 100_000, "seed": 1} | options)


Make = Callable[[str], Source]


@pytest.fixture
def make(request: pytest.FixtureRequest, database: Callable[[Server], str], tmp_path: Path) -> Make:
    """Returns a function that makes a database on a server of a kind."""

    def source(kind: str) -> Source:
        server: Server = request.getfixturevalue(kind)
        return Source(server, database(server), tmp_path)

    return source


def reasons(opinion: SecondOpinion) -> dict[str, set[str]]:
    """The columns that were left out, by what they are."""
    by_reason: dict[str, set[str]] = {}
    for _, column, reason in opinion.left_out:
        by_reason.setdefault(reason, set()).add(column)
    return by_reason


def assert_equal(opinion: SecondOpinion, least: int) -> None:
    assert not opinion.differences, "\n".join(map(str, opinion.differences))
    assert (opinion.verdict, opinion.values >= least) == ("equal", True), opinion.document()


@ON_ALL
def test_every_type(kind: str, make: Make) -> None:
    source = make(kind)
    source.table("t", everything(kind), *rows_of(kind))
    opinion = source.opinion()
    assert_equal(opinion, 6 * len(everything(kind)))
    assert opinion.left_out == {}


@ON_BOTH
def test_little_metadata(kind: str, make: Make) -> None:
    """With the servers' default, table maps have no names."""
    source = make(kind)
    source.server.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        source.table("t", everything(kind), *rows_of(kind))
        opinion = source.opinion()
    finally:
        source.server.execute("SET GLOBAL binlog_row_metadata = FULL")
    assert_equal(opinion, 6 * len(everything(kind)))
    assert opinion.left_out == {}


@ON_BOTH
def test_compressed_transactions_and_events(kind: str, make: Make) -> None:
    source = make(kind)
    with Compression(source.server):
        source.table("t", everything(kind), *rows_of(kind))
    opinion = source.opinion()
    assert_equal(opinion, 6 * len(everything(kind)))
    assert opinion.left_out == {}


def test_an_encrypted_store(make: Make, tmp_path: Path) -> None:
    source = make("mysql9")
    with encrypted(source.config.store.path, FIRST):
        source.table("t", everything("mysql9"), *rows_of("mysql9"))
        opinion = source.opinion()
    assert_equal(opinion, 300)


def test_the_store_of_a_server(make: Make, tmp_path: Path) -> None:
    """A client asks ``cdc server`` for the transactions."""
    source = make("mariadb11")
    source.table("t", everything("mariadb11"), *rows_of("mariadb11"))
    local = source.opinion()
    served = with_tokens(source.config)
    with in_thread([ServedDestination(served)]) as url:
        remote = of_store(client_config(served, tmp_path / "client", url), rows=100_000, seed=1)
    assert_equal(remote, 300)
    assert (remote.rows, remote.values, remote.left_out) == (local.rows, local.values, local.left_out)


@ON_BOTH
def test_xa_transactions(kind: str, make: Make) -> None:
    source = make(kind)
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT UNSIGNED)")
    source.execute(
        "XA START 'a'", "INSERT INTO t VALUES (1, 4294967295)", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'"
    )
    assert_equal(source.opinion(), 2)


def test_partial_updates_of_documents(make: Make) -> None:
    source = make("mysql9")
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, j JSON)",
        "INSERT INTO t VALUES (1, 7, JSON_OBJECT('a', 1, 'text', REPEAT('x', 300))), (2, 8, CAST(1.5 AS JSON)),"
        " (3, 9, CAST(CAST('101:02:03' AS TIME) AS JSON))",
        "SET binlog_row_value_options = PARTIAL_JSON",
        "UPDATE t SET j = JSON_SET(j, '$.a', 10), v = -1 WHERE id = 1",
    )
    opinion = source.opinion()
    assert_equal(opinion, 10)
    assert set(reasons(opinion)) == {str(values.PARTIAL_JSON), str(values.JSON_VALUES), str(values.JSON_FAULT)}


@ON_BOTH
def test_generated_and_invisible_columns(kind: str, make: Make) -> None:
    source = make(kind)
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, twice BIGINT AS (v * 2) VIRTUAL, thrice INT AS (v * 3) STORED,"
        " secret INT INVISIBLE DEFAULT -1)",
        "INSERT INTO t (id, v) VALUES (1, 10), (2, 20)",
        "UPDATE t SET v = 11 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    opinion = source.opinion()
    assert_equal(opinion, 15)
    generated = {str(values.GENERATED): {"twice", "thrice"}}
    assert reasons(opinion) == (generated if kind == "mariadb11" else {})


def test_a_hidden_column_of_mariadb(make: Make) -> None:
    source = make("mariadb11")
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, UNIQUE (v))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    opinion = source.opinion()
    assert_equal(opinion, 4)
    assert reasons(opinion) == {str(values.HIDDEN): {"DB_ROW_HASH_1"}}


def test_what_is_left_out(make: Make) -> None:
    """An impossible date ends the library's reading of an event, and a text may have bytes without a meaning."""
    source = make("mysql9")
    source.execute(
        "CREATE TABLE dates (id INT PRIMARY KEY, day DATE)",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "INSERT INTO dates VALUES (1, '2024-02-31')",
        "CREATE TABLE texts (id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET latin1, b VARCHAR(9) CHARACTER SET big5)",
        "INSERT INTO texts VALUES (1, x'81', 'a'), (2, 'a', 'b')",
        "CREATE TABLE vectors (id INT PRIMARY KEY, v VECTOR(2))",
        "INSERT INTO vectors VALUES (1, STRING_TO_VECTOR('[1, 2]'))",
    )
    opinion = source.opinion()
    assert_equal(opinion, 3)
    assert {(table.partition(".")[2], column) for table, column, _ in opinion.left_out} == {
        ("dates", ""), ("texts", "v"), ("texts", "b"), ("vectors", "")
    }  # fmt: skip
    assert any(reason.startswith(values.FAULT.what) for reason in reasons(opinion))
    document = json.loads(json.dumps(opinion.document()))
    assert {"table": f"{source.db}.vectors", "column": None, "values": 2} == {
        name: value for name, value in document["left_out"][-1].items() if name != "reason"
    }


# --- samples


def test_a_sample_of_a_store(make: Make) -> None:
    """Rows of all tables, spread over the segments; the seed repeats it."""
    source = make("mysql9")
    source.execute("CREATE TABLE rare (id INT PRIMARY KEY)", "CREATE TABLE often (id INT AUTO_INCREMENT PRIMARY KEY)")
    for number in range(8):
        source.execute(
            *["INSERT INTO often VALUES ()"] * 40, f"INSERT INTO rare VALUES ({number})", "FLUSH BINARY LOGS"
        )
    opinion = source.opinion(rows=80)
    assert_equal(opinion, 80)
    assert 80 <= opinion.rows < 120
    repeated, other = source.opinion(rows=80), source.opinion(rows=80, seed=2)
    assert (repeated.rows, repeated.values) == (opinion.rows, opinion.values)
    assert other.verdict == "equal"
    only = source.opinion(tables=[f"{source.db}.rare"])
    assert (only.rows, only.values) == (8, 8)


def test_an_empty_store_proves_nothing(make: Make) -> None:
    opinion = make("mysql9").opinion()
    assert (opinion.verdict, opinion.values, opinion.left_out) == ("nothing compared", 0, {})


def test_excluded_tables_and_hidden_columns(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make("mysql9")
    source.table("t", ["v TINYINT UNSIGNED", "w TINYINT UNSIGNED"], "1, 255, 255")
    source.table("other", ["v INT"], "1, 1")
    Capture(source.config).run(until_current=True)
    source.config = excluded(source.config, f"{source.db}.other")
    signed = (k.I8, pa.int8())
    monkeypatch.setitem(column_types._INTEGERS, ColumnType.TINY, (1, signed, signed))
    opinion = of_store(source.config, rows=1000)
    assert {difference.table for difference in opinion.differences} == {f"{source.db}.t"}
    assert {(difference.column, difference.ours) for difference in opinion.differences} == {
        ("v", "-1"), ("w", "(hidden by the policy hash)")
    }  # fmt: skip


def excluded(config: DestinationConfig, table: str) -> DestinationConfig:
    """Excludes a table that was captured, and hides the column ``w``."""
    document = yaml.safe_load(config.file.read_text())
    document["tables"]["exclude"] = [table.replace(".", "\\.")]
    document["apply"]["columns"] = {"w": "hash"}
    document["apply"]["hash_key_env"] = "TOWPATH_TEST_PASSWORD"
    config.file.write_text(yaml.safe_dump(document))
    return load(config.file)
