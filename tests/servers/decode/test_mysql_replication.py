"""Values that the library mysql-replication reads wrongly, and Towpath rightly: the same rows of a real server's
binlog, read by both. A test fails when a newer version of the library is right."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc.capture import Capture
from cdc.decode import read
from cdc.testing.servers import Server
from tests.servers.capture.test_capture import configure
from tests.servers.decode.test_promises import decoded
from tests.support.binlog_files import new_binlog_file
from tests.support.servers_mysql_replication import assert_still_wrong, peer_rows
from tests.support.versions import lacks, needs

ON_BOTH = pytest.mark.parametrize("kind", ["mysql9", "mariadb10", "mariadb11"])
ON_MARIADB = pytest.mark.parametrize("kind", ["mariadb10", "mariadb11"])


class Table:
    """A table ``t`` with a key ``id``, which capture and mysql-replication read from the same binlog."""

    def __init__(self, server: Server, db: str, folder: Path, columns: str) -> None:
        self.server, self.db = server, db
        self.file = new_binlog_file(server)
        self.config = configure(folder, server, db, start=f"{{file: {self.file.name}, pos: 4}}")
        server.execute(f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, {columns})")

    def execute(self, *statements: str) -> None:
        """Executes statements in one session."""
        self.server.execute(f"USE `{self.db}`", "SET sql_mode = ''", *statements)

    def select(self, expression: str) -> list[Any]:
        """Returns the rows that SELECT shows, by their keys."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {expression} FROM `{self.db}`.t ORDER BY id")
            return [row[0] for row in cursor.fetchall()]

    def theirs(self) -> list[dict[str, Any]]:
        """Returns the rows that mysql-replication reads."""
        return peer_rows(self.server, self.file.name, self.db)

    def ours(self) -> list[dict[str, Any]]:
        """Returns the rows that Towpath captures and decodes."""
        Capture(self.config).run(until_current=True)
        return decoded(list(read(self.config.store.path, table=f"{self.db}.t")))


Make = Callable[[str, str], Table]


@pytest.fixture
def make(
    request: pytest.FixtureRequest,
    database: Callable[[Server], str],
    tmp_path: Path,
) -> Make:
    """Returns a function that creates the table on a kind of server."""

    def table(kind: str, columns: str) -> Table:
        server: Server = request.getfixturevalue(kind)
        db = database(server)
        return Table(server, db, tmp_path / db, columns)

    return table


@contextmanager
def metadata(server: Server, value: str) -> Iterator[None]:
    """Sets ``binlog_row_metadata`` for the block. MySQL 5.6 does not know it."""
    if server.kind.name == "mysql56":
        yield
        return
    server.execute(f"SET GLOBAL binlog_row_metadata = {value}")
    try:
        yield
    finally:
        server.execute("SET GLOBAL binlog_row_metadata = FULL")


NAMES = ["id", "u", "e", "s", "v"]
ENUMS_AND_TEXTS = "u INT UNSIGNED, e ENUM('red', 'blue'), s SET('x', 'y'), v VARCHAR(10) CHARACTER SET latin1"
FULL_ROW = (1, 4294967295, "blue", "x,y", "Ã¼")


def assert_wrong_without_metadata(row: dict[str, Any]) -> None:
    """Asserts that the library gives no names, signed numbers, no members, and all texts as UTF-8."""
    assert_still_wrong(list(row), [f"UNKNOWN_COL{n}" for n in range(5)], NAMES)
    for value, wrong, right in list(zip(row.values(), (1, -1, None, None, "ü"), FULL_ROW, strict=True))[1:]:
        assert_still_wrong(value, wrong, right)


def test_a_server_that_knows_no_metadata(make: Make) -> None:
    """MySQL 5.6: capture reads the definitions beside the binlog."""
    table = make("mysql56", ENUMS_AND_TEXTS)
    table.config = configure(table.config.file.parent.parent, table.server, table.db, start="now")
    assert table.ours() == []
    table.execute(f"INSERT INTO t VALUES {FULL_ROW}")
    [theirs], [ours] = table.theirs(), table.ours()
    assert tuple(ours[name] for name in NAMES) == tuple(table.select(name)[0] for name in NAMES) == FULL_ROW
    assert_wrong_without_metadata(theirs)


