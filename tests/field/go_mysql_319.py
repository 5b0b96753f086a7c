"""An ENUM of more than 255 members has two bytes, and a SET of 18 members has three, with the lowest one first."""

from tests.field.case import Case

KINDS = ", ".join(f"'k{n}'" for n in range(1, 301))
FLAGS = [f"f{n}" for n in range(1, 19)]

CASE = Case(
    report="go-mysql-org/go-mysql#319",
    problem="ENUM and SET values of more than one byte were read with their bytes in the wrong order.",
    statements=(
        f"CREATE TABLE parts (id INT PRIMARY KEY, kind ENUM({KINDS}), flags SET({', '.join(map(repr, FLAGS))}))",
        "INSERT INTO parts VALUES (1, 'k1', 'f1'), (2, 'k255', 'f9'), (3, 'k256', 'f17,f2'), (4, 'k300', '')",
        f"INSERT INTO parts VALUES (5, 'k257', '{','.join(FLAGS)}'), (6, NULL, NULL)",
        "UPDATE parts SET kind = 'k258', flags = 'f18,f1' WHERE id = 1",
    ),
    rows={
        "parts": [
            (1, "k258", "f1,f18"),
            (2, "k255", "f9"),
            (3, "k256", "f2,f17"),
            (4, "k300", ""),
            (5, "k257", ",".join(FLAGS)),
            (6, None, None),
        ],
    },
)
