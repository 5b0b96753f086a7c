"""CREATE TABLE … SELECT is a statement in the middle of a transaction: its rows follow it, and then the commit."""

from tests.field.case import Case

CASE = Case(
    report="MaterializeInc/materialize#32427",
    problem="A CREATE TABLE … SELECT is taken for the end of its transaction, and its rows come after that end.",
    statements=(
        "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO people VALUES (1, 'Ann'), (2, 'Bob')",
        "CREATE TABLE copied (PRIMARY KEY (id)) SELECT id, name FROM people",
        "INSERT INTO people VALUES (3, 'Cy')",
        "UPDATE copied SET name = 'Rob' WHERE id = 2",
        "BEGIN",
        "INSERT INTO copied SELECT id, UPPER(name) FROM people WHERE id > 2",
        "DELETE FROM people WHERE id = 1",
        "COMMIT",
    ),
    rows={
        "people": [(2, "Bob"), (3, "Cy")],
        "copied": [(1, "Ann"), (2, "Rob"), (3, "CY")],
    },
)
