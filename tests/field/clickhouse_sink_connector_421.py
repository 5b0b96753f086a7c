"""A foreign key deletes the children of a deleted row, and the binlog has only the parent. Another child's key has no
action."""

from tests.field.case import Case

CASE = Case(
    report="Altinity/clickhouse-sink-connector#421",
    problem="Children that ON DELETE CASCADE removes stay, because the binlog does not have their deletes.",
    statements=(
        "CREATE TABLE author (id INT PRIMARY KEY, name VARCHAR(20))",
        (
            "CREATE TABLE book (id INT PRIMARY KEY, author_id INT, "
            "CONSTRAINT book_author FOREIGN KEY (author_id) REFERENCES author (id) ON DELETE CASCADE)"
        ),
        (
            "CREATE TABLE prize (id INT PRIMARY KEY, author_id INT, "
            "CONSTRAINT prize_author FOREIGN KEY (author_id) REFERENCES author (id))"
        ),
        "INSERT INTO author VALUES (1, 'Ann'), (2, 'Bob')",
        "INSERT INTO book VALUES (10, 1), (11, 1), (20, 2)",
        "INSERT INTO prize VALUES (7, 2)",
        "DELETE FROM author WHERE id = 1",
    ),
    rows={"author": [(2, "Bob")], "book": [(20, 2)], "prize": [(7, 2)]},
    servers=("mariadb11",),
)
