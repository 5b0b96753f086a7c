"""MySQL's latin1 is Windows' cp1252, which has letters and signs between 0x80 and 0x9F; a VARCHAR holds them, too."""

from tests.field.case import Case

CASE = Case(
    report="estuary/connectors#4545",
    problem="Letters beyond ASCII in VARCHAR columns of latin1 became replacement characters.",
    statements=(
        "CREATE TABLE dishes (id INT PRIMARY KEY, v VARCHAR(60), c CHAR(30), t TEXT) DEFAULT CHARSET = latin1",
        "INSERT INTO dishes VALUES (1, 'crème brûlée', 'Zoë', 'Straße')",
        "INSERT INTO dishes VALUES (2, '€ “quoted” – Œuvre™', '‰ Š š ž Ÿ', '…')",
        "INSERT INTO dishes VALUES (3, _latin1 x'818D8F909D', _latin1 x'A0FF', '')",
        "UPDATE dishes SET v = CONCAT(v, ' à la carte'), t = v WHERE id = 1",
    ),
    rows={
        "dishes": [
            (1, "crème brûlée à la carte", "Zoë", "crème brûlée à la carte"),
            (2, "€ “quoted” – Œuvre™", "‰ Š š ž Ÿ", "…"),
            (3, "\x81\x8d\x8f\x90\x9d", "\xa0ÿ", ""),
        ],
    },
)
