"""An ALTER TABLE that puts the members of an ENUM in another order: rows hold numbers, and the numbers change."""

from tests.field.case import Case

CASE = Case(
    report="MaterializeInc/materialize#26022",
    problem="Rows written after the members of an ENUM were reordered had the names of the old order.",
    statements=(
        "CREATE TABLE sizes (id INT PRIMARY KEY, size ENUM('small', 'large'), wanted TEXT)",
        "INSERT INTO sizes VALUES (1, 'small', 'small'), (2, 'large', 'large'), (3, 'small', 'small')",
        "ALTER TABLE sizes CHANGE size size ENUM('large', 'small', 'medium')",
        "INSERT INTO sizes VALUES (4, 'small', 'small'), (5, 'large', 'large'), (6, 'medium', 'medium')",
        "UPDATE sizes SET wanted = 'still large' WHERE id = 2",
        "DELETE FROM sizes WHERE id = 3",
    ),
    rows={
        "sizes": [
            (1, "small", "small"),
            (2, "large", "still large"),
            (4, "small", "small"),
            (5, "large", "large"),
            (6, "medium", "medium"),
        ],
    },
)
