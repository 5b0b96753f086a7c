"""Transactions that create a temporary table are rolled back, one as a whole and one to a savepoint; a server may write
their rows nevertheless, with the ROLLBACK behind them."""

from tests.field.case import Case

CASE = Case(
    report="zendesk/maxwell#2018",
    problem="A transaction with temporary tables that was rolled back leaves the reader with what it did.",
    statements=(
        "CREATE TABLE test (id INT PRIMARY KEY, v INT)",
        "INSERT INTO test VALUES (1, 1)",
        "BEGIN",
        "INSERT INTO test VALUES (2, 2)",
        "CREATE TEMPORARY TABLE scratch (a INT)",
        "INSERT INTO scratch VALUES (1)",
        "UPDATE test SET v = 9",
        "ROLLBACK",
        "BEGIN",
        "INSERT INTO test VALUES (3, 3)",
        "SAVEPOINT `one more`",
        "INSERT INTO test VALUES (4, 4)",
        "CREATE TEMPORARY TABLE scratch2 (a INT)",
        "UPDATE test SET v = 8 WHERE id = 1",
        "ROLLBACK TO SAVEPOINT `one more`",
        "INSERT INTO test VALUES (5, 5)",
        "COMMIT",
        "DROP TEMPORARY TABLE scratch2",
    ),
    rows={"test": [(1, 1), (3, 3), (5, 5)]},
)
