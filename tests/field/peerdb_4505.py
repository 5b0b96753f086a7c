"""Many names that MariaDB has for its types, those of its Oracle mode among them, and the types that the binlog shows
as BINARY."""

import datetime
from decimal import Decimal

from tests.field.case import Case

_KEY = "55907609-e98b-11f1-aa91-02fc00000001"

CASE = Case(
    report="PeerDB-io/peerdb#4505",
    problem="Columns of UUID, INET4 and INET6 were not supported, and synonyms of types were not tried.",
    statements=(
        "CREATE TABLE addresses (id UUID PRIMARY KEY, four INET4, six INET6)",
        f"INSERT INTO addresses VALUES ('{_KEY}', '10.0.0.1', '2001:db8::ff'), (UUID_v7(), NULL, NULL)",
        "DELETE FROM addresses WHERE four IS NULL",
        "INSERT INTO addresses VALUES ('00000000-0000-0000-0000-000000000000', '0.0.0.0', '::')",
        "UPDATE addresses SET six = CAST(four AS INET6) WHERE four = '10.0.0.1'",
        "UPDATE addresses SET four = '255.255.255.255' WHERE four = '0.0.0.0'",
        (
            "CREATE TABLE synonyms (id INT1 UNSIGNED PRIMARY KEY, i2 INT2, i3 INT3 UNSIGNED, i4 INT4, i8 INT8 UNSIGNED,"
            " m MIDDLEINT, n NUMERIC(10,3), f FIXED(8,2), d DEC(5), r DOUBLE PRECISION, b BOOL,"
            " c NATIONAL CHAR VARYING(20), l LONG, lb LONG VARBINARY, cb CHAR BYTE, y YEAR, nc NCHAR(3))"
        ),
        (
            "INSERT INTO synonyms VALUES (255, -32768, 16777215, -2147483648, 18446744073709551615, -8388608,"
            " -1234567.125, 999999.99, 99999, 0.5, TRUE, 'straße', 'long', x'00ff', x'7f', 2155, 'é')"
        ),
        "UPDATE synonyms SET n = 0.5, l = NULL WHERE id = 255",
        "INSERT INTO synonyms (id) VALUES (0)",
        "SET SESSION sql_mode = 'ORACLE'",
        "CREATE TABLE oracle (id NUMBER(9) PRIMARY KEY, v VARCHAR2(20), w RAW(4), c CLOB, b BLOB, d DATE)",
        "INSERT INTO oracle VALUES (1, 'text', x'01', 'clob', x'0002', '2024-05-06 07:08:09')",
        "UPDATE oracle SET v = '' WHERE id = 1",
    ),
    rows={
        "addresses": [
            ("00000000-0000-0000-0000-000000000000", "255.255.255.255", "::"),
            (_KEY, "10.0.0.1", "::ffff:10.0.0.1"),
        ],
        "synonyms": [
            (0, *[None] * 16),
            (
                255, -32768, 16777215, -2147483648, 18446744073709551615, -8388608, Decimal("0.5"),
                Decimal("999999.99"), 99999, 0.5, 1, "straße", None, b"\x00\xff", b"\x7f", 2155, "é",
            ),
        ],
        "oracle": [(1, "", b"\x01", "clob", b"\x00\x02", datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC))],
    },
    servers=("mariadb11",),
)  # fmt: skip
