"""Negative TIME values with fractions, down to those between zero and minus one second."""

from tests.field.case import Case

CASE = Case(
    report="go-mysql-org/go-mysql#677",
    problem="A TIME(2) of a hundredth of a second below zero arrived as 00:00:00.",
    statements=(
        "CREATE TABLE offsets (id INT PRIMARY KEY, a TIME(2), b TIME(6), c TIME)",
        "INSERT INTO offsets VALUES (1, '-00:00:00.01', '-00:00:00.000001', '-00:00:01')",
        "INSERT INTO offsets VALUES (2, '-00:00:00.99', '-00:00:01.000000', '-00:00:00')",
        "INSERT INTO offsets VALUES (3, '-838:59:59', '-838:59:59', '-838:59:59')",
        "INSERT INTO offsets VALUES (4, '00:00:00.01', '0', '100:00:00')",
        "INSERT INTO offsets VALUES (5, '-12:34:56.78', '-12:34:56.789', '-12:34:56')",
        "UPDATE offsets SET a = '-00:00:01.01', b = '838:59:59' WHERE id = 4",
    ),
    rows={
        "offsets": [
            (1, "-00:00:00.01", "-00:00:00.000001", "-00:00:01"),
            (2, "-00:00:00.99", "-00:00:01.000000", "00:00:00"),
            (3, "-838:59:59.00", "-838:59:59.000000", "-838:59:59"),
            (4, "-00:00:01.01", "838:59:59.000000", "100:00:00"),
            (5, "-12:34:56.78", "-12:34:56.789000", "-12:34:56"),
        ],
    },
)
