"""One statement renames a column and adds another of the old name; later ones exchange two names, and replace a
column by one of its name."""

from tests.field.case import Case

CASE = Case(
    report="github/gh-ost#1273",
    problem="A column that is renamed while another gets its name loses its values to the new one.",
    statements=(
        "CREATE TABLE t1 (id INT PRIMARY KEY, c1 VARCHAR(10), c2 VARCHAR(10))",
        "INSERT INTO t1 VALUES (1, 'a', 'b'), (2, 'c', 'd')",
        "ALTER TABLE t1 RENAME COLUMN c1 TO n1, ADD COLUMN c1 VARCHAR(10) DEFAULT 'new'",
        "INSERT INTO t1 VALUES (3, 'e', 'f', 'g')",
        "ALTER TABLE t1 RENAME COLUMN n1 TO c2, RENAME COLUMN c2 TO n1",
        "ALTER TABLE t1 DROP COLUMN c1, ADD COLUMN c1 INT DEFAULT 7",
        "UPDATE t1 SET n1 = 'x', c1 = 8 WHERE id = 2",
    ),
    rows={"t1": [(1, "a", "b", 7), (2, "c", "x", 8), (3, "e", "f", 7)]},
)
