"""BINARY keys that end in zero bytes: the binlog has them without these bytes, and each key must still find its row."""

from tests.field.case import Case

CASE = Case(
    report="github/gh-ost#654",
    problem="Updates and deletes of rows whose BINARY(16) key ends in zero bytes found no row.",
    statements=(
        "CREATE TABLE items (id BINARY(16) PRIMARY KEY, info VARCHAR(20), data BINARY(8), tail VARBINARY(8))",
        "INSERT INTO items VALUES (x'11FFFFFFFFFFFFFFFFFFFFFFFFFFFF00', 'deleted', x'01', x'0100')",
        "INSERT INTO items VALUES (x'22FFFFFFFFFFFFFFFFFFFFFFFFFFFF00', 'old', x'FFFFFFFFFFFFFFFF', x'0000')",
        "INSERT INTO items VALUES (x'33', 'short', x'33FFFFFFFFFFFF00', x''), (x'', 'zeros', x'00', NULL)",
        "INSERT INTO items VALUES (x'44FFFFFFFFFFFFFFFFFFFFFFFFFFFFFF', 'full', NULL, x'20')",
        "UPDATE items SET info = 'new', data = x'FF00' WHERE id = x'22FFFFFFFFFFFFFFFFFFFFFFFFFFFF00'",
        "UPDATE items SET id = x'44FFFFFFFFFFFFFFFFFFFFFFFFFF0000' WHERE info = 'full'",
        "UPDATE items SET info = 'still zeros' WHERE info = 'zeros'",
        "DELETE FROM items WHERE id = x'11FFFFFFFFFFFFFFFFFFFFFFFFFFFF00'",
    ),
    rows={
        "items": [
            (bytes(16), "still zeros", bytes(8), None),
            (b"\x22" + b"\xff" * 14 + b"\x00", "new", b"\xff" + bytes(7), b"\x00\x00"),
            (b"\x33" + bytes(15), "short", b"\x33" + b"\xff" * 6 + b"\x00", b""),
            (b"\x44" + b"\xff" * 13 + bytes(2), "full", None, b" "),
        ],
    },
)
