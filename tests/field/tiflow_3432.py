"""One REPLACE that conflicts with two rows by two unique keys, and an upsert that changes the key of a row."""

from tests.field.case import Case

CASE = Case(
    report="pingcap/tiflow#3432",
    problem="A row that conflicts with two others, each by another unique key, failed, because only one was replaced.",
    statements=(
        "CREATE TABLE pairs (a INT PRIMARY KEY, b INT UNIQUE, c VARCHAR(10))",
        "INSERT INTO pairs VALUES (1, 1, 'x'), (2, 3, 'y'), (5, 6, 'z'), (8, 8, 'kept')",
        "REPLACE INTO pairs VALUES (1, 3, 'both')",
        "INSERT INTO pairs VALUES (9, 6, 'new') ON DUPLICATE KEY UPDATE a = 9, b = 7, c = 'moved'",
        "INSERT INTO pairs VALUES (5, 6, 'again')",
        "BEGIN",
        "REPLACE INTO pairs VALUES (5, 7, 'one')",
        "INSERT INTO pairs VALUES (9, 6, 'two')",
        "REPLACE INTO pairs VALUES (2, 6, 'three'), (9, 9, 'four')",
        "COMMIT",
    ),
    rows={
        "pairs": [
            (1, 3, "both"),
            (2, 6, "three"),
            (5, 7, "one"),
            (8, 8, "kept"),
            (9, 9, "four"),
        ],
    },
)
