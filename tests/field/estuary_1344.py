"""A unique key over a whole TEXT: MariaDB keeps it by a hidden column of hashes, DB_ROW_HASH_1."""

from tests.field.case import Case

CASE = Case(
    report="estuary/connectors#1344",
    problem="Row events of a table with a hidden column of hashes had a column that nobody knew, and capture failed.",
    statements=(
        "CREATE TABLE pages (id INT PRIMARY KEY, url TEXT, hits INT, UNIQUE KEY (url))",
        "INSERT INTO pages VALUES (1, 'https://a.example/', 1), (2, 'https://b.example/', 2), (3, NULL, 3)",
        "UPDATE pages SET hits = 10 WHERE id = 1",
        "UPDATE pages SET url = 'https://c.example/' WHERE id = 2",
        "INSERT INTO pages VALUES (9, 'https://a.example/', 0) ON DUPLICATE KEY UPDATE hits = hits + 1",
        "REPLACE INTO pages VALUES (4, 'https://c.example/', 40)",
        "ALTER TABLE pages ADD COLUMN title VARCHAR(20)",
        "INSERT INTO pages VALUES (5, REPEAT('x', 2000), 5, 'long')",
        "DELETE FROM pages WHERE id = 3",
    ),
    rows={
        "pages": [
            (1, "https://a.example/", 11, None),
            (4, "https://c.example/", 40, None),
            (5, "x" * 2000, 5, "long"),
        ],
    },
    servers=("mariadb11",),
)
