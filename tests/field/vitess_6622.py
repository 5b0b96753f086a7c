"""Keys of text under a collation: changes of letter case or trailing blanks are no other key there, but other bytes."""

from tests.field.case import Case

CASE = Case(
    report="vitessio/vitess#6622",
    problem="Changes of rows with VARCHAR keys were skipped, because keys were compared under another collation.",
    statements=(
        "CREATE TABLE codes (code VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)",
        "CREATE TABLE exact (code VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, n INT)",
        "INSERT INTO codes VALUES ('apple', 1), ('Banana', 2), ('zoo', 3), ('Éclair', 4), ('_x', 5)",
        "INSERT INTO exact VALUES ('a', 1), ('A', 2), ('á', 3), ('', 4)",
        "UPDATE codes SET code = 'APPLE', n = 10 WHERE code = 'apple'",
        "UPDATE codes SET code = 'zoo ' WHERE code = 'ZOO'",
        "UPDATE codes SET n = 30 WHERE code = 'zoo'",
        "DELETE FROM codes WHERE code = 'BANANA'",
        "REPLACE INTO codes VALUES ('eclair', 40)",
        "INSERT INTO codes VALUES ('_X', 6) ON DUPLICATE KEY UPDATE n = 50",
        "UPDATE exact SET n = 20 WHERE code = 'A'",
        "DELETE FROM exact WHERE code = 'a'",
    ),
    rows={
        "codes": [
            ("APPLE", 10),
            ("_x", 50),
            ("eclair", 40),
            ("zoo ", 30),
        ],
        "exact": [
            ("", 4),
            ("A", 20),
            ("á", 3),
        ],
    },
)
