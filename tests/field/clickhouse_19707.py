"""DROP PARTITION removes rows without saying which ones."""

from tests.field.case import Case

CASE = Case(
    report="ClickHouse/ClickHouse#19707",
    problem="Rows of a partition that was dropped on the source stay.",
    statements=(
        (
            "CREATE TABLE readings (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) "
            "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
        ),
        "INSERT INTO readings VALUES (1, 1), (9, 9), (10, 10)",
        "ALTER TABLE readings ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))",
        "INSERT INTO readings VALUES (25, 25)",
        "ALTER TABLE readings DROP PARTITION p0",
        "INSERT INTO readings VALUES (11, 11)",
    ),
    refused={"readings": "only the server knows the rows of a partition"},
)
