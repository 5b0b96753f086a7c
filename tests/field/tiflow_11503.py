"""ALTER DATABASE without a name changes the default character set of the session's database, which tables without a
character set take."""

from tests.field.case import Case

CASE = Case(
    report="pingcap/tiflow#11503",
    problem="ALTER DATABASE without a name is not taken for the session's database.",
    statements=(
        "ALTER DATABASE CHARACTER SET = latin1",
        "CREATE TABLE guests (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO guests VALUES (1, 'Zoë'), (2, 'Renée')",
        "ALTER DATABASE COLLATE = utf8mb4_bin",
        "CREATE TABLE rooms (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO rooms VALUES (1, '桜 €')",
        "ALTER TABLE guests ADD COLUMN city VARCHAR(20) DEFAULT 'Bonn'",
        "UPDATE guests SET city = 'Köln' WHERE id = 2",
        "ALTER TABLE guests CONVERT TO CHARACTER SET utf8mb4",
        "INSERT INTO guests VALUES (3, '花子', '東京')",
    ),
    rows={"rooms": [(1, "桜 €")]},
    refused={"guests": "the character set is not known"},
)
