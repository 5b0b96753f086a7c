"""Small negative DECIMALs among larger ones: the sign is one bit of the value's first byte."""

from decimal import Decimal

from tests.field.case import Case

CASE = Case(
    report="ClickHouse/ClickHouse#25896",
    problem="Some values of a DECIMAL(32,8) column became huge numbers in the replica, after inserts and updates.",
    statements=(
        "CREATE TABLE actions (id BIGINT PRIMARY KEY, amount DECIMAL(32,8), rate DECIMAL(9,9), whole DECIMAL(20,0))",
        "INSERT INTO actions VALUES (1, -0.00010000, -0.000000001, 1), (2, 267.01256666, 0.123456789, -1)",
        "INSERT INTO actions VALUES (3, -0.09516232, 0, 0), (4, 12345678901234567890.12345678, NULL, NULL)",
        "INSERT INTO actions VALUES (5, -12345678901234567890.12345678, -0.999999999, -99999999999999999999)",
        "UPDATE actions SET amount = -amount WHERE id IN (2, 3)",
        "UPDATE actions SET amount = 0, rate = -rate WHERE id = 1",
        "UPDATE actions SET amount = amount - 0.0001 WHERE id = 1",
        "DELETE FROM actions WHERE id = 4",
    ),
    rows={
        "actions": [
            (1, Decimal("-0.00010000"), Decimal("0.000000001"), Decimal(1)),
            (2, Decimal("-267.01256666"), Decimal("0.123456789"), Decimal(-1)),
            (3, Decimal("0.09516232"), Decimal(0), Decimal(0)),
            (5, Decimal("-12345678901234567890.12345678"), Decimal("-0.999999999"), Decimal(-99999999999999999999)),
        ],
    },
)
