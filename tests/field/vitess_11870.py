"""A table of more than 250 columns: their number has three bytes in the binlog, and the bits of NULLs have 38."""

from tests.field.case import Case

NUMBERS = range(1, 300)
HOLES = [None if n % 3 == 0 else n for n in NUMBERS]
END = [n if n > 250 else None for n in NUMBERS]

CASE = Case(
    report="vitessio/vitess#11870",
    problem="Row events of tables with 251 or more columns could not be parsed.",
    statements=(
        f"CREATE TABLE wide (id INT PRIMARY KEY, {', '.join(f'c{n} INT' for n in NUMBERS)})",
        f"INSERT INTO wide VALUES (1, {', '.join('NULL' if n is None else str(n) for n in HOLES)})",
        f"INSERT INTO wide VALUES (2, {', '.join('NULL' if n is None else str(n) for n in END)})",
        "INSERT INTO wide (id) VALUES (3), (4)",
        "UPDATE wide SET c1 = NULL, c252 = 0, c299 = -1 WHERE id = 1",
        "UPDATE wide SET c251 = 5 WHERE id = 3",
        "DELETE FROM wide WHERE id = 4",
    ),
    rows={
        "wide": [
            (1, None, *HOLES[1:251], 0, *HOLES[252:298], -1),
            (2, *END),
            (3, *(5 if n == 251 else None for n in NUMBERS)),
        ],
    },
)
