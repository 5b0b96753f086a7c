"""Invisible columns: rows in the binlog have them, and so does the table map's list of visible columns."""

from tests.field.case import Case

CASE = Case(
    report="osheroff/mysql-binlog-connector-java#40",
    problem="Table maps that tell which columns are visible stopped the reader.",
    statements=(
        (
            "CREATE TABLE users (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL,"
            " source VARCHAR(20) INVISIBLE DEFAULT 'web', age INT)"
        ),
        "INSERT INTO users (name, age) VALUES ('Ada', 36)",
        "INSERT INTO users VALUES (2, 'Bob', 40)",
        "INSERT INTO users (name, source, age) VALUES ('Cy', 'shop', NULL)",
        "ALTER TABLE users MODIFY age INT INVISIBLE",
        "INSERT INTO users VALUES (4, 'Di')",
        "UPDATE users SET source = 'phone' WHERE id = 2",
        "ALTER TABLE users ADD COLUMN score INT INVISIBLE DEFAULT 7",
        "INSERT INTO users (id, name, score) VALUES (5, 'Ed', 8)",
    ),
    rows={
        "users": [
            (1, "Ada", "web", 36, 7),
            (2, "Bob", "phone", 40, 7),
            (3, "Cy", "shop", None, 7),
            (4, "Di", "web", None, 7),
            (5, "Ed", "web", None, 8),
        ],
    },
)
