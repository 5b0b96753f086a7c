"""MariaDB writes DDL with the SET STATEMENT … FOR that stands before it."""

from tests.field.case import Case

CASE = Case(
    report="zendesk/maxwell#2239",
    problem="An ALTER TABLE behind SET STATEMENT … FOR cannot be parsed, and the reader stops.",
    statements=(
        "CREATE TABLE transfers (id INT PRIMARY KEY, source_id INT)",
        "INSERT INTO transfers VALUES (1, NULL), (2, 1)",
        (
            "SET STATEMENT foreign_key_checks = 0, lock_wait_timeout = 5 FOR ALTER TABLE transfers "
            "ADD COLUMN note VARCHAR(20) DEFAULT 'for ALTER' AFTER id, "
            "ADD CONSTRAINT transfer_source FOREIGN KEY (source_id) REFERENCES transfers (id)"
        ),
        "INSERT INTO transfers VALUES (3, 'new', 2)",
        "SET STATEMENT lock_wait_timeout = 5 FOR RENAME TABLE transfers TO payments",
        "SET STATEMENT max_statement_time = 60 FOR INSERT INTO payments VALUES (4, 'last', 3)",
    ),
    rows={"payments": [(1, "for ALTER", None), (2, "for ALTER", 1), (3, "new", 2), (4, "last", 3)]},
    servers=("mariadb11",),
)
