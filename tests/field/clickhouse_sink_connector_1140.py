"""ALGORITHM=INSTANT stands between the clauses of a statement, whose columns also move those of the primary key."""

from datetime import date

from tests.field.case import Case

CASE = Case(
    report="Altinity/clickhouse-sink-connector#1140",
    problem="Only one of several columns is added if the statement repeats ALGORITHM=INSTANT between them.",
    statements=(
        "CREATE TABLE lots (lot_id BIGINT UNSIGNED, trade_date DATE, PRIMARY KEY (lot_id, trade_date))",
        "INSERT INTO lots VALUES (1, '2025-09-17'), (18446744073709551615, '2025-09-18')",
        (
            "ALTER TABLE lots ADD COLUMN ref_type INT, ALGORITHM=INSTANT, "
            "ADD COLUMN ref_id BIGINT DEFAULT 7 FIRST, ALGORITHM=INSTANT"
        ),
        "INSERT INTO lots VALUES (8, 2, '2025-09-19', 3)",
        (
            "ALTER TABLE lots DROP COLUMN ref_type, ALGORITHM=INSTANT, "
            "ADD COLUMN note VARCHAR(10) DEFAULT 'n' AFTER ref_id, ALGORITHM=INSTANT"
        ),
        "UPDATE lots SET note = 'm' WHERE lot_id = 1",
    ),
    rows={
        "lots": [
            (7, "m", 1, date(2025, 9, 17)),
            (7, "n", 18446744073709551615, date(2025, 9, 18)),
            (8, "n", 2, date(2025, 9, 19)),
        ]
    },
)
