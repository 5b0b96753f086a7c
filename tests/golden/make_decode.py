"""Generates the golden binlog files of the decoder, small files for each server:

- ``decode-KIND.binlog``: the table ``shop.every``, whose values are written in the tests.
- ``decode-types-KIND-v1.binlog``: ``shop.kinds`` and, on MariaDB, ``shop.old``, with every type of ``decode_types.py``.
  ``….schemas.json`` has the tables' columns in ``information_schema``, and ``….values.json`` SELECT's answers after each step.

Run it for a new server: ``PYTHONPATH=. python tests/golden/make_decode.py``. Existing files are kept. The tests that read
them need no server.
"""

from __future__ import annotations

import json
import shutil
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from cdc.config import TablesConfig
from cdc.source.schemas import read_schemas
from cdc.testing.servers import Server
from tests.golden.decode_types import Typed, columns_of, tables_of

GOLDEN = Path(__file__).parent

TABLE = """CREATE TABLE shop.every (
  i8 TINYINT NOT NULL, u8 TINYINT UNSIGNED, i16 SMALLINT, u16 SMALLINT UNSIGNED, i24 MEDIUMINT, u24 MEDIUMINT UNSIGNED,
  i32 INT, u32 INT UNSIGNED, id BIGINT NOT NULL, u64 BIGINT UNSIGNED, f FLOAT, d DOUBLE, small DECIMAL(12,2), large DECIMAL(38,10),
  day DATE, dt DATETIME, dt3 DATETIME(3), ts TIMESTAMP(6) NULL, txt VARCHAR(300) CHARACTER SET utf8mb4, nm CHAR(10) CHARACTER SET utf8mb4,
  lat TEXT CHARACTER SET latin1, bin BINARY(6), vb VARBINARY(20), bl BLOB, en ENUM('one','zwei','drei €') CHARACTER SET utf8mb4,
  skipped TIME(2), PRIMARY KEY (nm, id))"""
ROWS = """INSERT INTO shop.every VALUES
  (-128, 255, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295, -9223372036854775808, 18446744073709551615, 1.5, -2.25,
   -1234567890.12, 1234567890123456789012345678.0123456789, '2024-02-29', '1969-12-31 23:59:59', '9999-12-31 23:59:59.999',
   '2024-02-29 12:34:56.123456', 'Straße 😀', 'ab', 'Grüße €', 'ab', 0x00ff, 0xfffefd, 'drei €', '-12:34:56.78'),
  (127, 0, 32767, 0, 8388607, 0, 2147483647, 0, 9223372036854775807, 0, 0, 0, 0.01, -0.0000000001, '0000-00-00', '2023-02-31 01:02:03',
   '0001-01-01', '1970-01-01 00:00:01', REPEAT('x', 299), 'cd', '', '', '', '', 'one', '00:00:00'),
  (0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 5, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ef', NULL, NULL, NULL, NULL,
   NULL, NULL)"""

ASKED = {
    "number": "{} + 0", "float": "{} + 0e0", "single": "{} + 0e0", "digits": "{} + 0", "text": "CONVERT({} USING utf8mb4)", "hex": "LOWER(HEX({}))",
    "day": "CAST({} AS CHAR)", "moment": "CAST({} AS CHAR)", "instant": "CAST({} AS CHAR)", "floats": "HEX({})",
}  # fmt: skip
NO_DATES = ("0000-00-00", "2023-02-31 01:02:03")
"""Dates that Delta cannot represent."""
SET_UP = "SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'"
PATCHES = (
    """UPDATE shop.kinds SET js = JSON_SET(js, '$.a[1]', 'changed', '$."long key"', 7), jo = JSON_REPLACE(jo, '$.n', 2), i8 = 1 WHERE id = 2""",
    "UPDATE shop.kinds SET js = JSON_REMOVE(JSON_SET(js, '$.new', JSON_ARRAY(1, 2)), '$.big'), jo = JSON_REMOVE(jo, '$.d') WHERE id = 2",
)
"""Statements that MySQL logs as partial updates."""


def shortest(value: float) -> float:
    """Returns the number with the fewest digits that is equal in 32 bits."""
    return float(str(np.float32(value)))


def shown(value: Any, column: Typed) -> Any:
    """Converts SELECT's answer to its form in JSON lines."""
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode()
    if column.form in ("number", "float"):
        return int(value) if column.form == "number" else float(value)
    if column.form == "single":
        return shortest(float(value))
    if column.form == "digits":
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    if column.form == "floats":
        raw = bytes.fromhex(value)
        return [shortest(number) for number in struct.unpack(f"<{len(raw) // 4}f", raw)]
    if column.form in ("day", "moment", "instant"):
        if value in NO_DATES:
            return None
        if column.form == "day":
            return value
        whole, _, fraction = value.partition(".")
        return f"{whole.replace(' ', 'T')}.{fraction:0<6}{'Z' if column.form == 'instant' else ''}"
    return value


