"""Generated columns: the values that MySQL computed are in the binlog, and these count, not another expression."""

from decimal import Decimal

from tests.field.case import Case

CASE = Case(
    report="Altinity/clickhouse-sink-connector#1442",
    problem="The values of generated columns were dropped and computed anew by a translated expression.",
    statements=(
        (
            "CREATE TABLE items (id INT PRIMARY KEY, rounded INT AS (ROUND(price)) STORED, price DECIMAL(10,2),"
            " label VARCHAR(60) AS (CONCAT(UPPER(name), ' x', qty)) VIRTUAL, qty INT, name VARCHAR(20),"
            " share DECIMAL(14,6) AS (price / qty) STORED)"
        ),
        "INSERT INTO items (id, price, qty, name) VALUES (1, 2.50, 3, 'nut'), (2, -2.50, 7, 'bolt')",
        "INSERT INTO items (id, price, qty, name) VALUES (3, 3.50, NULL, 'x'), (4, 1.00, 4, NULL)",
        "UPDATE items SET price = 0.50 WHERE id = 1",
        "UPDATE items SET name = 'façade' WHERE id = 2",
        "UPDATE items SET id = 5 WHERE id = 3",
    ),
    rows={
        "items": [
            (1, 1, Decimal("0.50"), "NUT x3", 3, "nut", Decimal("0.166667")),
            (2, -3, Decimal("-2.50"), "FAÇADE x7", 7, "façade", Decimal("-0.357143")),
            (4, 1, Decimal("1.00"), None, 4, None, Decimal("0.250000")),
            (5, 4, Decimal("3.50"), None, None, "x", None),
        ],
    },
    servers=("mysql9",),
)
