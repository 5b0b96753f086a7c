"""BIT columns of one to eight bytes, with all bits set, with the highest bit alone, and with none."""

from tests.field.case import Case

WIDTHS = (1, 9, 17, 25, 33, 41, 49, 57, 64)

CASE = Case(
    report="alibaba/canal#70",
    problem="BIT columns of more than one byte were not decoded.",
    statements=(
        f"CREATE TABLE bits (id INT PRIMARY KEY, {', '.join(f'b{n} BIT({n})' for n in WIDTHS)})",
        f"INSERT INTO bits VALUES (1, {', '.join(str(2**n - 1) for n in WIDTHS)})",
        f"INSERT INTO bits VALUES (2, {', '.join(str(2 ** (n - 1)) for n in WIDTHS)})",
        f"INSERT INTO bits VALUES (3, {', '.join('0' for n in WIDTHS)})",
        "INSERT INTO bits (id, b9) VALUES (4, b'100000001')",
        "UPDATE bits SET b64 = b64 - 1, b17 = b'1' WHERE id = 1",
    ),
    rows={
        "bits": [
            (1, 1, 511, 1, *(2**n - 1 for n in WIDTHS[3:-1]), 2**64 - 2),
            (2, *(2 ** (n - 1) for n in WIDTHS)),
            (3, *(0 for n in WIDTHS)),
            (4, None, 257, *(None for n in WIDTHS[2:])),
        ],
    },
)
