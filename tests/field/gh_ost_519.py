"""Updates of primary keys: to a value below all others, of two rows that swap keys, and of many rows at once."""

from tests.field.case import Case

CASE = Case(
    report="github/gh-ost#519",
    problem="A row whose primary key was updated was lost.",
    statements=(
        "CREATE TABLE members (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO members VALUES (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four')",
        "UPDATE members SET name = 'moved', id = -2 WHERE id = 3",
        "BEGIN",
        "UPDATE members SET id = 0 WHERE id = 1",
        "UPDATE members SET id = 1 WHERE id = 2",
        "UPDATE members SET id = 2 WHERE id = 0",
        "COMMIT",
        "UPDATE members SET id = id + 1 WHERE id > 0 ORDER BY id DESC",
        "INSERT INTO members VALUES (1, 'new')",
        "DELETE FROM members WHERE id = 5",
    ),
    rows={
        "members": [
            (-2, "moved"),
            (1, "new"),
            (2, "two"),
            (3, "one"),
        ],
    },
)
