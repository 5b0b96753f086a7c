"""SQL values inside JSON documents: MySQL stores decimals, times, bits and bytes as opaque values of any length."""

from tests.field.case import Case

CASE = Case(
    report="vitessio/vitess#19103",
    problem="Opaque values in JSON were taken to be eight bytes long: decimals crashed the reader, bytes were wrong.",
    statements=(
        "CREATE TABLE docs (id INT PRIMARY KEY, j JSON)",
        "CREATE TABLE raw (id INT PRIMARY KEY, b BIT(10), c BLOB)",
        "INSERT INTO raw VALUES (1, 5, x'DEADBEEF')",
        "INSERT INTO docs VALUES (1, CAST(CAST(1.99 AS DECIMAL(3,2)) AS JSON))",
        "INSERT INTO docs VALUES (2, JSON_ARRAY(0.1, -0.05, 105.0000000000, 12345678901234567890.5))",
        (
            "INSERT INTO docs VALUES (3, JSON_OBJECT('d', DATE '2024-02-29', 't', TIME '-838:59:59',"
            " 'dt', TIMESTAMP '2024-02-29 12:34:56.000123'))"
        ),
        "INSERT INTO docs VALUES (4, JSON_ARRAY(TIME '-00:00:00.5', TIMESTAMP '0001-01-01 00:00:00'))",
        "INSERT INTO docs SELECT 5, JSON_OBJECT('b', b, 'c', c) FROM raw",
        "UPDATE docs SET j = JSON_SET(j, '$[0]', 0.2) WHERE id = 2",
    ),
    rows={
        "docs": [
            (1, "1.99"),
            (2, "[0.2, -0.05, 105.0000000000, 12345678901234567890.5]"),
            (3, '{"d": "2024-02-29", "t": "-838:59:59.000000", "dt": "2024-02-29 12:34:56.000123"}'),
            (4, '["-00:00:00.500000", "0001-01-01 00:00:00.000000"]'),
            (5, '{"b": "base64:type16:AAU=", "c": "base64:type252:3q2+7w=="}'),
        ],
        "raw": [(1, 5, bytes.fromhex("DEADBEEF"))],
    },
    servers=("mysql9",),
)