def select(cursor: Any, kind: str, table: str) -> list[dict[str, Any]]:
    """Selects a table's rows by id, in their form in JSON lines."""
    columns = columns_of(kind, table)
    asked = ", ".join(ASKED[column.form].format(column.name) for column in columns)
    cursor.execute(f"SELECT id, {asked} FROM shop.{table} ORDER BY id")
    return [
        {"id": row[0], **{c.name: shown(value, c) for c, value in zip(columns, row[1:], strict=True)}}
        for row in cursor.fetchall()
    ]


def make_tables(cursor: Any, kind: str) -> None:
    cursor.execute("CREATE DATABASE shop")
    for table in tables_of(kind):
        if table == "old":
            cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
        lines = ["id INT PRIMARY KEY", *(f"{c.name} {c.sql}" for c in columns_of(kind, table))]
        cursor.execute(f"CREATE TABLE shop.{table} ({', '.join(lines)}) CHARACTER SET utf8mb4")


def fill_tables(cursor: Any, kind: str) -> dict[str, Any]:
    """Inserts, updates, patches and deletes rows. Returns SELECT's answers after each step."""
    values: dict[str, Any] = {}
    for table in tables_of(kind):
        columns = columns_of(kind, table)
        cursor.execute("BEGIN")
        for number in (0, 1):
            cursor.execute(
                f"INSERT INTO shop.{table} VALUES ({number + 1}, {', '.join(c.values[number] for c in columns)})"
            )
        cursor.execute(f"INSERT INTO shop.{table} (id) VALUES (3)")
        cursor.execute("COMMIT")
        selected = {"inserted": select(cursor, kind, table)}
        # Rows one and two exchange their values, and row three changes its key.
        cursor.execute("BEGIN")
        for number in (0, 1):
            changes = ", ".join(f"{c.name} = {c.values[1 - number]}" for c in columns)
            cursor.execute(f"UPDATE shop.{table} SET {changes} WHERE id = {number + 1}")
        cursor.execute(f"UPDATE shop.{table} SET id = 4 WHERE id = 3")
        cursor.execute("COMMIT")
        selected["updated"] = select(cursor, kind, table)
        if kind == "mysql9":
            cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
            for at, patch in enumerate(PATCHES):
                cursor.execute(patch)
                selected[f"patched{at}"] = select(cursor, kind, table)
        cursor.execute(f"DELETE FROM shop.{table}")
        values[table] = selected
    return values


def make_every(cursor: Any) -> None:
    cursor.execute("CREATE DATABASE shop")
    cursor.execute(TABLE)
    cursor.execute("CREATE TABLE shop.other (id INT PRIMARY KEY)")


def fill_every(cursor: Any) -> None:
    cursor.execute("BEGIN")
    cursor.execute(ROWS)
    cursor.execute("INSERT INTO shop.other VALUES (1)")
    cursor.execute("UPDATE shop.every SET i8 = i8 / 2, txt = 'changed'")
    cursor.execute("COMMIT")
    cursor.execute("UPDATE shop.every SET nm = 'gh' WHERE nm = 'ef'")
    cursor.execute("DELETE FROM shop.every")


def next_log(cursor: Any) -> str:
    """Begins a new binlog file and returns its name."""
    cursor.execute("FLUSH BINARY LOGS")
    cursor.execute("SHOW BINARY LOGS")
    return str(cursor.fetchall()[-1][0])


def make(kind: str, types: bool) -> None:
    path = GOLDEN / (f"decode-types-{kind}-v1.binlog" if types else f"decode-{kind}.binlog")
    if path.exists():
        return
    with Server(kind) as server, server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(SET_UP)
        if types:
            make_tables(cursor, kind)
        else:
            make_every(cursor)
        name = next_log(cursor)
        if types:
            values = fill_tables(cursor, kind)
            path.with_suffix(".values.json").write_text(json.dumps(values, ensure_ascii=False, indent=1) + "\n")
            read_schemas(connection, TablesConfig(include=[r"shop\..*"])).save(path.with_suffix(".schemas.json"))
        else:
            fill_every(cursor)
        cursor.execute("FLUSH BINARY LOGS")
        shutil.copyfile(server.data / name, path)


if __name__ == "__main__":
    for kind in ("mysql9", "mariadb10", "mariadb11"):
        make(kind, types=False)
    for kind in ("mysql9", "mysql56", "mariadb10", "mariadb11"):
        make(kind, types=True)
