"""Statements write the names of columns in other letters than the definition does; the server takes them as they are
written last."""

from tests.field.case import Case

CASE = Case(
    report="github/gh-ost#446",
    problem="A MODIFY that writes a column's name in capital letters loses the column's values.",
    statements=(
        "CREATE TABLE sbtest (id INT PRIMARY KEY, k INT NOT NULL DEFAULT 0, pad CHAR(10) NOT NULL DEFAULT '')",
        "INSERT INTO sbtest VALUES (1, 10, 'x'), (2, 20, 'y')",
        "ALTER TABLE sbtest MODIFY K BIGINT NOT NULL DEFAULT '0'",
        "INSERT INTO sbtest VALUES (3, 5000000000, 'z')",
        "ALTER TABLE sbtest CHANGE COLUMN PAD Note CHAR(12) NOT NULL DEFAULT ''",
        "UPDATE sbtest SET k = k + 1, note = 'w' WHERE ID = 2",
    ),
    rows={"sbtest": [(1, 10, "x"), (2, 21, "w"), (3, 5000000000, "z")]},
)
