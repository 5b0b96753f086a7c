"""Makes ``decode-KIND.binlog``: one small binlog file of each server, with a table of every type that can be decoded.

Run by hand when there is a new server: ``PYTHONPATH=. python tests/golden/make_decode.py``. The tests that read them need no server.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cdc.testing.servers import Server

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

if __name__ == "__main__":
    for kind in ("mysql9", "mariadb10", "mariadb11"):
        with Server(kind) as server, server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")
            cursor.execute("CREATE DATABASE shop")
            cursor.execute(TABLE)
            cursor.execute("CREATE TABLE shop.other (id INT PRIMARY KEY)")
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("SHOW BINARY LOGS")
            name = str(cursor.fetchall()[-1][0])
            cursor.execute("BEGIN")
            cursor.execute(ROWS)
            cursor.execute("INSERT INTO shop.other VALUES (1)")
            cursor.execute("UPDATE shop.every SET i8 = i8 / 2, txt = 'changed'")
            cursor.execute("COMMIT")
            cursor.execute("UPDATE shop.every SET nm = 'gh' WHERE nm = 'ef'")
            cursor.execute("DELETE FROM shop.every")
            cursor.execute("FLUSH BINARY LOGS")
            shutil.copyfile(server.data / name, Path(__file__).parent / f"decode-{kind}.binlog")