@ON_BOTH
def test_a_server_that_writes_no_metadata(kind: str, make: Make) -> None:
    """Without being told otherwise, servers write as much as the library finds no values in. Capture reads the
    definitions beside the binlog."""
    table = make(kind, ENUMS_AND_TEXTS)
    with metadata(table.server, "MINIMAL"):
        table.execute(f"INSERT INTO t VALUES {FULL_ROW}")
        [theirs], [ours] = table.theirs(), table.ours()
    assert_wrong_without_metadata(theirs)
    assert tuple(ours[name] for name in NAMES) == tuple(table.select(name)[0] for name in NAMES) == FULL_ROW


def test_several_changes_of_one_document(make: Make) -> None:
    """Partial updates of JSON: the library returns the first change alone."""
    table = make("mysql9", "j JSON")
    table.execute(
        "INSERT INTO t VALUES (1, JSON_OBJECT('a', 1, 'b', 2, 'text', REPEAT('x', 300)))",
        "SET binlog_row_value_options = PARTIAL_JSON",
        "UPDATE t SET j = JSON_SET(j, '$.a', 10, '$.b', 20)",
    )
    [_, change], [_, row] = table.theirs(), table.ours()
    assert [row["j"]] == table.select("j")
    changes = change["j"] if isinstance(change["j"], list) else [change["j"]]
    assert_still_wrong(
        [(change.path, change.value) for change in changes], [(b"$.a", 10)], [(b"$.a", 10), (b"$.b", 20)]
    )


def test_vectors(make: Make) -> None:
    needs("mysql9", "VECTOR")
    table = make("mysql9", "v VECTOR(3)")
    table.execute("INSERT INTO t VALUES (1, STRING_TO_VECTOR('[1, 2.5, -3]'))")
    assert [row["v"] for row in table.ours()] == [[1.0, 2.5, -3.0]]
    assert table.select("VECTOR_TO_STRING(v)") == ["[1.00000e+00,2.50000e+00,-3.00000e+00]"]
    with pytest.raises(ValueError, match="is not a valid MetadataFieldType"):
        table.theirs()


@ON_MARIADB
@pytest.mark.parametrize("column", ["TEXT", "BLOB", "VARCHAR(400)", "VARBINARY(400)"])
def test_compressed_columns(kind: str, make: Make, column: str) -> None:
    """The library knows no such type, reads the metadata behind it at a wrong byte, and ends with one of several
    errors."""
    table = make(kind, f"v {column} COMPRESSED")
    table.execute("INSERT INTO t VALUES (1, REPEAT('long ', 80)), (2, 'short')")
    assert [row["v"] for row in table.ours()] == table.select("v")
    with pytest.raises((NotImplementedError, ValueError, AssertionError)):
        table.theirs()


# --- values that arrive, and are others


@ON_BOTH
def test_negative_times_with_a_fraction(kind: str, make: Make) -> None:
    table = make(kind, "v TIME(3)")
    table.execute("INSERT INTO t VALUES (1, '-12:34:56.789')")
    assert [row["v"] for row in table.ours()] == table.select("CAST(v AS CHAR)") == ["-12:34:56.789"]
    wrong = -datetime.timedelta(hours=12, minutes=34, seconds=56, milliseconds=211)
    assert_still_wrong([row["v"] for row in table.theirs()], [wrong], table.select("v"))


@pytest.mark.parametrize(("charset", "wrong"), [("utf16", "\u5400\ufc00\u7200"), ("ucs2", b"\0T\0\xfc\0r")])
def test_unicode_of_two_bytes(make: Make, charset: str, wrong: str | bytes) -> None:
    """The server stores the upper byte first. The library reads the lower one first, or does not decode."""
    table = make("mysql9", f"v VARCHAR(9) CHARACTER SET {charset}")
    table.execute("INSERT INTO t VALUES (1, 'Tür')")
    assert [row["v"] for row in table.ours()] == table.select("v") == ["Tür"]
    assert_still_wrong([row["v"] for row in table.theirs()], [wrong], ["Tür"])


def test_unicode_of_four_bytes(make: Make) -> None:
    table = make("mysql9", "v VARCHAR(9) CHARACTER SET utf32")
    table.execute("INSERT INTO t VALUES (1, 'Tür')")
    assert [row["v"] for row in table.ours()] == table.select("v") == ["Tür"]
    with pytest.raises(UnicodeDecodeError, match="utf-32-le"):
        table.theirs()


