"""A column is added with the binlog switched off (DBZ-7093), so that later rows have more columns than any statement
says."""

from tests.field.case import Case

CASE = Case(
    report="debezium/debezium#5009",
    problem="Rows after an ALTER TABLE that is not in the binlog are read with the old columns.",
    statements=(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
        "INSERT INTO t VALUES (1, 1)",
        "SET SESSION sql_log_bin = 0",
        "ALTER TABLE t ADD COLUMN hidden INT DEFAULT 5 AFTER id",
        "SET SESSION sql_log_bin = 1",
        "INSERT INTO t VALUES (2, 3, 4)",
    ),
    refused={"t": "the table's columns changed without a statement that Towpath knows"},
)
