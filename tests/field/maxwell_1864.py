"""Numbers in JSON that need more than 31 bits, and some that come from unsigned variables of a routine."""

from tests.field.case import Case

CASE = Case(
    report="zendesk/maxwell#1864",
    problem="A BIGINT UNSIGNED variable of a routine became a negative number in a JSON column.",
    statements=(
        "CREATE TABLE numbers (id INT UNSIGNED PRIMARY KEY, data JSON NOT NULL)",
        "CREATE FUNCTION doc(v BIGINT UNSIGNED) RETURNS JSON DETERMINISTIC NO SQL RETURN CAST(v AS JSON)",
        (
            "CREATE PROCEDURE fill() BEGIN DECLARE v BIGINT UNSIGNED DEFAULT 2147483648;"
            " INSERT INTO numbers VALUES (1, JSON_OBJECT('value', v)); END"
        ),
        "CALL fill()",
        "INSERT INTO numbers VALUES (2, JSON_OBJECT('value', doc(2147483648)))",
        "INSERT INTO numbers VALUES (3, doc(18446744073709551615)), (4, doc(32768)), (5, doc(65535))",
        "INSERT INTO numbers VALUES (6, '[-9223372036854775808, 9223372036854775807, 18446744073709551615]')",
        "INSERT INTO numbers VALUES (7, '[-32768, -2147483648, -2147483649, 1.0, 1e2, 0.1]'), (8, '4294967295')",
        "UPDATE numbers SET data = JSON_SET(data, '$.value', doc(4294967296)) WHERE id = 2",
    ),
    rows={
        "numbers": [
            (1, '{"value": 2147483648}'),
            (2, '{"value": 4294967296}'),
            (3, "18446744073709551615"),
            (4, "32768"),
            (5, "65535"),
            (6, "[-9223372036854775808, 9223372036854775807, 18446744073709551615]"),
            (7, "[-32768, -2147483648, -2147483649, 1.0, 100.0, 0.1]"),
            (8, "4294967295"),
        ],
    },
    servers=("mysql9",),
)