@ON_BOTH
def test_zero_timestamps_and_years(kind: str, make: Make) -> None:
    table = make(kind, "t TIMESTAMP NULL, y YEAR")
    table.execute("INSERT INTO t VALUES (1, '0000-00-00', 0)")
    [theirs], [ours] = table.theirs(), table.ours()
    assert (table.select("t"), table.select("y")) == (["0000-00-00 00:00:00"], [0])
    assert (ours["t"], ours["y"]) == (None, 0)  # a zero date is null, and counted
    assert_still_wrong(str(theirs["t"]), "1970-01-01 00:00:00", "0000-00-00 00:00:00")
    assert_still_wrong(theirs["y"], 1900, 0)


@ON_BOTH
def test_timestamps_are_moments(kind: str, make: Make) -> None:
    """The library gives them in UTC without saying so: a TIMESTAMP is equal to the DATETIME of another moment."""
    table = make(kind, "t TIMESTAMP, d DATETIME")
    table.execute("SET time_zone = '+02:00'", "INSERT INTO t VALUES (1, '2024-06-01 12:00:00', '2024-06-01 10:00:00')")
    [theirs], [ours] = table.theirs(), table.ours()
    assert [int(ours["t"].timestamp())] == table.select("UNIX_TIMESTAMP(t)")
    assert [ours["d"]] == table.select("d")
    assert_still_wrong(theirs["t"], theirs["d"], ours["t"])


def test_json_texts_and_nulls(make: Make) -> None:
    table = make("mysql9", "j JSON")
    table.execute("""INSERT INTO t VALUES (1, '{"a": "x"}'), (2, 'null'), (3, NULL)""")
    theirs = [row["j"] for row in table.theirs()]
    assert [row["j"] for row in table.ours()] == table.select("j") == ['{"a": "x"}', "null", None]
    assert_still_wrong(theirs[0], {b"a": b"x"}, {"a": "x"})
    assert theirs[1] is theirs[2] is None, "mysql-replication tells JSON's null from SQL's NULL now: remove this case"


def test_json_values_of_other_types(make: Make) -> None:
    table = make("mysql9", "j JSON")
    table.execute(
        "INSERT INTO t VALUES (1, CAST(x'00FF' AS JSON)), (2, CAST(x'00' AS JSON)),"
        " (3, CAST(CAST('2024-05-06' AS DATE) AS JSON)),"
        " (4, CAST(CAST('2024-05-06 00:00:00' AS DATETIME) AS JSON))"
    )
    shown = [
        '"base64:type15:AP8="',
        '"base64:type15:AA=="',
        '"2024-05-06"',
        '"2024-05-06 00:00:00.000000"',
    ]
    assert [row["j"] for row in table.ours()] == table.select("j") == shown
    theirs = [row["j"] for row in table.theirs()]
    different = "mysql-replication tells these values apart now: remove this case"
    assert theirs[0] == theirs[1] == "\0", different
    assert str(theirs[2]) == str(theirs[3]) == "2024-05-06 00:00:00", different


def test_a_long_time_in_json(make: Make) -> None:
    table = make("mysql9", "j JSON")
    table.execute("INSERT INTO t VALUES (1, CAST(CAST('101:02:03' AS TIME) AS JSON))")
    hours = 77 if lacks("mysql9", "long times in JSON") else 101  # the CAST of older versions loses a day
    assert [row["j"] for row in table.ours()] == table.select("j") == [f'"{hours}:02:03.000000"']
    with pytest.raises(ValueError, match=r"hour must be in 0\.\.23"):
        table.theirs()


@ON_MARIADB
def test_addresses_and_uuids(kind: str, make: Make) -> None:
    """The library gives their bytes, without trailing zeros."""
    needs(kind, "UUID")
    table = make(kind, "u UUID, a INET6")
    table.execute("INSERT INTO t VALUES (1, '123e4567-e89b-12d3-a456-426655440000', 'fe80::')")
    [theirs], [ours] = table.theirs(), table.ours()
    assert [[ours["u"]], [ours["a"]]] == [table.select("u"), table.select("a")]
    assert_still_wrong(theirs["u"], bytes.fromhex("123e4567e89b12d3a45642665544"), ours["u"])
    assert_still_wrong(theirs["a"], bytes.fromhex("fe80"), ours["a"])


@ON_BOTH
def test_binary_values_keep_their_zeros(kind: str, make: Make) -> None:
    table = make(kind, "b BINARY(4)")
    table.execute("INSERT INTO t VALUES (1, x'61620000')")
    assert [row["b"] for row in table.ours()] == table.select("b") == [b"ab\0\0"]
    assert_still_wrong([row["b"] for row in table.theirs()], [b"ab"], [b"ab\0\0"])
