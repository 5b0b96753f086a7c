"""Every character set of every server: its whole repertoire becomes the characters that SELECT shows in utf8mb4."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pymysql
import pytest

from cdc.decode.charsets.convert import decode_text, text_conversion
from cdc.decode.charsets.tables import charset_by_name, charset_of
from cdc.testing.servers import Server
from tests.conftest import Database

Cursor = pymysql.cursors.Cursor
Shown = list[tuple[bytes, bytes]]
"""Texts as they are stored, and as the server sends them to a client in utf8mb4."""

COPIED = {"binary", "utf8", "utf8mb3", "utf8mb4"}
EAST_ASIAN = {"big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis"}
UNICODE = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}


@pytest.fixture(params=("mysql9", "mysql56", "mariadb11", pytest.param("mariadb10", marks=pytest.mark.long)))
def server(request: pytest.FixtureRequest) -> Server:
    started = request.getfixturevalue(request.param)
    assert isinstance(started, Server)
    return started


@pytest.fixture
def schema(server: Server, database: Database) -> str:
    return database(server)


@pytest.fixture
def cursor(server: Server, schema: str) -> Iterator[Cursor]:
    connection = server.connect()
    connection.use_unicode = False  # the texts as they are sent
    with connection, connection.cursor() as cursor:
        cursor.execute(
            "SET SESSION sql_log_bin = 0, sql_mode = '', max_error_count = 0, group_concat_max_len = 1000000"
        )
        cursor.execute(f"USE `{schema}`")
        yield cursor


def charsets(cursor: Cursor) -> list[str]:
    cursor.execute("SELECT character_set_name FROM information_schema.character_sets")
    return sorted(name.decode() for (name,) in cursor.fetchall())


def insert(cursor: Cursor, table: str, texts: Sequence[bytes]) -> None:
    cursor.execute(f"INSERT INTO {table} VALUES {','.join(f'({i}, 0x{text.hex()})' for i, text in enumerate(texts))}")


def store(cursor: Cursor, charset: str, texts: Sequence[bytes]) -> Shown:
    """Texts in a column of a character set, and what SELECT shows. They come from a column of bytes: with
    literals, MySQL 9 refuses the bytes of ascii that it shows as ``?``."""
    cursor.execute("DROP TEMPORARY TABLE IF EXISTS raw, t")
    cursor.execute("CREATE TEMPORARY TABLE raw (id INT, v LONGBLOB) ENGINE = MyISAM")
    insert(cursor, "raw", texts)
    cursor.execute(f"CREATE TEMPORARY TABLE t (id INT, v LONGTEXT CHARACTER SET {charset}) ENGINE = MyISAM")
    cursor.execute("INSERT INTO t SELECT id, v FROM raw")
    shown = select(cursor, "SELECT CAST(v AS BINARY), v FROM t ORDER BY id")
    assert [raw for raw, _ in shown] == list(texts), f"{charset}: the server changes what is inserted"
    return shown


def select(cursor: Cursor, query: str) -> Shown:
    cursor.execute(query)
    return [(raw, text) for raw, text in cursor.fetchall()]


def compare(charset: str, shown: Shown) -> int:
    """Compares characters and fails at the first difference. Returns the number of characters."""
    convert = text_conversion(charset)
    assert convert is not None
    made = convert(pa.array([raw for raw, _ in shown], pa.binary()))
    made.validate(full=True)
    count = 0
    for (raw, sent), text in zip(shown, made.to_pylist(), strict=True):
        expected = sent.decode()
        if text != expected:
            k = next((k for k, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b), None)
            pytest.fail(f"{charset}: {raw[:20].hex()}… is {expected!r:.40} and not {text!r:.40}; from character {k} on")
        if len(raw) < 1000:
            assert decode_text(raw, charset) == expected, (charset, raw.hex())
        count += len(expected)
    return count


def repertoire(cursor: Cursor, charset: str) -> Shown:
    """Returns the sequences that the server takes for well formed: of all of two bytes that begin above 7F, and for
    Japanese character sets of all of three that begin with 8F. A row has those that begin with the same byte."""
    cursor.execute("DROP TEMPORARY TABLE IF EXISTS single, t")
    columns = f"id INT, raw VARBINARY(4), v VARCHAR(4) CHARACTER SET {charset}"
    cursor.execute(f"CREATE TEMPORARY TABLE single ({columns}) ENGINE = MEMORY")
    cursor.execute("INSERT IGNORE INTO single SELECT id, v, v FROM pairs")
    if charset in ("ujis", "eucjpms"):
        cursor.execute("INSERT IGNORE INTO single SELECT 65536 + id, CONCAT(0x8F, v), CONCAT(0x8F, v) FROM pairs")
    cursor.execute(f"CREATE TEMPORARY TABLE t (id INT, v LONGTEXT CHARACTER SET {charset}) ENGINE = MyISAM")
    cursor.execute(
        "INSERT INTO t SELECT id >> 8, GROUP_CONCAT(v SEPARATOR '') FROM single"
        " WHERE CAST(v AS BINARY) = raw GROUP BY id >> 8"
    )
    return select(cursor, "SELECT CAST(v AS BINARY), v FROM t ORDER BY id")


def code_points(charset: str) -> Iterator[bytes]:
    for first in range(0, 0x10000 if charset == "ucs2" else 0x110000, 0x400):
        if not 0xD800 <= first < 0xE000:
            yield "".join(map(chr, range(first, first + 0x400))).encode(UNICODE[charset])


def test_single_bytes(cursor: Cursor) -> None:
    compared = []
    for charset in charsets(cursor):
        if charset not in COPIED | EAST_ASIAN | set(UNICODE):
            assert compare(charset, store(cursor, charset, [bytes([byte]) for byte in range(256)])) == 256
            compared.append(charset)
    assert len(compared) == 25 and {"ascii", "latin1", "swe7"} <= set(compared)


def test_east_asian(cursor: Cursor) -> None:
    cursor.execute("CREATE TEMPORARY TABLE pairs (id INT, v VARBINARY(2)) ENGINE = MEMORY")
    insert(cursor, "pairs", [bytes([a, b]) for a in range(0x80, 256) for b in range(256)])
    compared = {name: compare(name, repertoire(cursor, name)) for name in charsets(cursor) if name in EAST_ASIAN}
    assert compared.keys() >= EAST_ASIAN - {"gb18030"}
    assert min(compared.values()) > 8_000, compared


def test_gb18030_of_four_bytes(mysql9: Server, database: Database) -> None:
    connection = mysql9.connect()
    connection.use_unicode = False
    leads, digits = range(0x81, 0xFF), range(0x30, 0x3A)
    rows = [b"".join(bytes([a, b, c, d]) for b in digits for c in leads for d in digits) for a in leads]
    with connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"USE `{database(mysql9)}`")
        assert compare("gb18030", store(cursor, "gb18030", rows)) == 126 * 10 * 126 * 10


def test_unicode(cursor: Cursor) -> None:
    for charset in UNICODE:
        count = compare(charset, store(cursor, charset, list(code_points(charset))))
        assert count == (0x10000 if charset == "ucs2" else 0x110000) - 0x800


def test_what_is_not_unicode(cursor: Cursor) -> None:
    """ucs2 stores halves of surrogate pairs, and the server sends them as bytes that are not UTF-8."""
    ((raw, sent),) = store(cursor, "ucs2", [bytes.fromhex("d83d0041")])
    assert sent == b"\xed\xa0\xbdA"
    assert decode_text(raw, "ucs2") == "?A"


@pytest.mark.parametrize("name", ["mariadb10", "mariadb11"])
def test_damaged(name: str, request: pytest.FixtureRequest, database: Database, seed: int) -> None:
    """Bytes that no statement can store, written into a table's file: bytes without a meaning are ``?`` here and
    there."""
    server: Server = request.getfixturevalue(name)
    rng = random.Random(seed)
    schema = database(server)
    folder = server.data / schema
    connection = server.connect()
    connection.use_unicode = False
    with connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"USE `{schema}`")
        cursor.execute("CREATE TABLE raw (id INT NOT NULL, v LONGBLOB NOT NULL) ENGINE = MyISAM")
        # 8F 00 vanishes on MariaDB in ujis and eucjpms; here it is "?" and U+0000.
        texts = [damaged(rng).replace(b"\x8f\x00", b"\x8f\x01") for _ in range(1500)]
        insert(cursor, "raw", texts)
        cursor.execute("FLUSH TABLES raw")
        compared = set(charsets(cursor)) - COPIED
        for charset in sorted(compared):
            cursor.execute(
                f"CREATE TABLE `{charset}` (id INT NOT NULL, v LONGTEXT CHARACTER SET {charset} NOT NULL)"
                " ENGINE = MyISAM"
            )
            cursor.execute(f"FLUSH TABLES `{charset}`")
            for suffix in (".MYD", ".MYI"):
                shutil.copyfile(folder / f"raw{suffix}", folder / f"{charset}{suffix}")
            cursor.execute(f"SELECT v FROM `{charset}`")  # in the file's order
            shown = [(raw, sent) for raw, (sent,) in zip(texts, cursor.fetchall(), strict=True)]
            compare(charset, [(raw, sent) for raw, sent in shown if is_utf8(sent)])
        assert len(compared) == 37


def damaged(rng: random.Random) -> bytes:
    """A text with runs of high bytes, in which sequences begin and are cut."""
    parts = (
        rng.randbytes(rng.randrange(6)),
        bytes(rng.randrange(0x80, 256) for _ in range(rng.randrange(6))),
        bytes(rng.choice((0x8E, 0x8F, 0xA1, 0xD8, 0xDC, 0x41, 0x30, 0)) for _ in range(rng.randrange(8))),
    )
    return b"a" + b"".join(rng.sample(parts, 3))


def is_utf8(sent: bytes) -> bool:
    """Halves of pairs in ucs2 and utf32 are not."""
    try:
        sent.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_all_are_known(cursor: Cursor) -> None:
    """Each name, and the id of each collation, leads to the character set."""
    cursor.execute("SELECT character_set_name, id FROM information_schema.collations WHERE id IS NOT NULL")
    rows = cursor.fetchall()
    assert len(rows) > 200
    for name, number in rows:
        charset = charset_by_name(name.decode()) if name is not None else None
        assert name is None or charset == charset_of(int(number)), (name, number)
